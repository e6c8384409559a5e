package request

import "context"

const (
	// InternalHeaderPrefix starts the names of headers that servers of an installation send each
	// other. Front-proxies take those of clients away.
	InternalHeaderPrefix = "X-Kcp-Internal-"

	// EnteredHeader says in each answer of a shard whether it was given after
	// somebody was allowed to enter the logical cluster: "true" or "false". The
	// front-proxy takes it off. What a shard answers otherwise, it would have
	// answered to anybody, and tells that the logical cluster exists.
	AccessAuthorizedHeader = InternalHeaderPrefix + "Entered"

	// ReadyTimeoutHeader says, in a request that a front-proxy forwards, how long it
	// is to wait for a new logical cluster to become ready, such as 9.5s.
	ReadyTimeoutHeader = InternalHeaderPrefix + "Ready-Timeout"

	// MergedHeader says, with the value "true", in a request for all logical clusters that a
	// front-proxy merges the answers of all shards, for an administrator.
	MergedHeader = InternalHeaderPrefix + "Merged"

	// DataHeader says, in a request of a front-proxy that follows what a shard has, which data it
	// has seen up to the resourceVersion, and is empty where it has seen none; in the answer, which
	// data it sees.
	DataHeader = InternalHeaderPrefix + "Data"
)

// WithEntry returns a context for which entered is called when it turns out that
// the sender of the request may enter the logical cluster. It is not called for
// contexts that are made from it for another logical cluster.
func WithEntry(ctx context.Context, entered func()) context.Context {
	s := ScopeFrom(ctx)
	s.entered = entered
	return WithScope(ctx, s)
}

// Entered tells the server of a request that its sender may enter the logical
// cluster of ctx. Authorizers call it as soon as they know, before they decide
// about the request itself; more than once makes no difference.
func AccessAuthorized(ctx context.Context) {
	if s := scopeFrom(ctx); s.entered != nil {
		s.entered()
	}
}

// WithMerged returns a context of a request for all logical clusters whose answer a front-proxy
// merges with those of other shards.
func WithMerged(ctx context.Context) context.Context {
	s := ScopeFrom(ctx)
	s.merged = true
	return WithScope(ctx, s)
}

// IsMerged reports whether a front-proxy merges the answer with those of other shards.
func IsMerged(ctx context.Context) bool { return scopeFrom(ctx).merged }
