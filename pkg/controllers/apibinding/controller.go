// Package apibinding leads APIBindings through their life. What the export offers is
// bound, and follows the export from then on; what the export drops stays bound. When a
// binding is deleted, all objects of what it has bound go first, unless another binding
// of the logical cluster takes them over.
//
//	export, schemas ─► copies of the schemas ─► names ─► LogicalCluster ─► status
//
// A reconcile reads what there is (observe), decides what is to become of the binding, which
// has no effects (decide), and carries that out (apply). The status is what is served:
// bindings.Index goes by it.
package apibinding

import (
	"context"
	"errors"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replicas"
)

const (
	// Name is the name of the controller.
	Name = "apibinding"
	// workers is how many bindings are worked on at a time. Each waits for its writes
	// most of the time.
	workers = 16
	// timeout is for emptying one binding; what is left then is for the next attempt.
	timeout = 2 * time.Minute
)

// SchemaIndex is the index of exports by the schemas that they name.
const SchemaIndex = "schema"

// IndexBySchema indexes an export by the schemas that it names.
func IndexBySchema(export *apisv1alpha2.APIExport) []string {
	names := make([]string, 0, len(export.Spec.Resources))
	for i := range export.Spec.Resources {
		names = append(names, schemaKey(logicalcluster.From(export), export.Spec.Resources[i].Schema).String())
	}
	return names
}

// Config is what the controller needs. The informers are those of all logical clusters
// of the shard; exports and schemas may be on others.
type Config struct {
	// Local reaches the shard itself as system:masters, and Cache the cache server, which
	// has the schemas of other shards; it may be nil.
	Local, Cache *client.Factory
	// Bindings have the index apis.ExportIndex. They need hold no more than what is
	// compared to see that they say what they should: no finalizers, and no times of conditions.
	Bindings *client.Informer[*apisv1alpha2.APIBinding]
	// Exports have the index SchemaIndex.
	Exports *replicas.Dual[*apisv1alpha2.APIExport]
	// Schemas need hold metadata only. Those of other shards have the UIDs that they have
	// there.
	Schemas *replicas.Dual[*metav1.PartialObjectMetadata]
	// Conversions may keep schemas of their names from being served.
	Conversions     *replicas.Dual[*apisv1alpha1.APIConversion]
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	APIs            APIs
	Resolve         Resolve
}

// New returns the controller. Its keys are bindings.
func New(config Config) *reconcile.Controller[client.Key] {
	bindings := config.Bindings.Lister()
	r := newReconciler(config)
	of := func(export *apisv1alpha2.APIExport) []client.Key {
		return bindings.KeysByIndex(apis.ExportIndex, apis.ExportLabelValue(logicalcluster.From(export), export.Name))
	}
	// named are the bindings to the exports that name a schema.
	named := func(schema client.Key) (keys []client.Key) {
		exports, err := config.Exports.ByIndex(SchemaIndex, schema.String())
		if err != nil {
			return nil
		}
		for _, export := range exports {
			keys = append(keys, of(export)...)
		}
		return keys
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name:      Name,
		Reconcile: r.reconcile,
		Workers:   workers,
		Timeout:   timeout,
		Sources: []reconcile.Source[client.Key]{
			reconcile.Keys(config.Bindings),
			following(config.Exports, of),
			following(config.Schemas, func(schema *metav1.PartialObjectMetadata) []client.Key { return named(client.KeyOf(schema)) }),
			following(config.Conversions, func(rules *apisv1alpha1.APIConversion) []client.Key { return named(client.KeyOf(rules)) }),
			// Those that wait get names of bindings that go, or of others.
			func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
				return config.Bindings.AddEventHandler(client.Handler[*apisv1alpha2.APIBinding]{
					OnDelete: func(last *apisv1alpha2.APIBinding, _ bool) { spread(queue, r.waiting.in(logicalcluster.From(last))) },
				}).Remove, nil
			},
			func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
				return config.APIs.FollowNames(func(cluster logicalcluster.Name, _ string) {
					spread(queue, r.waiting.in(cluster))
				}), nil
			},
			func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
				return config.APIs.NotifyFreed(func() { spread(queue, r.roomless.everywhere()) }), nil
			},
		},
	})
}

