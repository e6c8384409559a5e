package request

import (
	"fmt"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
)

// ViewsPrefix starts the URLs of all views.
const ServicesPrefix = "/services/"

// CachePrefix is the URL prefix of the cache server's API.
const CachePrefix = ServicesPrefix + "cache"

// Mount is a part of a server's URLs below which requests have a scope. Each kind of
// server has one table of them: ShardMounts, CacheMounts.
type Mount struct {
	// Prefix starts the paths. It ends with a slash. Form is what they are like.
	Prefix, Form string
	// Parse takes apart what follows the prefix. A malformed name gives an
	// *InvalidURLError.
	Parse func(below string) (Location, error)
	// Wildcard reports whether a request may be for all logical clusters, or all
	// shards, by its verb and whether it is for a resource.
	Wildcard func(verb string, resource bool) bool

	// Whole is set where requests are for no logical cluster, and no shard.
	Whole bool

	// separator is between the logical cluster that grants a view and the name of the
	// object that does.
	separator string
}

var (
	// Clusters is /clusters/<name|path|*>/…, on shards and front-proxies.
	Clusters = &Mount{Prefix: "/clusters/", Form: "/clusters/<name>", Parse: parseCluster, Wildcard: listOrWatch}
	// CacheShards is /services/cache/shards/<name|*>/clusters/<name|*>/… on a
	// cache server: the same, below a shard. Of everything it also has what is
	// the same everywhere: discovery and schemas.
	CacheShards = &Mount{Prefix: CachePrefix + Shards.Prefix, Form: CachePrefix + Shards.Form, Parse: parseShard, Wildcard: listOrWatchOrRead}
	// Shards is CacheShards, for who has a cache server's prefix behind its name.
	Shards = &Mount{Prefix: "/shards/", Form: "/shards/<name>/clusters/<name>", Parse: parseShard, Wildcard: listOrWatchOrRead}
)

// MountOf returns which of mounts a URL path is below, escaped or not, and what follows its
// prefix; nil where it is below none.
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

// Location is a URL path taken apart at the scope that it names.
type Location struct {
	// Mount is what the path is below.
	Mount *Mount
	// Shard is set on a cache server only.
	Shard Shard
	// Path is the logical cluster as the client wrote it: a name, or a path
	// whose segments are joined by colons. Empty for the wildcard, and where the
	// URL ends at the shard.
	Path logicalcluster.Path
	// Wildcard is set for /clusters/*.
	Wildcard bool
	// View is set where the URL is of a view, which the logical cluster grants.
	VirtualWorkspace *VirtualWorkspaceLocation
	// Rest is what follows; it starts with a slash.
	Rest string
}

// ViewLocation is the part of a URL path that names a view.
type VirtualWorkspaceLocation struct {
	// Name is the name of the object that grants it, if one does.
	Name string
	// Path is the logical cluster whose content is seen, as the client wrote it. Empty
	// for the wildcard.
	Path logicalcluster.Path
	// Wildcard is set for all that may be seen.
	Wildcard bool
}

// InvalidURLError says why the logical cluster or shard segment of a URL is
// not well-formed. Servers answer it with 400, or, where the contract says so,
// with what they answer for a logical cluster that does not exist.
type InvalidURLError struct {
	Segment string
	Reason  string
}

func (e *InvalidURLError) Error() string {
	return fmt.Sprintf("invalid URL segment %q: %s", e.Segment, e.Reason)
}

// Locate takes a URL path apart that is below one of mounts. found is false, and
// the error nil, where it is below none. A malformed shard or logical cluster
// gives an *InvalidURLError.
func Locate(urlPath string, mounts ...*Mount) (l Location, found bool, err error) {
	mount, below := MountOf(urlPath, mounts...)
	if mount == nil {
		return Location{}, false, nil
	}
	l, err = mount.Parse(below)
	l.Mount = mount
	return l, true, err
}

// ClusterPath returns the URL path /clusters/<segment> for a name, a path or
// the wildcard.
func ClusterPath(segment string) string { return Clusters.Prefix + segment }

// ShardPath returns the URL path of a logical cluster of a shard on the cache
// server; either may be the wildcard.
func ShardPath(shard, cluster string) string {
	return CacheShards.Prefix + shard + ClusterPath(cluster)
}

// parseCluster takes <cluster>/rest apart.
func parseCluster(below string) (Location, error) {
	segment, rest := cutSegment(below)
	if segment == Wildcard {
		return Location{Wildcard: true, Rest: rest}, nil
	}
	path := logicalcluster.NewPath(segment)
	if !ValidPath(path) {
		return Location{}, &InvalidURLError{
			Segment: segment,
			Reason:  "a logical cluster is a name of lower-case letters, digits and hyphens, or a path of such names joined by colons",
		}
	}
	return Location{Path: path, Rest: rest}, nil
}

// parseShard takes <shard>/clusters/<cluster>/rest apart, or <shard>/rest.
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
		return Location{}, &InvalidURLError{
			Segment: segment,
			Reason:  "a shard's name consists of lower-case letters, digits and hyphens",
		}
	}
	return l, err
}

// cutSegment returns the first segment and what follows it, which is "/" where
// nothing does.
func cutSegment(path string) (segment, rest string) {
	segment, rest, _ = strings.Cut(path, "/")
	return segment, "/" + rest
}
