// Package identitycache maintains a ConfigMap on each shard, with the identities of the system exports of root. Clients
// need these identities to read the objects of an API in all logical clusters of a shard.
package identitycache

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/core"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replicas"
)

const (
	// Name is the name of the controller.
	Name = "identitycache"
	// Cluster is the logical cluster with the ConfigMap, in the namespace default.
	Cluster = logicalcluster.Name("system:shard")
	// ConfigMap is the name of the ConfigMap, which contains identities by the names of exports.
	ConfigMap = "apiexport-identity-cache"
)

// NewIdentityCacheController returns the controller. The exports include those of other shards. Its only key is the logical cluster.
func NewIdentityCacheController(local *client.Factory, exports *replicas.Dual[*apisv1alpha2.APIExport]) *reconcile.Controller[logicalcluster.Name] {
	scope := local.Cluster(Cluster.Path())
	r := &identityReconciler{
		export:     func(name string) (*apisv1alpha2.APIExport, error) { return exports.Get(core.RootCluster, "", name) },
		namespaces: kinds.Namespaces.In(scope), configMaps: kinds.ConfigMaps.InNamespace(scope, metav1.NamespaceDefault),
	}
	return reconcile.New(reconcile.Config[logicalcluster.Name]{
		Name: Name, Reconcile: r.reconcile,
		Sources: []reconcile.Source[logicalcluster.Name]{
			reconcile.Once(Cluster),
			reconcile.FromInformer(exports, func(export *apisv1alpha2.APIExport) []logicalcluster.Name {
				if logicalcluster.From(export) != core.RootCluster || !config.IsRootExport(export.Name) {
					return nil
				}
				return []logicalcluster.Name{Cluster}
			}),
		},
	})
}

type identityReconciler struct {
	export     func(name string) (*apisv1alpha2.APIExport, error)
	namespaces *client.Client[*corev1.Namespace, *corev1.NamespaceList]
	configMaps *client.Client[*corev1.ConfigMap, *corev1.ConfigMapList]
}

func (r *identityReconciler) reconcile(ctx context.Context, _ logicalcluster.Name) (reconcile.Result, error) {
	known := map[string]string{}
	for _, name := range config.RootExportNames() {
		export, err := r.export(name)
		switch {
		case apierrors.IsNotFound(err) || errors.Is(err, client.ErrIncomplete):
			continue // it is requeued when the export is observed
		case err != nil:
			return reconcile.Result{}, err
		case export.Status.IdentityHash != "":
			known[name] = export.Status.IdentityHash
		}
	}
	if len(known) == 0 {
		return reconcile.Result{}, nil
	}
	stored, err := r.configMaps.Get(ctx, ConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, r.create(ctx, known)
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reading the ConfigMap %s in %s: %w", ConfigMap, Cluster, err)
	}
	updated := stored.DeepCopy()
	if updated.Data == nil {
		updated.Data = map[string]string{}
	}
	maps.Copy(updated.Data, known) // identities of unobserved exports are retained
	_, err = reconcile.Commit(ctx, r.configMaps, stored, updated)
	return reconcile.Result{}, err
}

func (r *identityReconciler) create(ctx context.Context, data map[string]string) error {
	_, err := r.namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceDefault}}, metav1.CreateOptions{})
	if err == nil || apierrors.IsAlreadyExists(err) {
		_, err = r.configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: ConfigMap}, Data: data}, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("creating the ConfigMap %s in %s: %w", ConfigMap, Cluster, err)
	}
	return nil
}
