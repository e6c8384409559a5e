package bindings

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// Config configures an Index.
type Config struct {
	// Local is a client of the shard itself as system:masters.
	Local *client.Factory
	// Export returns an APIExport, or client.ErrIncomplete if it is not found but may exist.
	// WaitForExports waits until all APIExports on the shard are loaded.
	Export         func(key client.Key) (*apisv1alpha2.APIExport, error)
	WaitForExports func(ctx context.Context) error
	// Conversion returns an APIConversion, which need not exist.
	Conversion func(ctx context.Context, key client.Key) (*apisv1alpha1.APIConversion, error)
	// ExportsByIdentity returns the loaded APIExports with an identity, and an error if there may be others.
	ExportsByIdentity func(identity string) (known []*apisv1alpha2.APIExport, unknown error)
	// Defined reports whether a resource is served in a logical cluster without a binding.
	Defined func(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource) bool
	// System returns the definition of a system resource that is served only where it is bound, or nil. Its objects
	// have no identity. SystemIdentity returns the identity in permission claims on it, or a retriable error, without
	// blocking (see storage.ClaimLabels). SystemBound reports whether a logical cluster must bind it.
	System         func(resource schema.GroupResource) *definitions.Definition
	SystemIdentity func(resource schema.GroupResource) (string, error)
	SystemBound    func(cluster logicalcluster.Name) bool
	// Virtual returns the objects of a resource with virtual storage. If it is nil, such resources are not served.
	Virtual func(export client.Key, resource schema.GroupResource) definitions.Objects
	// LastChange returns the resource version of the latest change of an APIBinding on the shard up to a
	// version, or later. If it is nil, the index is always up to date.
	LastChange func(ctx context.Context, version uint64) (uint64, error)
	// Schema reads an APIResourceSchema, from the shard in the key if it contains one.
	Schema func(ctx context.Context, key client.Key) (*apis.APIResourceSchema, error)
	// Schemas is the definition of APIResourceSchemas. WithBoundSchemas requires it.
	Schemas *apiextensionsv1.CustomResourceDefinition
}

// storedUnder returns the identity in the storage keys of claimed objects, which is empty for system resources.
func (c *Config) storedUnder(w identified) (string, error) {
	if w.identity == "" {
		return w.identity, nil
	}
	switch system, err := c.SystemIdentity(w.resource); {
	case err != nil:
		return "", err
	case system == w.identity:
		return "", nil
	default:
		return w.identity, nil
	}
}
