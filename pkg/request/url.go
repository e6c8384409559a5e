package request

import (
	"fmt"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/validate/content"
)

// ServicesPrefix is the prefix of virtual workspaces.
const ServicesPrefix = "/services/"

// CachePrefix is the prefix of the cache server's API.
const CachePrefix = ServicesPrefix + "cache"

// Mount is a URL prefix of requests with a scope, see ShardMounts and CacheMounts.
type Mount struct {
	// Prefix ends with a slash. Form is for messages, only of the first mount of a server.
	Prefix, Form string
	// Parse parses the path below the prefix. The error for a malformed name is an *InvalidURLError.
	Parse func(below string) (Location, error)
	// Wildcard reports whether a verb is allowed for all logical clusters or shards. resource is
	// set for resource requests.
	Wildcard func(verb string, resource bool) bool

	// Whole is set if requests have neither logical cluster nor shard.
	Whole bool

	// separator is between the logical cluster and the name of the object that grants access, or empty without one.
	separator string
}

var (
	// Clusters is /clusters/<name|path|*>/…, on shards and front-proxies.
	Clusters = &Mount{Prefix: "/clusters/", Form: "/clusters/<name>", Parse: parseCluster, Wildcard: listOrWatch}
	// CacheShards is /services/cache/shards/<name|*>/clusters/<name|*>/… on a cache server.
	// Discovery and schemas, which are equal everywhere, are also available for wildcards.
	CacheShards = &Mount{Prefix: CachePrefix + Shards.Prefix, Form: CachePrefix + Shards.Form, Parse: parseShard, Wildcard: listOrWatchOrRead}
	// Shards is CacheShards for servers with a URL that includes the prefix of a cache server.
	Shards = &Mount{Prefix: "/shards/", Form: "/shards/<name>/clusters/<name>", Parse: parseShard, Wildcard: listOrWatchOrRead}
)

// MountOf returns the mount of a URL path, which may be escaped, and the path below its prefix, or nil.
func MountOf(urlPath string, mounts ...*Mount) (mount *Mount, below string) {
	for _, mount := range mounts {
		if below, ok := strings.CutPrefix(urlPath, mount.Prefix); ok {
			return mount, below
		}
	}
	return nil, ""
}

func listOrWatch(verb string, resource bool) bool {
	return resource && (verb == "list" || verb == "watch")
}

func listOrWatchOrRead(verb string, resource bool) bool {
	return listOrWatch(verb, resource) || !resource && (verb == "get" || verb == "head")
}

// Location is a parsed URL path.
type Location struct {
	Mount *Mount
	// Shard is only set on a cache server.
	Shard Shard
	// Path is the name or path of the logical cluster in the URL, empty for the wildcard, and below a shard for
	// none.
	Path logicalcluster.Path
	// Wildcard is set for /clusters/*.
	Wildcard bool
	// VirtualWorkspace is set for virtual workspaces, to which the logical cluster grants access.
	VirtualWorkspace *VirtualWorkspaceLocation
	// Rest is the remaining path, which starts with a slash.
	Rest string
}

// VirtualWorkspaceLocation is the virtual workspace in a URL path.
type VirtualWorkspaceLocation struct {
	// Name is the object that grants access, if any.
	Name string
	// Path is the name or path of the logical cluster of the objects. It is empty for the wildcard.
	Path logicalcluster.Path
	// Wildcard is set for all accessible logical clusters.
	Wildcard bool
}

// InvalidURLError is returned for a malformed logical cluster or shard in a URL. Servers return 400 or, if the API
// contract requires it, the response for a logical cluster that does not exist.
type InvalidURLError struct{ Segment, Reason string }

func (e *InvalidURLError) Error() string {
	return fmt.Sprintf("invalid URL segment %q: %s", e.Segment, e.Reason)
}

// Locate parses a URL path below one of mounts. found is false if there is none. The error is an *InvalidURLError.
func Locate(urlPath string, mounts ...*Mount) (l Location, found bool, err error) {
	mount, below := MountOf(urlPath, mounts...)
	if mount == nil {
		return Location{}, false, nil
	}
	l, err = mount.Parse(below)
	l.Mount = mount
	return l, true, err
}

// ClusterPath returns the URL path /clusters/<segment> for a name, a path or the wildcard.
func ClusterPath(segment string) string { return Clusters.Prefix + segment }

// ShardPath returns the URL path of a logical cluster of a shard on the cache server. Both may be wildcards.
func ShardPath(shard, cluster string) string {
	return CacheShards.Prefix + shard + ClusterPath(cluster)
}

func parseCluster(below string) (Location, error) {
	segment, rest := cutSegment(below)
	if segment == Wildcard {
		return Location{Wildcard: true, Rest: rest}, nil
	}
	path := logicalcluster.NewPath(segment)
	if !ValidPath(path) {
		return Location{}, &InvalidURLError{Segment: segment, Reason: "a logical cluster is a name of lower-case letters, digits and hyphens, or a path of such names joined by colons"}
	}
	return Location{Path: path, Rest: rest}, nil
}

