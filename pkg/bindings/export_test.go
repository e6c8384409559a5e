package bindings

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// Alone returns a configuration without system resources and APIConversions.
func Alone(c Config) Config {
	c.System = func(schema.GroupResource) *definitions.Definition { return nil }
	c.SystemIdentity = func(schema.GroupResource) (string, error) { return "", nil }
	c.Conversion = func(_ context.Context, key client.Key) (*apisv1alpha1.APIConversion, error) {
		return nil, apierrors.NewNotFound(apisv1alpha1.Resource("apiconversions"), key.Name)
	}
	return c
}

// Next returns the number of callers that wait for the next read of stored bindings.
func (x *Index) Next(cluster logicalcluster.Name) int {
	x.stored.mu.Lock()
	defer x.stored.mu.Unlock()
	if next := x.stored.next[cluster]; next != nil {
		return next.waiting
	}
	return 0
}
