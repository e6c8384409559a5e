package apibinding

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/keymutex"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// startTime is the maximum time for which the bindings of a new logical cluster are recorded by its own controller.
const startTime = 5 * time.Second

// APIs gives access to the bound APIs of the shard.
type APIs interface {
	// Pin ensures that the shard has a copy of an APIResourceSchema, which read returns, and returns its storage version. It
	// returns an error that wraps apis.ErrInvalidSchema if the schema cannot be served.
	Pin(ctx context.Context, uid types.UID, read func(context.Context) (*apis.APIResourceSchema, error)) (storageVersion string, err error)
	// CheckReplacement returns an error that wraps apis.ErrInvalidSchema if stored objects could not be read with the schema of
	// next. bound is the currently bound resource, or nil.
	CheckReplacement(ctx context.Context, bound, next *apisv1alpha2.BoundAPIResource) error
	reserver
	// Yield makes definitions with the names of bound resources yield to the binding.
	Yield(ctx context.Context, key client.Key) error
	// Rewrite writes the result of change without admission. It returns nil if that is nil, or if a request is required.
	Rewrite(ctx context.Context, key client.Key, change func(stored *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error)
	// Empty deletes the objects of a bound resource. It returns the number of remaining objects, in total and for each
	// finalizer.
	Empty(ctx context.Context, cluster logicalcluster.Name, bound *apisv1alpha2.BoundAPIResource) (remainder int, finalizers map[string]int, err error)
	// FollowNames calls f when names may have been released, until stop is called.
	FollowNames(f func(cluster logicalcluster.Name, group string)) (stop func())
	// NotifyFreed calls f when a rejected schema may be copied, until stop is called.
	NotifyFreed(f func()) (stop func())
}

type bindingReconciler struct {
	apis           APIs
	resolve        Resolve
	known          func(key client.Key) (*apisv1alpha2.APIBinding, error)
	binding        func(ctx context.Context, key client.Key) (*apisv1alpha2.APIBinding, error)
	siblings       func(cluster logicalcluster.Name) []*apisv1alpha2.APIBinding
	export         func(key client.Key) (*apisv1alpha2.APIExport, error)
	schema         func(key client.Key) (*metav1.PartialObjectMetadata, error)
	readSchema     func(ctx context.Context, key client.Key) (*apis.APIResourceSchema, error)
	logicalCluster func(cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, error)
	commitCluster  func(ctx context.Context, old, updated *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error)
	commit         func(ctx context.Context, old, updated *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error)

	now      func() time.Time
	clusters reconcile.Latest[*corev1alpha1.LogicalCluster]
	// recording serializes the writes to a LogicalCluster. Otherwise, the writes of several bindings of a new
	// logical cluster would conflict.
	recording keymutex.KeyMutex
	replacing replacements
	// waiting are bindings that wait for names, by logical cluster, and overCapacity those that wait for capacity for schemas.
	waiting, overCapacity tenancy.Dependencies[client.Key]
}

// capacity is the only ID in overCapacity.
const capacity = "capacity"

func wait(in *tenancy.Dependencies[client.Key], key client.Key, id string, waits bool) {
	if waits {
		in.Remember(key, id)
	} else {
		in.Forget(key)
	}
}

// observe returns the input of decide, or client.ErrIncomplete as reconcileBinding.
func (r *bindingReconciler) observe(key client.Key, binding *apisv1alpha2.APIBinding) (o observation, err error) {
	if o.provider, o.export, err = r.exportOf(key.Cluster, binding); o.export == nil || err != nil || o.export.Status.IdentityHash == "" {
		return o, err
	}
	for i := range o.export.Spec.Resources {
		schema, err := r.schema(client.Key{Cluster: o.provider, Name: o.export.Spec.Resources[i].Schema})
		if err != nil {
			return o, reconcile.IgnoreNotFound(err)
		}
		o.schemas = append(o.schemas, schema)
	}
	return o, nil
}

// exportOf returns the export of a binding, or nil if there is none, and its logical cluster.
func (r *bindingReconciler) exportOf(cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding) (logicalcluster.Name, *apisv1alpha2.APIExport, error) {
	ref := binding.Spec.Reference.Export
	provider, err := providerOf(cluster, binding, r.resolve)
	if err != nil || provider == "" || ref == nil {
		return provider, nil, err
	}
	export, err := r.export(client.Key{Cluster: provider, Name: ref.Name})
	if err != nil {
		return provider, nil, reconcile.IgnoreNotFound(err)
	}
	if export.DeletionTimestamp != nil && !conditions.IsTrue(binding, apisv1alpha2.InitialBindingCompleted) {
		return provider, nil, nil // only existing bindings may use it
	}
	return provider, export, nil
}

// recorded returns a LogicalCluster, and its new state if the resources of a binding are not recorded yet.
func (r *bindingReconciler) recorded(cluster logicalcluster.Name, binding string, resources []apisv1alpha2.BoundAPIResource) (lc, updated *corev1alpha1.LogicalCluster, err error) {
	cached, err := r.logicalCluster(cluster)
	key := client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName}
	lc, exists := r.clusters.Of(key, cached, err == nil)
	if !exists {
		return nil, nil, err
	}
	updated, err = withLocks(lc, binding, resources)
	return lc, updated, err
}

