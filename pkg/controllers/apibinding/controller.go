// Package apibinding leads APIBindings through their life. It does not bind yet: what an
// export offers is not served in the logical clusters that bind it. A binding says which
// export it is to, and whether that exists, and it goes when it is deleted.
package apibinding

import (
	"context"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// Name is the name of the controller.
const Name = "apibinding"

// ExportIndex is the index of bindings by the label of their export.
const ExportIndex = "export"

// missingIdentityHash says that an export has no identity yet.
const missingIdentityHash = "MissingIdentityHash"

// IndexByExport indexes a binding by the label of its export.
func IndexByExport(binding *apisv1alpha2.APIBinding) []string {
	if value := binding.Labels[apis.ExportLabel]; value != "" {
		return []string{value}
	}
	return nil
}

// Config is what the controller needs. The informers are those of all logical clusters
// of the shard.
type Config struct {
	// Local reaches the shard itself as system:masters.
	Local *client.Factory
	// Bindings have the index ExportIndex.
	Bindings *client.Informer[*apisv1alpha2.APIBinding]
	Exports  *client.Informer[*apisv1alpha2.APIExport]
	Resolve  Resolve
}

// Resolve returns the logical cluster of the shard that a path leads to, if there is one.
type Resolve func(path logicalcluster.Path) (logicalcluster.Name, bool)

// New returns the controller. Its keys are bindings.
func New(config Config) *reconcile.Controller[client.Key] {
	bindings := config.Bindings.Lister()
	r := &reconciler{
		binding: bindings.Get,
		export:  config.Exports.Lister().Get,
		resolve: config.Resolve,
		commit: func(ctx context.Context, old, updated *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error) {
			return reconcile.Commit(ctx, client.APIBindings.In(config.Local.Cluster(logicalcluster.From(old).Path())), old, updated)
		},
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name:      Name,
		Reconcile: r.reconcile,
		Sources: []reconcile.Source[client.Key]{
			reconcile.Keys(config.Bindings),
			reconcile.FromInformer(config.Exports, func(export *apisv1alpha2.APIExport) []client.Key {
				return bindings.KeysByIndex(ExportIndex, apis.ExportLabelValue(logicalcluster.From(export), export.Name))
			}),
		},
	})
}

type reconciler struct {
	binding func(key client.Key) (*apisv1alpha2.APIBinding, error)
	export  func(key client.Key) (*apisv1alpha2.APIExport, error)
	resolve Resolve
	commit  func(ctx context.Context, old, updated *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error)
	latest  reconcile.Latest[*apisv1alpha2.APIBinding]
}

func (r *reconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	cached, err := r.binding(key)
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, err
	}
	binding, exists := r.latest.Of(key, cached, err == nil)
	if !exists {
		return reconcile.Result{}, nil
	}
	var updated *apisv1alpha2.APIBinding
	if binding.DeletionTimestamp != nil {
		updated = release(binding)
	} else {
		provider := r.providerOf(key.Cluster, binding)
		var export *apisv1alpha2.APIExport
		if ref := binding.Spec.Reference.Export; provider != "" && ref != nil {
			export, err = r.export(client.Key{Cluster: provider, Name: ref.Name})
			if err != nil && !apierrors.IsNotFound(err) {
				return reconcile.Result{}, err
			}
			if err != nil {
				export = nil
			}
		}
		updated = advance(binding, provider, export)
	}
	written, err := r.commit(ctx, binding, updated)
	if written != nil && written.ResourceVersion != binding.ResourceVersion {
		r.latest.Wrote(written)
	}
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, nil // it is gone
	}
	return reconcile.Result{}, err
}

// providerOf returns the logical cluster of a binding's export, or "". Once known it
// stays, wherever the path leads later.
func (r *reconciler) providerOf(cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding) logicalcluster.Name {
	if known := binding.Status.APIExportClusterName; known != "" {
		return logicalcluster.Name(known)
	}
	ref := binding.Spec.Reference.Export
	if ref == nil {
		return ""
	}
	if ref.Path == "" {
		return cluster
	}
	name, _ := r.resolve(logicalcluster.NewPath(ref.Path))
	return name
}

// release lets a binding go that is being deleted. Nothing is bound, so that nothing has
// to be waited for.
func release(binding *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding {
	binding = binding.DeepCopy()
	binding.Finalizers = slices.DeleteFunc(binding.Finalizers, func(f string) bool { return f == apis.BindingFinalizer })
	return binding
}

// advance returns the binding as far as it gets: it says which export it is to, and what
// that asks for. export is nil if there is none.
func advance(binding *apisv1alpha2.APIBinding, provider logicalcluster.Name, export *apisv1alpha2.APIExport) *apisv1alpha2.APIBinding {
	binding = binding.DeepCopy()
	if binding.Status.Phase == "" {
		binding.Status.Phase = apisv1alpha2.APIBindingPhaseBinding
	}
	binding.Status.APIExportClusterName = provider.String()
	switch {
	case export == nil:
		conditions.MarkFalse(binding, apisv1alpha2.APIExportValid, apisv1alpha2.APIExportNotFoundReason, conditionsv1alpha1.ConditionSeverityError,
			"The APIExport does not exist: create it, or delete the binding")
	case export.Status.IdentityHash == "":
		conditions.MarkFalse(binding, apisv1alpha2.APIExportValid, missingIdentityHash, conditionsv1alpha1.ConditionSeverityWarning,
			"The APIExport has no identity yet: its condition %s says why", apisv1alpha2.APIExportIdentityValid)
	default:
		conditions.MarkTrue(binding, apisv1alpha2.APIExportValid)
	}
	if export != nil {
		binding.Status.ExportPermissionClaims = export.DeepCopy().Spec.PermissionClaims
	}
	conditions.MarkFalse(binding, apisv1alpha2.InitialBindingCompleted, apisv1alpha2.WaitingForEstablishedReason, conditionsv1alpha1.ConditionSeverityInfo,
		"This version of the server does not serve bound APIs yet")
	conditions.SetSummary(binding, conditions.WithConditions(apisv1alpha2.InitialBindingCompleted))
	return binding
}
