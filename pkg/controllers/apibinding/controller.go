// Package apibinding reconciles APIBindings. It binds the resources of the export and follows its changes; resources that it no
// longer contains stay bound. The objects of a deleted binding are deleted first, unless another binding takes them over.
//
//	export, schemas ─► copies of the schemas ─► names ─► LogicalCluster ─► status
//
// A reconcile reads the state (observe), decides without side effects (decide), and carries out the decision (apply). The status
// defines the served resources: bindings.Index is derived from it.
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/keymutex"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
)

const (
	// Name is the name of the controller.
	Name = "apibinding"
	// workers is high because a worker mostly waits for writes.
	workers = 16
	// timeout limits a reconcile. Deletion of bound objects continues in the next one.
	timeout = 2 * time.Minute
	// recordingLocks is the number of locks that all logical clusters share.
	recordingLocks = 64
)

// SchemaIndex is the index of exports by referenced schema.
const SchemaIndex = "schema"

// IndexBySchema is the index function of SchemaIndex.
func IndexBySchema(export *apisv1alpha2.APIExport) []string {
	names := make([]string, 0, len(export.Spec.Resources))
	for i := range export.Spec.Resources {
		names = append(names, client.Key{Cluster: logicalcluster.From(export), Name: export.Spec.Resources[i].Schema}.String())
	}
	return names
}

// Config configures the controller. The informers contain the objects of all logical clusters of the shard.
type Config struct {
	// Local reaches the shard itself as system:masters, and Cache the cache server with the schemas of other shards; Cache may be
	// nil.
	Local, Cache *client.Factory
	// Bindings have the index apis.ExportIndex. Finalizers and the times of conditions may be omitted.
	Bindings *client.Informer[*apisv1alpha2.APIBinding]
	// Exports have the index SchemaIndex.
	Exports *replicas.Dual[*apisv1alpha2.APIExport]
	// Schemas may be limited to metadata. Schemas of other shards have their original UIDs.
	Schemas *replicas.Dual[*metav1.PartialObjectMetadata]
	// Conversions may determine whether the schemas with their names can be served.
	Conversions     *replicas.Dual[*apisv1alpha1.APIConversion]
	LogicalClusters *client.Informer[*corev1alpha1.LogicalCluster]
	APIs            APIs
	Resolve         Resolve
}

// NewAPIBindingController returns the controller. Its keys are bindings.
func NewAPIBindingController(config Config) *reconcile.Controller[client.Key] {
	bindings := config.Bindings.Lister()
	r := newReconciler(config)
	of := func(export *apisv1alpha2.APIExport) []client.Key {
		return bindings.KeysByIndex(apis.ExportIndex, apis.ExportLabelValue(logicalcluster.From(export), export.Name))
	}
	// named returns the bindings to the exports that reference a schema.
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
		Name: Name, Reconcile: r.reconcile, Workers: workers, Timeout: timeout,
		Sources: []reconcile.Source[client.Key]{
			reconcile.Keys(config.Bindings),
			reconcile.SpreadFromInformer(config.Exports, of),
			reconcile.SpreadFromInformer(config.Schemas, func(schema *metav1.PartialObjectMetadata) []client.Key { return named(client.KeyOf(schema)) }),
			reconcile.SpreadFromInformer(config.Conversions, func(rules *apisv1alpha1.APIConversion) []client.Key { return named(client.KeyOf(rules)) }),
			// Waiting bindings may use the names that deleted bindings or other objects release.
			func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
				return config.Bindings.AddEventHandler(client.Handler[*apisv1alpha2.APIBinding]{
					OnDelete: func(last *apisv1alpha2.APIBinding, _ bool) {
						reconcile.Spread(queue, r.waiting.Of(logicalcluster.From(last).String()))
					},
				}).Remove, nil
			},
			func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
				return config.APIs.FollowNames(func(cluster logicalcluster.Name, _ string) { reconcile.Spread(queue, r.waiting.Of(cluster.String())) }), nil
			},
			func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
				return config.APIs.NotifyFreed(func() { reconcile.Spread(queue, r.overCapacity.Of(capacity)) }), nil
			},
		},
	})
}

func newReconciler(config Config) *bindingReconciler {
	bindings := config.Bindings.Lister()
	return &bindingReconciler{
		apis: config.APIs, resolve: config.Resolve,
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
		commitCluster: reconcile.Committer(config.Local, kinds.LogicalClusters),
		commit:        reconcile.Committer(config.Local, kinds.APIBindings), now: time.Now,
		recording: keymutex.NewHashed(recordingLocks),
	}
}

func (r *bindingReconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	result, err := r.reconcileBinding(ctx, key)
	if errors.Is(err, client.ErrIncomplete) {
		klog.FromContext(ctx).V(2).Info("Waiting for the exports of other shards", "reason", err.Error())
		return reconcile.Result{Backoff: true}, r.reportWaiting(ctx, key, err)
	}
	return result, err
}

