package frontproxy

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/util/sets"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
)

var shardMounts = request.ShardMounts()

type address struct {
	// path is the name or path of the logical cluster, or the wildcard of a virtual workspace. valid is
	// false if the path does not refer to a logical cluster.
	path  string
	valid bool
	// all is set for /clusters/*, which only administrators may use.
	all bool
	// virtualWorkspace is set for virtual workspaces. shard is set if the path specifies the shard of a wildcard.
	virtualWorkspace *virtualWorkspaceAddress
	shard            string
	rest             string
}

type virtualWorkspaceAddress struct {
	mount *request.Mount
	// granting is the name or path of the logical cluster that contains the object which grants access.
	granting, object string
}

// shardsPrefix starts the URLs of the virtual workspaces of one shard: /shards/<name>/services/…. A
// shard can publish them as spec.virtualWorkspaceURL of its Shard object.
var shardsPrefix = request.Shards.Prefix

const virtualWorkspaceSegments = 4

// addressOf parses an escaped path. It returns an error if the path of a virtual workspace is malformed.
func addressOf(path string) (address, error) {
	if below, ok := strings.CutPrefix(path, shardsPrefix); ok {
		return shardAddressOf(below)
	}
	mount, below := request.MountOf(path, shardMounts...)
	switch {
	case mount == nil || mount.Whole:
		return address{rest: path}, nil
	case mount != request.Clusters:
		return virtualWorkspaceAddressOf(mount, below)
	}
	var at address
	var segment string
	segment, at.rest = splitEscaped(below)
	at.path, at.valid = clusterPath(segment)
	text, err := url.PathUnescape(segment)
	at.all = err == nil && text == request.Wildcard
	return at, nil
}

// parsedPath is an escaped path with the result of addressOf.
type parsedPath struct {
	escaped string
	at      address
	err     error
}

// of returns the parsed path of a request, which is p unless the path has changed.
func (p parsedPath) of(r *http.Request) parsedPath {
	if escaped := r.URL.EscapedPath(); escaped != p.escaped {
		at, err := addressOf(escaped)
		return parsedPath{escaped: escaped, at: at, err: err}
	}
	return p
}

func shardAddressOf(below string) (address, error) {
	name, rest := splitEscaped(below)
	mount, virtualWorkspace := request.MountOf(rest, request.VirtualWorkspaceMounts()...)
	switch {
	case !request.ValidName(name):
		return address{}, &request.InvalidURLError{Segment: name, Reason: "a shard's name consists of lower-case letters, digits and hyphens"}
	case mount == nil:
		return address{}, &request.InvalidURLError{Segment: name, Reason: "the name of a shard must be followed by the path of a virtual workspace, such as /services/apiexport/"}
	}
	at, err := virtualWorkspaceAddressOf(mount, virtualWorkspace)
	at.shard = name
	return at, err
}

// virtualWorkspaceAddressOf parses the path below a mount. An escaped slash does not separate segments.
func virtualWorkspaceAddressOf(mount *request.Mount, below string) (at address, err error) {
	decoded := ""
	at.rest = "/" + below
	for range virtualWorkspaceSegments {
		if at.rest == "" {
			break
		}
		var segment, text string
		segment, at.rest = splitEscaped(at.rest[1:])
		if text, err = url.PathUnescape(segment); err != nil || strings.Contains(text, "/") {
			return at, &request.InvalidURLError{Segment: segment, Reason: "a segment must not contain a slash or an invalid escape"}
		}
		decoded += text
		var l request.Location
		if l, err = mount.Parse(decoded); err == nil {
			at.virtualWorkspace = &virtualWorkspaceAddress{mount: mount, granting: l.Path.String(), object: l.VirtualWorkspace.Name}
			at.path = l.VirtualWorkspace.Path.String()
			if l.VirtualWorkspace.Wildcard {
				at.path = request.Wildcard
			}
			at.valid = !isOfSystem(at.virtualWorkspace.granting) && !isOfSystem(at.path)
			return at, nil
		}
		decoded += "/"
	}
	return at, err
}

func splitEscaped(path string) (segment, rest string) {
	if at := strings.IndexByte(path, '/'); at >= 0 {
		return path[:at], path[at:]
	}
	return path, ""
}

// clusterPath returns the name or path in an escaped segment, except for wildcards and clusters of the system.
func clusterPath(segment string) (string, bool) {
	path, err := url.PathUnescape(segment)
	if err != nil || strings.Contains(path, "/") || isOfSystem(path) {
		return "", false
	}
	l, err := request.Clusters.Parse(path)
	if err != nil || l.Wildcard {
		return "", false
	}
	return path, true
}

func isOfSystem(path string) bool { return strings.HasPrefix(path, request.SystemPrefix) }

// clusterOf returns the name and the path of the logical cluster of an address, as far as they are known.
func clusterOf(at address, resolved string) (name logicalcluster.Name, path logicalcluster.Path) {
	if !at.valid || at.path == request.Wildcard {
		return logicalcluster.Name(resolved), logicalcluster.None
	}
	path = logicalcluster.NewPath(at.path)
	if own, ok := path.Name(); ok {
		return own, logicalcluster.None
	}
	return logicalcluster.Name(resolved), path
}

var requestInfos = &genericapirequest.RequestInfoFactory{
	APIPrefixes:          sets.NewString("api", "apis"),
	GrouplessAPIPrefixes: sets.NewString("api"),
}

func requestInfo(r *http.Request, rest string) (*genericapirequest.RequestInfo, error) {
	return requestInfos.NewRequestInfo(&http.Request{Method: r.Method, URL: &url.URL{Path: rest, RawQuery: r.URL.RawQuery}})
}

func unescapedRest(rest string) string {
	path, err := url.PathUnescape(rest)
	if err != nil || path == "" {
		return "/"
	}
	return path
}

// isLongRunning reports whether a request lasts until one of the sides ends it.
func isLongRunning(r *http.Request, path parsedPath) bool {
	return isWatch(r, path) || r.Header.Get("Upgrade") != ""
}

// isWatch reports whether a shard treats r as a watch. A resource or object may be named "watch", too.
func isWatch(r *http.Request, path parsedPath) bool {
	if r.Method != http.MethodGet || path.err != nil {
		return false
	}
	if !strings.Contains(r.URL.Path, "/watch/") && !strings.Contains(r.URL.RawQuery, "watch") && !strings.Contains(r.URL.RawQuery, "%") {
		return false
	}
	// The query is omitted, because upstream logs invalid ones.
	bare := http.Request{Method: r.Method, URL: &url.URL{}}
	at := path.at
	// Servers of the mapping file may have logical clusters anywhere in their paths.
	if _, below, found := strings.Cut(at.rest, request.Clusters.Prefix); found && !at.valid {
		_, at.rest = splitEscaped(below)
	}
	info, err := requestInfo(&bare, unescapedRest(at.rest))
	if err != nil || !info.IsResourceRequest {
		return false
	}
	switch info.Verb {
	case "watch":
		return true
	case "list":
		values := r.URL.Query()["watch"]
		return len(values) > 0 && !strings.EqualFold(values[0], "false") && values[0] != "0"
	default:
		return false
	}
}