func newReconciler(config Config) *reconciler {
	bindings := config.Bindings.Lister()
	return &reconciler{
		apis:    config.APIs,
		resolve: config.Resolve,
		export: func(key client.Key) (*apisv1alpha2.APIExport, error) {
			return config.Exports.GetCurrent(key.Cluster, "", key.Name)
		},
		schema: func(key client.Key) (*metav1.PartialObjectMetadata, error) {
			return config.Schemas.GetCurrent(key.Cluster, "", key.Name)
		},
		known: bindings.Get,
		siblings: func(cluster logicalcluster.Name) []*apisv1alpha2.APIBinding {
			return bindings.Cluster(cluster).List(nil)
		},
		binding: func(ctx context.Context, key client.Key) (*apisv1alpha2.APIBinding, error) {
			return kinds.APIBindings.In(config.Local.Cluster(key.Cluster.Path())).Get(ctx, key.Name, metav1.GetOptions{})
		},
		readSchema: func(ctx context.Context, key client.Key) (*apis.APIResourceSchema, error) {
			return ReadSchema(ctx, config.Local, config.Cache, key)
		},
		logicalCluster: func(cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
			return config.LogicalClusters.Lister().Get(client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName})
		},
		commitCluster: func(ctx context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
			return reconcile.Commit(ctx, kinds.LogicalClusters.In(config.Local.Cluster(logicalcluster.From(old).Path())), old, updated)
		},
		commit: func(ctx context.Context, old, updated *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error) {
			return reconcile.Commit(ctx, kinds.APIBindings.In(config.Local.Cluster(logicalcluster.From(old).Path())), old, updated)
		},
		now:      time.Now,
		waiting:  waiting{all: map[logicalcluster.Name]map[client.Key]bool{}},
		roomless: waiting{all: map[logicalcluster.Name]map[client.Key]bool{}},
	}
}

func (r *reconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	result, err := r.lead(ctx, key)
	if errors.Is(err, client.ErrIncomplete) {
		klog.FromContext(ctx).V(2).Info("Waiting for what other shards export", "reason", err.Error())
		return reconcile.Result{Backoff: true}, r.tellWaiting(ctx, key, err)
	}
	return result, err
}

// lead leads a binding one step on. Its error is client.ErrIncomplete as long as it is not
// known what other shards export.
func (r *reconciler) lead(ctx context.Context, key client.Key) (reconcile.Result, error) {
	known, err := r.known(key)
	if err == nil && known.DeletionTimestamp == nil {
		seen, err := r.observe(key, known)
		if err != nil {
			return reconcile.Result{}, err
		}
		return r.apply(ctx, key, known, decide(known, seen))
	}
	r.waiting.set(key, false)
	r.roomless.set(key, false)
	if err != nil {
		return reconcile.Result{}, ignoreNotFound(err)
	}
	// Its siblings are as they were when it was deleted, or newer: of two that go one empties what both may have.
	binding, err := r.binding(ctx, key)
	if err != nil || binding.DeletionTimestamp == nil {
		return reconcile.Result{}, ignoreNotFound(err)
	}
	return r.release(ctx, key, binding)
}

// tellWaiting says in a binding that has bound nothing yet what it waits for. What is bound goes on, by the claims that the
// export made when it was known last: nobody else is needed to accept them, and to reject them.
func (r *reconciler) tellWaiting(ctx context.Context, key client.Key, why error) error {
	says := func(binding *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding {
		if conditions.IsTrue(binding, apisv1alpha2.InitialBindingCompleted) {
			binding = binding.DeepCopy()
			tellClaims(binding)
			return binding
		}
		return waitingFor(binding, why)
	}
	known, err := r.known(key)
	if err == nil && known.DeletionTimestamp == nil {
		_, err = r.change(ctx, key, known, says)
	}
	return ignoreNotFound(err)
}