// record records the resources of a binding in the LogicalCluster, for clients that read the annotation.
func (r *bindingReconciler) record(ctx context.Context, cluster logicalcluster.Name, binding string, resources []apisv1alpha2.BoundAPIResource) error {
	r.recording.LockKey(cluster.String())
	defer func() { _ = r.recording.UnlockKey(cluster.String()) }()
	lc, updated, err := r.recorded(cluster, binding, resources)
	if err != nil || updated == nil {
		return err
	}
	_, err = r.clusters.Commit(ctx, r.commitCluster, lc, updated)
	return err
}

// isStarting reports whether the controller of a LogicalCluster will record its default bindings with the phase label.
func (r *bindingReconciler) isStarting(lc *corev1alpha1.LogicalCluster) bool {
	phase := string(lc.Status.Phase)
	return (phase == "" || lc.Labels[tenancyv1alpha1.WorkspacePhaseLabel] != phase) && r.now().Before(lc.CreationTimestamp.Add(startTime))
}

func (r *bindingReconciler) isDeleted(cluster logicalcluster.Name) bool {
	lc, err := r.logicalCluster(cluster)
	return err == nil && lc.DeletionTimestamp != nil
}

// copySchema ensures that the shard has a copy of a schema, and returns its storage version, or the reason why it cannot be bound.
func (r *bindingReconciler) copySchema(ctx context.Context, key client.Key, resource *apisv1alpha2.BoundAPIResource, export string) (string, *problem, error) {
	version, err := r.apis.Pin(ctx, types.UID(resource.Schema.UID), func(ctx context.Context) (*apis.APIResourceSchema, error) { return r.read(ctx, key) })
	switch {
	case errors.Is(err, apis.ErrInvalidSchema):
		return "", invalidSchema(resource.Schema.Name, err), nil
	case apierrors.IsNotFound(err):
		return "", noSchema(resource.Schema.Name), nil
	case err != nil:
		return "", nil, fmt.Errorf("resource %s of APIExport %s: %w", resource.Resource, export, err)
	}
	return version, nil, nil
}

// read reads a schema. It returns client.ErrIncomplete if the replica of another shard's schema cannot be read.
func (r *bindingReconciler) read(ctx context.Context, key client.Key) (*apis.APIResourceSchema, error) {
	schema, err := r.readSchema(ctx, key)
	if err == nil || key.Shard == "" || ctx.Err() != nil {
		return schema, err
	}
	klog.FromContext(ctx).V(2).Info("Failed to read the replica of a schema", "schema", key, "err", err)
	action := "did not return"
	if apierrors.IsNotFound(err) { // if it was deleted, the informer will report it
		action = "does not contain"
	}
	return nil, fmt.Errorf("%w: the cache server %s the APIResourceSchema %s of shard %s", client.ErrIncomplete, action, key.Name, key.Shard)
}

// change writes the result of update. It returns known if nothing changes, and nil if the binding has changed since it
// was observed, which requeues it.
func (r *bindingReconciler) change(ctx context.Context, key client.Key, known *apisv1alpha2.APIBinding, update func(*apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error) {
	if equality.Semantic.DeepEqual(known, update(known)) {
		return known, nil
	}
	binding, err := r.binding(ctx, key)
	if err != nil || binding.ResourceVersion != known.ResourceVersion {
		return nil, err
	}
	return r.commit(ctx, binding, update(binding))
}

// Resolve returns the logical cluster of an export, "" if it does not exist, or client.ErrIncomplete if that is unknown.
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

// ReadSchema reads a schema, or the replica of another shard's one, with the original UID, on the cache server. It returns
// all fields, including those that the type of the SDK lacks.
func ReadSchema(ctx context.Context, local, cache *client.Factory, key client.Key) (*apis.APIResourceSchema, error) {
	from := local
	if key.Shard != "" {
		from = cache.Shard(key.Shard)
	}
	dynamic, err := from.Cluster(key.Cluster.Path()).Dynamic()
	if err != nil {
		return nil, err
	}
	u, err := dynamic.Resource(kinds.APIResourceSchemas.GroupVersionResource).Get(ctx, key.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if key.Shard != "" {
		u.SetUID(types.UID(u.GetAnnotations()[request.OriginalUIDAnnotation]))
	}
	return apis.SchemaFrom(u)
}