// reconcileBinding returns client.ErrIncomplete if the exports of other shards have not been observed completely.
func (r *bindingReconciler) reconcileBinding(ctx context.Context, key client.Key) (reconcile.Result, error) {
	known, err := r.known(key)
	if err == nil && known.DeletionTimestamp == nil {
		seen, err := r.observe(key, known)
		if err != nil {
			return reconcile.Result{}, err
		}
		return r.apply(ctx, key, known, decide(known, seen))
	}
	r.waiting.Forget(key)
	r.overCapacity.Forget(key)
	if err != nil {
		return reconcile.Result{}, reconcile.IgnoreNotFound(err)
	}
	// A live read makes the siblings as recent as the deletion: one of two deleted bindings deletes the shared objects.
	binding, err := r.binding(ctx, key)
	if err != nil || binding.DeletionTimestamp == nil {
		return reconcile.Result{}, reconcile.IgnoreNotFound(err)
	}
	return r.release(ctx, key, binding)
}

// reportWaiting reports why a new binding waits. A bound binding stays bound, with the last observed claims of the export:
// accepting and rejecting claims does not depend on other shards.
func (r *bindingReconciler) reportWaiting(ctx context.Context, key client.Key, why error) error {
	update := func(binding *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding {
		if conditions.IsTrue(binding, apisv1alpha2.InitialBindingCompleted) {
			binding = binding.DeepCopy()
			setClaims(binding)
			return binding
		}
		return waitingFor(binding, why)
	}
	known, err := r.known(key)
	if err == nil && known.DeletionTimestamp == nil {
		_, err = r.change(ctx, key, known, update)
	}
	return reconcile.IgnoreNotFound(err)
}

// ConvertingName is the name of the controller of APIConversions.
const ConvertingName = "apiconversion"

// Converting configures the controller of APIConversions.
type Converting struct {
	// Local reaches the shard itself as system:masters, and Cache the cache server with the schemas of other shards; Cache may be
	// nil.
	Local, Cache *client.Factory
	// Conversions include those of other shards.
	Conversions *replicas.Dual[*apisv1alpha1.APIConversion]
	// Convert applies conversion rules to the shard's copy of a schema, if there is one. It returns an error that wraps
	// apis.ErrInvalidSchema if the rules are invalid.
	Convert func(ctx context.Context, schema types.UID, rules *apisv1alpha1.APIConversionSpec) error
}

// NewConverting returns a controller that applies APIConversions to the copies of the schemas with their names. When one is
// deleted, its rules stay in effect. Its keys are APIConversions.
func NewConverting(c Converting) *reconcile.Controller[client.Key] {
	return reconcile.New(reconcile.Config[client.Key]{
		Name: ConvertingName, Workers: 1, Reconcile: c.reconcile,
		Sources: []reconcile.Source[client.Key]{reconcile.FromInformer(c.Conversions, func(conversion *apisv1alpha1.APIConversion) []client.Key { return reconcile.KeysOf(conversion) })},
	})
}

func (c Converting) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	conversion, err := c.Conversions.Get(key.Cluster, "", key.Name)
	if err != nil {
		if errors.Is(err, client.ErrIncomplete) {
			return reconcile.Result{Backoff: true}, nil
		}
		return reconcile.Result{}, reconcile.IgnoreNotFound(err)
	}
	key.Shard = conversion.Annotations[request.ShardAnnotation]
	schema, err := ReadSchema(ctx, c.Local, c.Cache, key)
	if apierrors.IsNotFound(err) && key.Shard != "" {
		return reconcile.Result{Backoff: true}, nil // it may be replicated later
	}
	if err != nil {
		return reconcile.Result{}, reconcile.IgnoreNotFound(err)
	}
	err = c.Convert(ctx, schema.UID, &conversion.Spec)
	if errors.Is(err, apis.ErrInvalidSchema) {
		// It was created before its schema, otherwise admission would have rejected it.
		klog.FromContext(ctx).Error(err, "APIConversion does not match the schema with its name, which is served unchanged", "logicalCluster", key.Cluster, "name", key.Name)
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, err
}

const (
	// UnpinningName is the name of the controller that deletes unused copies of schemas.
	UnpinningName = "boundschemas"
	unpinInterval = 5 * time.Minute
)

// NewUnpinning returns a controller that calls unpin periodically.
func NewUnpinning(unpin func(context.Context) error) *reconcile.Controller[struct{}] {
	return reconcile.New(reconcile.Config[struct{}]{
		Name: UnpinningName, Workers: 1,
		Reconcile: func(ctx context.Context, _ struct{}) (reconcile.Result, error) {
			return reconcile.Result{RequeueAfter: unpinInterval}, unpin(ctx)
		},
		Sources: []reconcile.Source[struct{}]{reconcile.Once(struct{}{})},
	})
}
