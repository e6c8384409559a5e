package request

import (
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
)

const (
	// Wildcard is the URL segment that stands for all logical clusters of a
	// shard, and on the cache server for all shards.
	Wildcard = "*"

	// SystemPrefix starts the names of logical clusters that belong to the
	// system. They contain a colon, but are names and not paths.
	SystemPrefix = "system:"

	// ShardAnnotation names, on objects of a cache server, the shard that they
	// are replicas from. On other servers it means nothing. The annotation of
	// the logical cluster is logicalcluster.AnnotationKey.
	ShardAnnotation = "kcp.io/shard"

	// IdentityAnnotation tells storage the identity of a stored object of a bound
	// API. It is set and removed with each write, and no client sees it.
	IdentityAnnotation = "internal.apis.kcp.io/identity"

	// OriginalVersionAnnotation and OriginalUIDAnnotation carry, on objects of a
	// cache server, the resourceVersion and the UID that the object has on its
	// shard: a replica has a version of its own, and on a cache server of the previous
	// release a UID as well.
	OriginalVersionAnnotation = "cache.kcp.io/original-resource-version"
	// OriginalUIDAnnotation carries the UID.
	OriginalUIDAnnotation = "cache.kcp.io/original-resource-UID"
	// DeletingAnnotation carries, on a replica, since when the object is being deleted: its
	// metadata.deletionTimestamp, which no client can write.
	DeletingAnnotation = "cache.shardplane.io/deleting"
	// ScopeAnnotation says of an object whose replicas are for its region only, or, as for
	// those that do not say it, for the whole installation.
	ScopeAnnotation = "cache.shardplane.io/scope"
	// ScopeInstallation is a value of ScopeAnnotation. Each other one, as region, keeps the
	// replicas in the region.
	ScopeInstallation = "installation"

	// MaxNameLength is the most bytes that a shard's name, or a segment of the
	// name or path of a logical cluster, may have.
	MaxNameLength = 63

	// identityLength is that of a SHA-256 in hexadecimal digits.
	identityLength = 64
)

// Cluster is the logical cluster that a request is for: one by name, or all
// logical clusters of the shard.
type Cluster struct {
	// Name is the resolved name; empty if and only if Wildcard is set.
	Name logicalcluster.Name
	// Wildcard is set for requests below /clusters/*.
	Wildcard bool
}

// String returns the name, or "*" for the wildcard.
func (c Cluster) String() string {
	if c.Wildcard {
		return Wildcard
	}
	return c.Name.String()
}

// Shard is the shard segment of a request to the cache server: one shard by
// name, or all of them. Requests to other servers have none.
type Shard struct {
	// Name is the shard's name; empty if and only if Wildcard is set.
	Name string
	// Wildcard is set for requests below /shards/*.
	Wildcard bool
}

// String returns the name, or "*" for the wildcard.
func (s Shard) String() string {
	if s.Wildcard {
		return Wildcard
	}
	return s.Name
}

// IsSystem reports whether a logical cluster belongs to the system. Each shard
// has its own of these, and they are not for users.
func IsSystem(name logicalcluster.Name) bool {
	return strings.HasPrefix(name.String(), SystemPrefix)
}

// ValidName reports whether s is fit to be the name of a shard, and one segment
// of a path: up to MaxNameLength lower-case letters, digits and inner hyphens.
func ValidName(s string) bool {
	if s == "" || len(s) > MaxNameLength || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// ValidClusterName reports whether name is fit to be the name of a logical
// cluster, and so a segment of URLs and of keys. Name.IsValid does not do: it
// takes anything that starts with "system:", slashes and dots included.
func ValidClusterName(name logicalcluster.Name) bool {
	return ValidName(strings.TrimPrefix(name.String(), SystemPrefix))
}

// ValidIdentity reports whether s is fit to be the identity of an exported API, and
// so a segment of keys: lower-case letters and digits, as many as a hash has at
// most.
func ValidIdentity(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= identityLength
}

// ValidPath reports whether path names one logical cluster, by valid names that
// are joined by colons. Unlike Path.IsValid it does not take the wildcard.
func ValidPath(path logicalcluster.Path) bool {
	if name := logicalcluster.Name(path.String()); IsSystem(name) {
		return ValidClusterName(name)
	}
	for segment := range strings.SplitSeq(path.String(), ":") {
		if !ValidName(segment) {
			return false
		}
	}
	return true
}
