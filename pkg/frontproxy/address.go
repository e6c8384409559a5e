package frontproxy

import (
	"net/url"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"

	"github.com/shardplane/shardplane/pkg/request"
)

// shardMounts is the table of what is forwarded to shards.
var shardMounts = request.ShardMounts()

// address is what the escaped path of a request names.
type address struct {
	// path is the name or path of the logical cluster that the request is to reach, or
	// the wildcard of a view. Without an address that leads somewhere, valid is false.
	path  string
	valid bool
	// all is set instead for /clusters/*, which is valid for administrators.
	all bool
	// view is set for requests through a view, and shard if the path names the shard of which
	// the wildcard means all logical clusters.
	view  *viewAddress
	shard string
	// rest is what follows, escaped.
	rest string
}

// viewAddress is a view in the path of a request.
type viewAddress struct {
	mount *request.Mount
	// granting is the name or path of the logical cluster that grants it, by an object.
	granting, object string
}

// shardsPrefix starts the URLs of the virtual workspaces of one shard: /shards/<name>/services/….
// A shard can publish them as spec.virtualWorkspaceURL of its Shard object.
var shardsPrefix = request.Shards.Prefix

// viewSegments is how many segments of a path a view takes at most.
const viewSegments = 4

// addressOf takes an escaped path apart. The error says why that of a view is malformed.
func addressOf(path string) (address, error) {
	if below, ok := strings.CutPrefix(path, shardsPrefix); ok {
		return shardAddressOf(below)
	}
	mount, below := request.MountOf(path, shardMounts...)
	switch {
	case mount == nil || mount.Whole:
		return address{rest: path}, nil
	case mount != request.Clusters:
		return viewAddressOf(mount, below)
	}
	var at address
	var segment string
	segment, at.rest = splitEscaped(below)
	at.path, at.valid = clusterPath(segment)
	text, err := url.PathUnescape(segment)
	at.all = err == nil && text == request.Wildcard
	return at, nil
}

// shardAddressOf takes apart what follows shardsPrefix.
func shardAddressOf(below string) (address, error) {
	name, rest := splitEscaped(below)
	mount, view := request.MountOf(rest, request.VirtualWorkspaceMounts()...)
	switch {
	case !request.ValidName(name):
		return address{}, &request.InvalidURLError{Segment: name, Reason: "a shard's name consists of lower-case letters, digits and hyphens"}
	case mount == nil:
		return address{}, &request.InvalidURLError{Segment: name, Reason: "what follows the name of a shard is the path of a virtual workspace, such as /services/apiexport/"}
	}
	at, err := viewAddressOf(mount, view)
	at.shard = name
	return at, err
}

// viewAddressOf takes apart what follows the prefix of a mount. Segments are unescaped one
// by one, so that none of them becomes two.
func viewAddressOf(mount *request.Mount, below string) (at address, err error) {
	decoded := ""
	at.rest = "/" + below
	for range viewSegments {
		if at.rest == "" {
			break
		}
		var segment, text string
		segment, at.rest = splitEscaped(at.rest[1:])
		if text, err = url.PathUnescape(segment); err != nil || strings.Contains(text, "/") {
			return at, &request.InvalidURLError{Segment: segment, Reason: "a slash, or what is no character, cannot be a part of it"}
		}
		decoded += text
		var l request.Location
		if l, err = mount.Parse(decoded); err == nil {
			at.view = &viewAddress{mount: mount, granting: l.Path.String(), object: l.VirtualWorkspace.Name}
			at.path = l.VirtualWorkspace.Path.String()
			if l.VirtualWorkspace.Wildcard {
				at.path = request.Wildcard
			}
			at.valid = !isOfSystem(at.view.granting) && !isOfSystem(at.path)
			return at, nil
		}
		decoded += "/"
	}
	return at, err
}

// splitEscaped takes the first segment off an escaped path.
func splitEscaped(path string) (segment, rest string) {
	if at := strings.IndexByte(path, '/'); at >= 0 {
		return path[:at], path[at:]
	}
	return path, ""
}

// clusterPath returns the name or path that an escaped segment holds. It is none for the
// wildcard, and for system clusters, of which each shard has its own.
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

// clusterOf returns what is known of the logical cluster that an address means: its name,
// also where it was resolved to one, and its path.
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
