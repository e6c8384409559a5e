package claims

import (
	"context"

	"github.com/shardplane/shardplane/pkg/request"
)

// WithSet returns a context that restricts requests to the storage of the set's resource to the set, and to
// objects of its identity. Lists and watches of all logical clusters include those of the set; a request
// for one of them does not find other objects. Requests to any other storage fail. Functions like
// request.WithCluster remove the restriction.
func WithSet(ctx context.Context, set *Set) context.Context {
	ctx = request.WithIdentity(ctx, set.resource, set.identity)
	return request.WithRestriction(ctx, set)
}

// From returns the set that a request is restricted to, or nil. Its resource is the stored resource of the
// request, e.g. events of the core group also for events.k8s.io.
func From(ctx context.Context) *Set {
	by := request.RestrictionFrom(ctx)
	if by == nil {
		return nil
	}
	return by.(*Set) //nolint:forcetypeassert // no other type exists, and nil would be no restriction
}
