package apibinding

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
)

// Resolve returns the logical cluster of an export by its path, or "" if it does not exist. It returns client.ErrIncomplete if the
// export may exist on another shard.
type Resolve func(path logicalcluster.Path, export string) (logicalcluster.Name, error)

// providerOf returns the logical cluster of a binding's export, or "". Once recorded in the status, it does not change.
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
	// The label identifies the export for which the binding was authorized. The path may refer to another logical cluster now.
	name, err := resolve(logicalcluster.NewPath(ref.Path), ref.Name)
	if err != nil || binding.Labels[apis.ExportLabel] != apis.ExportLabelValue(name, ref.Name) {
		return "", err
	}
	return name, nil
}

// ReadSchema reads a schema of this shard, or, if the key contains another shard, its replica on the cache server with the original
// UID.
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

// readSchema returns all fields, including those that the type of the SDK lacks.
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

// boundAs returns the bound resource of a binding, or nil.
func boundAs(binding *apisv1alpha2.APIBinding, group, resource string) *apisv1alpha2.BoundAPIResource {
	for i := range binding.Status.BoundResources {
		if b := &binding.Status.BoundResources[i]; b.Group == group && b.Resource == resource {
			return b
		}
	}
	return nil
}
