package replication

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/pkg/client"
)

const comparePage = 500

// EachObject calls visit for all objects of a resource. It reads them in pages.
func EachObject(ctx context.Context, scope client.Scope, resource Resource, visit func(*unstructured.Unstructured)) error {
	clients, err := scope.Dynamic()
	if err != nil {
		return err
	}
	opts := metav1.ListOptions{Limit: comparePage}
	for {
		page, err := clients.Resource(resource.GroupVersionResource).List(ctx, opts)
		if err != nil {
			return err
		}
		for i := range page.Items {
			visit(&page.Items[i])
		}
		if opts.Continue = page.GetContinue(); opts.Continue == "" {
			return nil
		}
	}
}

// GetObject returns an object, or nil if it does not exist.
func GetObject(ctx context.Context, factory *client.Factory, resource Resource, key client.Key) (*unstructured.Unstructured, error) {
	clients, err := factory.Cluster(key.Cluster.Path()).Dynamic()
	if err != nil {
		return nil, err
	}
	obj, err := clients.Resource(resource.GroupVersionResource).Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return obj, err
}
