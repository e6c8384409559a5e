package apibinding

import (
	"context"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// Storage is where a Binder finds and stores what is bound.
type Storage interface {
	reserver
	// Like returns what a new binding to an export binds, if another one of the shard has
	// bound all of that. The schemas are kept until release is called.
	Like(ctx context.Context, export *apisv1alpha2.APIExport) (resources []apisv1alpha2.BoundAPIResource, release func(), ok bool)
	// Create stores a binding with its status, past admission and validation.
	Create(ctx context.Context, cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error)
	// WaitFor waits until what a binding says is served.
	WaitFor(ctx context.Context, written *apisv1alpha2.APIBinding) error
}

// Binder makes bindings that are bound from the start, each in one write: what the
// controller would say of them. They are the system's: nobody's permission is asked, and
// nobody's webhook. Its methods may be called at the same time.
type Binder struct {
	storage  Storage
	siblings func(cluster logicalcluster.Name) []*apisv1alpha2.APIBinding
}

// NewBinder returns one. The informer is that of all bindings of the shard.
func NewBinder(storage Storage, bindings *client.Informer[*apisv1alpha2.APIBinding]) *Binder {
	return &Binder{storage: storage, siblings: func(cluster logicalcluster.Name) []*apisv1alpha2.APIBinding {
		return bindings.Lister().Cluster(cluster).List(nil)
	}}
}

// Bind makes a binding in a logical cluster, which is served when Bind returns, and returns
// it as it is stored. It returns nil where that takes the controller: the shard has no
// such binding yet, or a name is in use. An error is AlreadyExists if there is one of the
// name.
func (b *Binder) Bind(ctx context.Context, lc *corev1alpha1.LogicalCluster, binding *apisv1alpha2.APIBinding, export *apisv1alpha2.APIExport) (*apisv1alpha2.APIBinding, error) {
	resources, release, ok := b.storage.Like(ctx, export)
	if !ok {
		return nil, nil //nolint:nilnil // there is none
	}
	defer release()
	cluster, provider := logicalcluster.From(lc), logicalcluster.From(export)
	free, conflict, err := reserve(ctx, b.storage, b.siblings, names{
		cluster: cluster, binding: binding, provider: provider, resources: resources, schemas: newSchemas(nil, resources),
	})
	if err != nil || conflict != "" {
		return nil, err
	}
	defer free() // the index has it by then
	binding = (&plan{provider: provider, export: export, wanted: resources}).advance(binding)
	apis.Complete(binding, tenancy.PathOf(lc).String(), apis.ExportLabelValue(provider, export.Name))
	written, err := b.storage.Create(ctx, cluster, binding)
	if err != nil {
		return nil, err
	}
	return written, b.storage.WaitFor(ctx, written)
}

// Note returns a LogicalCluster that says what a binding has bound. Where it cannot, the
// controller says why.
func (*Binder) Note(lc *corev1alpha1.LogicalCluster, binding *apisv1alpha2.APIBinding) *corev1alpha1.LogicalCluster {
	if noted, err := withLocks(lc, binding.Name, binding.Status.BoundResources); err == nil && noted != nil {
		return noted
	}
	return lc
}
