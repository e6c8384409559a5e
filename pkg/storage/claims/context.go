package claims

import (
	"context"

	"github.com/shardplane/shardplane/pkg/request"
)

// WithSet returns a context whose requests to the storage of the set's resource
// are restricted to the set, and for objects of its identity. Lists and watches
// of all logical clusters are for those of the set; what a request for one of them may not
// see is not there. Requests to any other storage fail. WithCluster and what is like it end
// the restriction.
func WithSet(ctx context.Context, set *Set) context.Context {
	ctx = request.WithIdentity(ctx, set.resource, set.identity)
	return request.WithRestriction(ctx, set)
}

// From returns the set that a request is restricted to, or nil. Its resource is that of the
// request as it is stored, e.g. events of the core group also for events.k8s.io.
func From(ctx context.Context) *Set {
	by := request.RestrictionFrom(ctx)
	if by == nil {
		return nil
	}
	return by.(*Set) //nolint:forcetypeassert // there is no other, and nil would be no restriction
}
