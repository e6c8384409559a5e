package request

import (
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/validate/content"
)

// APIExports is /services/apiexport/<provider>/<export>/clusters/<name|path|*>/…: what
// consumers of an API let its provider see and do.
var APIExports = &Mount{
	Prefix: ServicesPrefix + "apiexport/", Form: ServicesPrefix + "apiexport/<provider>/<export>/clusters/<name>",
	Parse: parseVirtualWorkspace, Wildcard: listOrWatchOrRead, separator: "/",
}

var (
	// InitializingWorkspaces is /services/initializingworkspaces/<logical cluster>:<type>/clusters/<name|path|*>/…:
	// what waits for the initializer of a WorkspaceType.
	InitializingWorkspaces = typeMount("initializingworkspaces")
	// TerminatingWorkspaces is the same for what waits for the type's terminator.
	TerminatingWorkspaces = typeMount("terminatingworkspaces")
)

// APIResourceSchemas is /services/apiresourceschema/<consumer>/clusters/<consumer|*>/…: the
// schemas that a logical cluster has bound. No object grants it.
var APIResourceSchemas = &Mount{
	Prefix: ServicesPrefix + "apiresourceschema/", Form: ServicesPrefix + "apiresourceschema/<logical cluster>/clusters/<name>",
	Parse: parseOwnVirtualWorkspace, Wildcard: listOrWatchOrRead,
}

// Replication is /services/replication/<provider>/<slice>/clusters/<name|path|*>/…: what a cached
// resource has replicated, to be read only. The endpoint slice grants it.
var Replication = &Mount{
	Prefix: ServicesPrefix + "replication/", Form: ServicesPrefix + "replication/<provider>/<endpoint slice>/clusters/<name>",
	Parse: parseVirtualWorkspace, Wildcard: listOrWatchOrRead, separator: "/",
}

// ViewMounts are where all views are: a part of ShardMounts.
func VirtualWorkspaceMounts() []*Mount {
	return []*Mount{APIExports, APIResourceSchemas, InitializingWorkspaces, TerminatingWorkspaces, Replication}
}

// ViewPath returns the URL path of the view that an object of a logical cluster grants, by
// names, up to what is seen.
func (m *Mount) VirtualWorkspacePath(cluster logicalcluster.Name, object string) string {
	return m.Prefix + cluster.String() + m.separator + object
}

func typeMount(name string) *Mount {
	return &Mount{
		Prefix: ServicesPrefix + name + "/", Form: ServicesPrefix + name + "/<logical cluster>:<workspace type>/clusters/<name>",
		Parse: parseTypeVirtualWorkspace, Wildcard: listOrWatchOrRead, separator: ":",
	}
}

// scope returns the view, without a logical cluster where there is a path that first has
// to be resolved.
func (l *VirtualWorkspaceLocation) scope() *VirtualWorkspace {
	v := &VirtualWorkspace{Name: l.Name, In: Cluster{Wildcard: l.Wildcard}}
	if name, ok := l.Path.Name(); ok && !l.Wildcard {
		v.In.Name = name
	}
	return v
}

// parseView takes <cluster>/<name>/clusters/<cluster>/rest apart.
func parseVirtualWorkspace(below string) (Location, error) {
	cluster, rest := cutSegment(below)
	name, rest := cutSegment(rest[1:])
	return virtualWorkspaceOf(cluster, name, rest)
}

// parseTypeView takes <cluster>:<name>/clusters/<cluster>/rest apart.
func parseTypeVirtualWorkspace(below string) (Location, error) {
	segment, rest := cutSegment(below)
	at := strings.LastIndexByte(segment, ':')
	if at < 0 {
		return Location{}, &InvalidURLError{Segment: segment, Reason: "a workspace type is named by its logical cluster, a colon and its name"}
	}
	return virtualWorkspaceOf(segment[:at], segment[at+1:], rest)
}

// parseOwnView takes <cluster>/clusters/<cluster>/rest apart.
func parseOwnVirtualWorkspace(below string) (Location, error) {
	cluster, rest := cutSegment(below)
	return viewIn(cluster, "", rest)
}

// viewOf returns the location of the view that the object name of a logical cluster
// grants. rest is what follows in the URL.
func virtualWorkspaceOf(cluster, name, rest string) (Location, error) {
	if len(name) > content.DNS1123SubdomainMaxLength || len(content.IsDNS1123Subdomain(name)) > 0 {
		return Location{}, &InvalidURLError{Segment: name, Reason: "the name of the object that grants the view consists of lower-case letters, digits, hyphens and dots"}
	}
	return viewIn(cluster, name, rest)
}

// viewIn is viewOf for a name that is well-formed, or for none.
func viewIn(cluster, name, rest string) (Location, error) {
	l, err := parseCluster(cluster + "/")
	if err != nil || l.Wildcard {
		return Location{}, &InvalidURLError{Segment: cluster, Reason: "a view is granted by one logical cluster, which is a name or a path"}
	}
	below, found := strings.CutPrefix(rest, Clusters.Prefix)
	if !found {
		first, _ := cutSegment(rest[1:])
		return Location{}, &InvalidURLError{Segment: first, Reason: "what follows in the URL of a view is " + Clusters.Prefix + "<name> or " + Clusters.Prefix + Wildcard}
	}
	in, err := parseCluster(below)
	if err != nil {
		return Location{}, err
	}
	l.VirtualWorkspace, l.Rest = &VirtualWorkspaceLocation{Name: name, Path: in.Path, Wildcard: in.Wildcard}, in.Rest
	return l, nil
}