// parseShard parses <shard>/clusters/<cluster>/rest or <shard>/rest.
func parseShard(below string) (Location, error) {
	segment, rest := cutSegment(below)
	l, err := Location{Rest: rest}, error(nil)
	if below, ok := strings.CutPrefix(rest, Clusters.Prefix); ok {
		l, err = parseCluster(below)
	}
	switch {
	case segment == Wildcard:
		l.Shard.Wildcard = true
	case ValidName(segment):
		l.Shard.Name = segment
	default:
		return Location{}, &InvalidURLError{Segment: segment, Reason: "a shard's name consists of lower-case letters, digits and hyphens"}
	}
	return l, err
}

func cutSegment(path string) (segment, rest string) {
	segment, rest, _ = strings.Cut(path, "/")
	return segment, "/" + rest
}

// AdminPath is the path of resources of the installation, on any shard.
const AdminPath = ServicesPrefix + "admin"

// Admin is the mount of resources of the installation, e.g.
// /services/admin/apis/core.kcp.io/v1alpha1/shards. They belong to no logical cluster.
var Admin = &Mount{
	Prefix: AdminPath + "/", Whole: true,
	Parse:    func(below string) (Location, error) { return Location{Rest: "/" + below}, nil },
	Wildcard: listOrWatchOrRead,
}

// ShardMounts are the mounts of shards and front-proxies.
func ShardMounts() []*Mount { return append([]*Mount{Clusters, Admin}, VirtualWorkspaceMounts()...) }

// CacheMounts are the mounts of cache servers.
func CacheMounts() []*Mount { return []*Mount{CacheShards, Shards} }

var (
	// APIExports is /services/apiexport/<provider>/<export>/clusters/<name|path|*>/…: objects of
	// consumers to which the provider of an API has access.
	APIExports = virtualWorkspaceMount("apiexport", "/")
	// APIResourceSchemas is /services/apiresourceschema/<consumer>/clusters/<consumer|*>/…: the schemas
	// that a logical cluster has bound. It needs no object that grants access.
	APIResourceSchemas = virtualWorkspaceMount("apiresourceschema", "")
	// InitializingWorkspaces is /services/initializingworkspaces/<logical cluster>:<type>/clusters/<name|path|*>/…:
	// workspaces that wait for the initializer of a WorkspaceType.
	InitializingWorkspaces = virtualWorkspaceMount("initializingworkspaces", ":")
	// TerminatingWorkspaces is the same for the terminator.
	TerminatingWorkspaces = virtualWorkspaceMount("terminatingworkspaces", ":")
	// Replication is /services/replication/<provider>/<slice>/clusters/<name|path|*>/…: the replicated
	// objects of a CachedResource, read-only. The endpoint slice grants access.
	Replication = virtualWorkspaceMount("replication", "/")
)

// VirtualWorkspaceMounts are the mounts of virtual workspaces, which are part of ShardMounts.
func VirtualWorkspaceMounts() []*Mount {
	return []*Mount{APIExports, APIResourceSchemas, InitializingWorkspaces, TerminatingWorkspaces, Replication}
}

// VirtualWorkspacePath returns the URL path of a virtual workspace, up to the logical cluster of the objects.
func (m *Mount) VirtualWorkspacePath(cluster logicalcluster.Name, object string) string {
	return m.Prefix + cluster.String() + m.separator + object
}

func virtualWorkspaceMount(name, separator string) *Mount {
	return &Mount{
		Prefix:    ServicesPrefix + name + "/",
		Parse:     func(below string) (Location, error) { return parseVirtualWorkspace(below, separator) },
		Wildcard:  listOrWatchOrRead,
		separator: separator,
	}
}

// parseVirtualWorkspace parses <cluster><separator><name>/clusters/<cluster>/rest.
func parseVirtualWorkspace(below, separator string) (Location, error) {
	cluster, rest := cutSegment(below)
	name := ""
	switch separator {
	case "/":
		name, rest = cutSegment(rest[1:])
	case ":":
		at := strings.LastIndexByte(cluster, ':')
		if at < 0 {
			return Location{}, &InvalidURLError{Segment: cluster, Reason: "a workspace type is specified as <logical cluster>:<name>"}
		}
		cluster, name = cluster[:at], cluster[at+1:]
	default:
	}
	if separator != "" && (len(name) > content.DNS1123SubdomainMaxLength || len(content.IsDNS1123Subdomain(name)) > 0) {
		return Location{}, &InvalidURLError{Segment: name, Reason: "the name of the object that grants access consists of lower-case letters, digits, hyphens and dots"}
	}
	l, err := parseCluster(cluster + "/")
	if err != nil || l.Wildcard {
		return Location{}, &InvalidURLError{Segment: cluster, Reason: "the logical cluster of a virtual workspace must be a name or a path"}
	}
	below, found := strings.CutPrefix(rest, Clusters.Prefix)
	if !found {
		first, _ := cutSegment(rest[1:])
		return Location{}, &InvalidURLError{Segment: first, Reason: "the URL of a virtual workspace must continue with " + Clusters.Prefix + "<name> or " + Clusters.Prefix + Wildcard}
	}
	in, err := parseCluster(below)
	if err != nil {
		return Location{}, err
	}
	l.VirtualWorkspace, l.Rest = &VirtualWorkspaceLocation{Name: name, Path: in.Path, Wildcard: in.Wildcard}, in.Rest
	return l, nil
}
