package apibinding

import (
	"context"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// Storage gives a Binder access to stored bindings.
type Storage interface {
	reserver
	// Like returns the resources that a new binding to an export binds, if an existing binding on the shard has bound all of
	// them. The schemas count as pinned.
	Like(ctx context.Context, export *apisv1alpha2.APIExport) (resources []apisv1alpha2.BoundAPIResource, ok bool)
	// Create stores a binding including its status, without admission and validation.
	Create(ctx context.Context, cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error)
}

// Binder creates bindings that are already bound, with a single write. It acts as the system: permissions and webhooks do
// not apply. Its methods may be called concurrently.
type Binder struct {
	storage  Storage
	siblings func(cluster logicalcluster.Name) []*apisv1alpha2.APIBinding
}

// NewBinder returns a Binder. The informer must contain all bindings of the shard.
func NewBinder(storage Storage, bindings *client.Informer[*apisv1alpha2.APIBinding]) *Binder {
	return &Binder{storage: storage, siblings: func(cluster logicalcluster.Name) []*apisv1alpha2.APIBinding {
		return bindings.Lister().Cluster(cluster).List(nil)
	}}
}

// Bind creates a binding and returns it after its resources are served, or nil if the controller must bind it: no
// binding on the shard is similar, or a name is in use. If the binding exists, it returns an AlreadyExists error.
func (b *Binder) Bind(ctx context.Context, lc *corev1alpha1.LogicalCluster, binding *apisv1alpha2.APIBinding, export *apisv1alpha2.APIExport) (*apisv1alpha2.APIBinding, error) {
	resources, ok := b.storage.Like(ctx, export)
	if !ok {
		return nil, nil //nolint:nilnil // there is none
	}
	cluster, provider := logicalcluster.From(lc), logicalcluster.From(export)
	p := &plan{provider: provider, export: export, wanted: resources, added: newSchemas(nil, resources)}
	free, conflict, err := reserve(ctx, b.storage, b.siblings, cluster, binding, p)
	if err != nil || conflict != "" {
		return nil, err
	}
	defer free() // the index contains the binding by then
	binding = p.advance(binding)
	apis.Complete(binding, tenancy.PathOf(lc).String(), apis.ExportLabelValue(provider, export.Name))
	written, err := b.storage.Create(ctx, cluster, binding)
	if err != nil {
		return nil, err
	}
	return written, b.storage.WaitFor(ctx, written)
}

// Note records the resources of a binding in its LogicalCluster. If this is impossible, the controller reports the reason.
func (*Binder) Note(lc *corev1alpha1.LogicalCluster, binding *apisv1alpha2.APIBinding) *corev1alpha1.LogicalCluster {
	if recorded, err := withLocks(lc, binding.Name, binding.Status.BoundResources); err == nil && recorded != nil {
		return recorded
	}
	return lc
}

type reserver interface {
	// Reserve reserves the names of schemas until release is called. If one is in use, conflict describes it.
	Reserve(ctx context.Context, cluster logicalcluster.Name, binding string, schemas []types.UID) (release func(), conflict string, err error)
	// WaitFor waits until the resources of a binding are served.
	WaitFor(ctx context.Context, written *apisv1alpha2.APIBinding) error
}

// reserve reserves the names of the added schemas of a plan. The names of system APIs belong to the servers. A binding to a system
// export of root only competes with other bindings to these exports.
func reserve(ctx context.Context, r reserver, siblings func(logicalcluster.Name) []*apisv1alpha2.APIBinding, cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding, p *plan) (release func(), conflict string, err error) {
	ref := binding.Spec.Reference.Export
	if p.provider != core.RootCluster || ref == nil || !config.IsRootExport(ref.Name) {
		return r.Reserve(ctx, cluster, binding.Name, p.added)
	}
	for _, other := range siblings(cluster) {
		if other.Name == binding.Name {
			continue
		}
		for i := range p.wanted {
			if want := &p.wanted[i]; boundAs(other, want.Group, want.Resource) != nil {
				return nil, fmt.Sprintf("In group %q, %q is already in use by APIBinding %q", want.Group, want.Resource, other.Name), nil
			}
		}
	}
	return func() {}, "", nil
}
