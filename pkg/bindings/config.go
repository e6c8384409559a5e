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

// Config is what an Index needs.
type Config struct {
	// Local reaches the shard itself as system:masters.
	Local *client.Factory
	// Export returns an APIExport, if there is one. The error is client.ErrIncomplete if there
	// may be one that it does not know. WaitForExports waits until it knows all that there are
	// on the shard.
	Export         func(key client.Key) (*apisv1alpha2.APIExport, error)
	WaitForExports func(ctx context.Context) error
	// Conversion returns an APIConversion, if there is one. Nil is that there are none.
	Conversion func(ctx context.Context, key client.Key) (*apisv1alpha1.APIConversion, error)
	// ExportsByIdentity returns the APIExports with an identity, and why there may be more that
	// it does not know, if that is so.
	ExportsByIdentity func(identity string) (known []*apisv1alpha2.APIExport, unknown error)
	// Defined reports whether something else than a binding is known to serve a resource in
	// a logical cluster.
	Defined func(ctx context.Context, cluster logicalcluster.Name, resource schema.GroupResource) bool
	// System returns how the system serves a resource of its own that logical clusters have
	// only if they bind it, or nil if the resource is none such: its objects have no
	// identity, and its schema is the server's. Nil is that there are none. SystemIdentity
	// returns the identity by which exports claim such a resource, all the same, or an error that
	// asks to try again while it is not known. It must not block (storage.ClaimLabels).
	// SystemBound reports whether a logical cluster has those only if it binds them.
	System         func(resource schema.GroupResource) *definitions.Definition
	SystemIdentity func(resource schema.GroupResource) (string, error)
	SystemBound    func(cluster logicalcluster.Name) bool
	// Virtual returns the objects of a resource that an export offers by virtual storage. Nil is
	// that such resources are not served.
	Virtual func(export client.Key, resource schema.GroupResource) definitions.Objects
	// LastChange returns the resource version of the latest change of an APIBinding of the shard, up to a version or later.
	// Nil is that the index has all changes at any time.
	LastChange func(ctx context.Context, version uint64) (uint64, error)
	// Schema reads an APIResourceSchema, of the shard in the key if there is one.
	Schema func(ctx context.Context, key client.Key) (*apis.APIResourceSchema, error)
	// Schemas is the definition of APIResourceSchemas, which the index keeps. Nil if
	// WithBoundSchemas is not to be used.
	Schemas *apiextensionsv1.CustomResourceDefinition
}

// system returns how the system serves a resource that is bound, if it is one of its own. The
// binding decides that it is served, and the server how: nobody else can export it.
func (c *Config) system(resource schema.GroupResource) *definitions.Definition {
	if c.System == nil {
		return nil
	}
	return c.System(resource)
}

// storedUnder returns the identity in the keys of objects that exports claim by an identity:
// that one, or none if it is another name of objects of the system.
func (c *Config) storedUnder(w identified) (string, error) {
	if c.SystemIdentity == nil || w.identity == "" {
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
