// Package request defines the Scope of a request, which is stored in its context, the URL forms of
// scopes, and the rules for names.
//
// All layers below the HTTP filters determine the tenant of a request with this package only. It imports no other
// package of this module.
//
//	/clusters/<name|path|*>/…                       a logical cluster, or all of a shard
//	/services/cache/shards/<name|*>/clusters/<…>/…  the same on the cache server, below a shard
//	/services/admin/…                               resources of the installation, on any shard
//
// Package identity determines the identities of a user in a logical cluster. Package hashrange defines shard ranges,
// which shardselector parses. Packages fieldmanagers, patterns, schemacosts, patchcosts, values, quantities and rsakeys
// limit the cost of requests.
package request

import (
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
)

const (
	// Wildcard is the URL segment for all logical clusters of a shard, or all shards of a cache server.
	Wildcard = "*"
	// SystemPrefix is the prefix of the names of system logical clusters, which are not paths.
	SystemPrefix = "system:"

	// ShardAnnotation is the shard of the original.
	//
	//reference:metadata replicas | cache server
	ShardAnnotation = "kcp.io/shard"
	// IdentityAnnotation is the identity of the export of a stored object. It is set and removed with each
	// write, and is not visible to clients.
	//
	//reference:metadata objects of bound APIs, in etcd | shard
	IdentityAnnotation = "internal.apis.kcp.io/identity"
	// OriginalVersionAnnotation is the resourceVersion of the original object, which differs from the
	// resourceVersion of the replica.
	//
	//reference:metadata replicas | replication
	OriginalVersionAnnotation = "cache.kcp.io/original-resource-version"
	// OriginalUIDAnnotation is the UID of the original.
	//
	//reference:metadata replicas | replication
	OriginalUIDAnnotation = "cache.kcp.io/original-resource-UID"
	// DeletingAnnotation is the metadata.deletionTimestamp of the original. Clients cannot set that field.
	//
	//reference:metadata replicas | replication
	DeletingAnnotation = "cache.shardplane.io/deleting"
	// ScopeAnnotation is the scope of the replicas of an object: installation (the default), or another value
	// such as region to keep them in the region.
	//
	//reference:metadata replicated objects | users
	ScopeAnnotation = "cache.shardplane.io/scope"
	// ScopeInstallation is the default of ScopeAnnotation.
	ScopeInstallation = "installation"

	// MaxNameLength is the maximum length in bytes of the name of a shard, and of a segment of the name
	// or path of a logical cluster.
	//
	//reference:none
	MaxNameLength  = 63
	identityLength = 64
)

// Cluster is the logical cluster of a request: one, or all of the shard.
type Cluster struct {
	// Name is the resolved name. It is empty if and only if Wildcard is set.
	Name logicalcluster.Name
	// Wildcard is set for requests to /clusters/*.
	Wildcard bool
}

// String returns the name or "*".
func (c Cluster) String() string {
	if c.Wildcard {
		return Wildcard
	}
	return c.Name.String()
}

// Shard is the shard of a request to a cache server: one or all.
type Shard struct {
	// Name is empty if and only if Wildcard is set.
	Name string
	// Wildcard is set for requests to /shards/*.
	Wildcard bool
}

// String returns the name or "*".
func (s Shard) String() string {
	if s.Wildcard {
		return Wildcard
	}
	return s.Name
}

// IsSystem reports whether a logical cluster belongs to the system of a shard. Users have no access.
func IsSystem(name logicalcluster.Name) bool { return strings.HasPrefix(name.String(), SystemPrefix) }

// ValidName reports whether s, e.g. the name of a shard, has only lower-case letters, digits and inner hyphens.
func ValidName(s string) bool {
	if s == "" || len(s) > MaxNameLength || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return r != '-' && !isLowerOrDigit(r) })
}

func isLowerOrDigit(r rune) bool { return 'a' <= r && r <= 'z' || '0' <= r && r <= '9' }

// ValidClusterName reports whether name is a valid name of a logical cluster. Name.IsValid accepts anything that
// starts with "system:", including slashes and dots.
func ValidClusterName(name logicalcluster.Name) bool {
	return ValidName(strings.TrimPrefix(name.String(), SystemPrefix))
}

// ValidIdentity reports whether s is a valid identity of an exported API, and can be a segment of keys.
func ValidIdentity(s string) bool {
	return s != "" && len(s) <= identityLength && !strings.ContainsFunc(s, func(r rune) bool { return !isLowerOrDigit(r) })
}

// ValidPath reports whether path consists of valid names. Unlike Path.IsValid it does not accept the wildcard.
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

// MaxFieldManagers is the maximum number of entries in metadata.managedFields. Each write compares all entries with
// all changed fields, even after the end of the request: 16,000 entries and 40,000 fields take a minute of CPU time.
//
//reference:limit object | all objects: `metadata.managedFields` | 403; 400 in a request
const MaxFieldManagers = 128

// Extra attributes and names of users. Only authenticators may set them.
const (
	// ExtraScopes restricts a user to logical clusters. Each value is a comma-separated list of
	// cluster:<name>. At least one scope of each value must match.
	ExtraScopes = "authentication.kcp.io/scopes"
	// ExtraClusterName is the logical cluster of a service account, or of the issuer of the user.
	ExtraClusterName = "authentication.kcp.io/cluster-name"
	// ExtraWarrant contains further identities in JSON. The user has their permissions as well.
	ExtraWarrant = "authorization.kcp.io/warrant"
	// ExtraAuthorizationClusterName is the logical cluster in requests to an external authorizer.
	ExtraAuthorizationClusterName = "authorization.kcp.io/cluster-name"

	// ReservedPrefix is the prefix of user and group names that only the installation may assign.
	ReservedPrefix = SystemPrefix
	// GlobalAccountPrefix is the prefix of the name of a service account in other logical clusters.
	GlobalAccountPrefix = "system:kcp:serviceaccount:"
	// GroupPrefix is the prefix of system groups.
	GroupPrefix = "system:kcp:"
	// GroupBindingPrefix is the prefix of groups that identify the APIBinding of a request.
	GroupBindingPrefix = "apis.kcp.io:binding:"
	// GroupAdmin is the group of administrators of the installation. They have all permissions in all logical
	// clusters, and may list and watch all of them.
	GroupAdmin = "system:kcp:admin"
	// GroupLogicalClusterAdmin manages logical clusters. It is only used by the servers themselves.
	GroupLogicalClusterAdmin = "system:kcp:logical-cluster-admin"
	// GroupExternalLogicalClusterAdmin manages logical clusters on other servers.
	GroupExternalLogicalClusterAdmin = "system:kcp:external-logical-cluster-admin"
	// GroupWorkspaceBootstrapper initializes new workspaces. Unlike GroupAdmin, it owns the objects that it creates.
	GroupWorkspaceBootstrapper = "system:kcp:tenancy:workspace-bootstrapper"
	// GroupShards are the shards. They may read all objects of each other, and write their own in root
	// and on the cache server. The user name of a shard is ShardUserPrefix and its name.
	GroupShards     = "system:kcp:shards"
	ShardUserPrefix = "system:shard:"
	// GroupCacheReaders may read all objects on cache servers.
	GroupCacheReaders = "shardplane:cache:readers"

	// ScopeClusterPrefix is the prefix of a scope.
	ScopeClusterPrefix = "cluster:"
)
