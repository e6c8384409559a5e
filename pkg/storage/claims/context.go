package claims

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/request"
)

// WithSet returns a context whose requests to the storage of the set's resource, and of
// no other, are restricted to the set, and for objects of its identity. Lists and watches
// of all logical clusters are for those of the set; what a request for one of them may not
// see is not there. WithCluster and what is like it end the restriction.
func WithSet(ctx context.Context, set *Set) context.Context {
	ctx = request.WithIdentity(ctx, set.resource, set.identity)
	return request.WithRestriction(ctx, set.resource, set)
}

// From returns the set that requests to the storage of the resource are restricted to,
// or nil.
func From(ctx context.Context, resource schema.GroupResource) *Set {
	set, _ := request.RestrictionFrom(ctx, resource).(*Set)
	return set
}
