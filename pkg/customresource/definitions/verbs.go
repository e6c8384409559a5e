package definitions

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// served is a resource with its verbs.
type served struct {
	resource schema.GroupResource
	verbs    *Verbs
}

type servedKey struct{}

// WithVerbs returns a context for a request to a virtual workspace which serves a resource with these
// verbs only. The virtual workspace must reject others with 405 Method Not Allowed itself.
func WithVerbs(ctx context.Context, resource schema.GroupResource, verbs Verbs) context.Context {
	return context.WithValue(ctx, servedKey{}, served{resource, &verbs})
}

// Limited returns the definitions with the verbs that are served by a request of ctx. It changes none
// of them, nor the slice.
func Limited(ctx context.Context, all []*Definition) []*Definition {
	limit, ok := ctx.Value(servedKey{}).(served)
	if !ok {
		return all
	}
	limited := make([]*Definition, 0, len(all))
	for _, d := range all {
		if d.Schema.Resource == limit.resource {
			copied := *d
			copied.Verbs, d = limit.verbs, &copied
		}
		limited = append(limited, d)
	}
	return limited
}
