package request

import (
	"fmt"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
)

const (
	clustersPrefix = "/clusters/"
	shardsPrefix   = "/shards/"

	// CachePrefix is the URL prefix of the cache server's API.
	CachePrefix = "/services/cache"

	// AuthorizedHeader marks the answers of a shard to requests that it has
	// authorized. The front-proxy takes it off. What a shard answers without it,
	// it would have answered to anybody, and tells that the logical cluster exists.
	AuthorizedHeader = "X-Kcp-Internal-Authorized"
)

// ClusterURL is a request URL path taken apart at its logical cluster.
type ClusterURL struct {
	// Path is the logical cluster as the client wrote it: a name, or a path
	// whose segments are joined by colons. Empty for the wildcard.
	Path logicalcluster.Path
	// Wildcard is set for /clusters/*.
	Wildcard bool
	// Rest is what follows the logical cluster; it starts with a slash.
	Rest string
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

// SplitCluster takes /clusters/<cluster>/rest apart. found is false, and the
// error nil, for a path that does not start with /clusters/. A malformed
// logical cluster gives an *InvalidURLError.
func SplitCluster(urlPath string) (u ClusterURL, found bool, err error) {
	segment, rest, ok := cutSegment(urlPath, clustersPrefix)
	if !ok {
		return ClusterURL{}, false, nil
	}
	if segment == Wildcard {
		return ClusterURL{Wildcard: true, Rest: rest}, true, nil
	}
	path := logicalcluster.NewPath(segment)
	if !ValidPath(path) {
		return ClusterURL{}, true, &InvalidURLError{
			Segment: segment,
			Reason:  "a logical cluster is a name of lower-case letters, digits and hyphens, or a path of such names joined by colons",
		}
	}
	return ClusterURL{Path: path, Rest: rest}, true, nil
}

// SplitShard takes /shards/<shard>/rest apart. found is false, and the error
// nil, for a path that does not start with /shards/. A malformed shard name
// gives an *InvalidURLError.
func SplitShard(urlPath string) (s Shard, rest string, found bool, err error) {
	segment, rest, ok := cutSegment(urlPath, shardsPrefix)
	if !ok {
		return Shard{}, "", false, nil
	}
	if segment == Wildcard {
		return Shard{Wildcard: true}, rest, true, nil
	}
	if !ValidName(segment) {
		return Shard{}, "", true, &InvalidURLError{
			Segment: segment,
			Reason:  "a shard's name consists of lower-case letters, digits and hyphens",
		}
	}
	return Shard{Name: segment}, rest, true, nil
}

// ClusterPath returns the URL path /clusters/<segment> for a name, a path or
// the wildcard.
func ClusterPath(segment string) string { return clustersPrefix + segment }

// ShardPath returns the URL path of a logical cluster of a shard on the cache
// server; either may be the wildcard.
func ShardPath(shard, cluster string) string {
	return CachePrefix + shardsPrefix + shard + clustersPrefix + cluster
}

// cutSegment returns the path segment after prefix and what follows it, which
// is "/" where nothing does.
func cutSegment(urlPath, prefix string) (segment, rest string, found bool) {
	after, ok := strings.CutPrefix(urlPath, prefix)
	if !ok {
		return "", "", false
	}
	segment, rest, _ = strings.Cut(after, "/")
	return segment, "/" + rest, true
}
