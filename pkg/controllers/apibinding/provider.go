package apibinding

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
)

// Resolve returns the logical cluster of an export by its path, or "" if there is none.
// The error is client.ErrIncomplete if there may be one on another shard.
type Resolve func(path logicalcluster.Path, export string) (logicalcluster.Name, error)

// providerOf returns the logical cluster of a binding's export, or "". Once known it
// stays, wherever the path leads later.
func providerOf(cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding, resolve Resolve) (logicalcluster.Name, error) {
	if known := binding.Status.APIExportClusterName; known != "" {
		return logicalcluster.Name(known), nil
	}
	ref := binding.Spec.Reference.Export
	if ref == nil {
		return "", nil
	}
	if ref.Path == "" {
		return cluster, nil
	}
	// The label says whose export it was that the binding was permitted for. The path
	// may lead to another logical cluster by now, which permitted nothing.
	name, err := resolve(logicalcluster.NewPath(ref.Path), ref.Name)
	if err != nil || binding.Labels[apis.ExportLabel] != apis.ExportLabelValue(name, ref.Name) {
		return "", err
	}
	return name, nil
}

// ReadSchema reads a schema of this shard, which local reaches, or that of the shard in
// the key, as it is there, from its replica on a cache server.
func ReadSchema(ctx context.Context, local, cache *client.Factory, key client.Key) (*apis.APIResourceSchema, error) {
	if key.Shard == "" {
		return readSchema(ctx, local.Cluster(key.Cluster.Path()), key.Name)
	}
	replica, err := readSchema(ctx, cache.Shard(key.Shard).Cluster(key.Cluster.Path()), key.Name)
	if err == nil {
		replica.UID = types.UID(replica.Annotations[request.OriginalUIDAnnotation])
	}
	return replica, err
}

// readSchema reads what the SDK's type would lose, too.
func readSchema(ctx context.Context, scope client.Scope, name string) (*apis.APIResourceSchema, error) {
	dynamic, err := scope.Dynamic()
	if err != nil {
		return nil, err
	}
	u, err := dynamic.Resource(kinds.APIResourceSchemas.GroupVersionResource).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return apis.SchemaFrom(u)
}

func schemaKey(provider logicalcluster.Name, name string) client.Key {
	return client.Key{Cluster: provider, Name: name}
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// boundAs returns how a binding has bound a resource, or nil.
func boundAs(binding *apisv1alpha2.APIBinding, group, resource string) *apisv1alpha2.BoundAPIResource {
	for i := range binding.Status.BoundResources {
		if b := &binding.Status.BoundResources[i]; b.Group == group && b.Resource == resource {
			return b
		}
	}
	return nil
}
