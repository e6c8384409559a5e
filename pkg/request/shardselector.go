package request

import (
	"context"

	"k8s.io/apimachinery/pkg/sharding"
)

type shardSelectorKey struct{}

type shardSelector struct {
	resource string
	selector sharding.Selector
}

// WithShardSelector returns a context whose lists and watches of the resource,
// and of no other, are for the part of the objects that the selector (KEP-5866)
// selects. It brings a selector that is parsed already past upstream's registry,
// which parses what is in the query, for each request anew. The resource has no
// group: one storage may serve two.
func WithShardSelector(ctx context.Context, resource string, selector sharding.Selector) context.Context {
	return context.WithValue(ctx, shardSelectorKey{}, shardSelector{resource, selector})
}

// ShardSelectorFrom returns the selector for lists and watches of the resource,
// or nil.
func ShardSelectorFrom(ctx context.Context, resource string) sharding.Selector {
	s, ok := ctx.Value(shardSelectorKey{}).(shardSelector)
	if !ok || s.resource != resource {
		return nil
	}
	return s.selector
}
