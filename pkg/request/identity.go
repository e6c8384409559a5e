package request

// What of a user says where it comes from and what it may do where: keys of
// extra attributes, what names and values start with, and groups of the system.
// Only authenticators may set them.
const (
	// ExtraScopes restricts a user to logical clusters. Each value is a list
	// of cluster:<name>, separated by commas, one of which must fit; all values
	// must.
	ExtraScopes = "authentication.kcp.io/scopes"
	// ExtraClusterName is the logical cluster whose service account a user is, or of whose
	// issuers.
	ExtraClusterName = "authentication.kcp.io/cluster-name"
	// ExtraWarrant holds further identities as JSON, whose permissions the user
	// has in addition to its own.
	ExtraWarrant = "authorization.kcp.io/warrant"
	// ExtraAuthorizationClusterName is the logical cluster that an external
	// authorizer is asked about.
	ExtraAuthorizationClusterName = "authorization.kcp.io/cluster-name"

	// ReservedPrefix starts the names of users and groups that only the installation gives.
	ReservedPrefix = SystemPrefix

	// GlobalAccountPrefix starts the name that a service account has in other
	// logical clusters than its own.
	GlobalAccountPrefix = "system:kcp:serviceaccount:"

	// GroupPrefix starts the names of the system's own groups.
	GroupPrefix = "system:kcp:"
	// GroupBindingPrefix starts the names of groups by which requests say through
	// which binding of an API they came.
	GroupBindingPrefix = "apis.kcp.io:binding:"
	// GroupAdmin is the group of the administrators of a Shardplane
	// installation: they may do everything in every logical cluster, and list and watch
	// across all of them through the front-proxy.
	GroupAdmin = "system:kcp:admin"
	// GroupLogicalClusterAdmin creates and deletes logical clusters, and leads
	// their life cycle: a group of the servers' own requests.
	GroupLogicalClusterAdmin = "system:kcp:logical-cluster-admin"
	// GroupExternalLogicalClusterAdmin is for what leads logical clusters from
	// other servers.
	GroupExternalLogicalClusterAdmin = "system:kcp:external-logical-cluster-admin"
	// GroupWorkspaceBootstrapper fills new workspaces; like GroupAdmin, but what
	// it creates belongs to it.
	GroupWorkspaceBootstrapper = "system:kcp:tenancy:workspace-bootstrapper"

	// GroupShards are the shards among themselves: they read everything of each other, and
	// write what is their own in root and on the cache server. Who is a member is the user
	// ShardUserPrefix with the name of the shard.
	GroupShards     = "system:kcp:shards"
	ShardUserPrefix = "system:shard:"

	// GroupCacheReaders read everything on cache servers.
	GroupCacheReaders = "shardplane:cache:readers"

	// ScopeClusterPrefix starts a scope that is one logical cluster.
	ScopeClusterPrefix = "cluster:"
)
