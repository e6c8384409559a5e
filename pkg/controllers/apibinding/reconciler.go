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

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// startTime is how long a new logical cluster has at most to come up before the
// controller notes what is bound in it.
const startTime = 5 * time.Second

// APIs are the bound APIs of the shard, as its servers have them.
type APIs interface {
	// Pin makes sure that the shard has a copy of an APIResourceSchema, which read
	// returns, and returns the version in which objects are stored. Its error wraps
	// apis.ErrInvalidSchema if the schema cannot be served.
	Pin(ctx context.Context, uid types.UID, read func(context.Context) (*apis.APIResourceSchema, error)) (storageVersion string, err error)
	// CheckReplacement returns an error that wraps apis.ErrInvalidSchema if objects that are stored already could
	// not be read after a resource is bound with the schema of next. bound is what the binding has of it, or nil.
	CheckReplacement(ctx context.Context, bound, next *apisv1alpha2.BoundAPIResource) error
	reserver
	// Yield has definitions yield that have names of what a binding has bound.
	Yield(ctx context.Context, key client.Key) error
	// Rewrite writes what change makes of the status of a binding, past admission and
	// validation. It returns nil, and nothing is written, where change returns nil, and
	// where that takes a request.
	Rewrite(ctx context.Context, key client.Key, change func(stored *apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error)
	// WaitFor waits until what a binding says is served.
	WaitFor(ctx context.Context, written *apisv1alpha2.APIBinding) error
	// Empty deletes all objects of what was bound in a logical cluster, and returns how
	// many are left, and how many of them wait for each finalizer.
	Empty(ctx context.Context, cluster logicalcluster.Name, bound *apisv1alpha2.BoundAPIResource) (left int, finalizers map[string]int, err error)
	// FollowNames calls f where names may have become free, until stop is called.
	FollowNames(f func(cluster logicalcluster.Name, group string)) (stop func())
	// FollowRoom calls f where a schema may be pinned for which there was no room, until
	// stop is called.
	NotifyFreed(f func()) (stop func())
}

type reconciler struct {
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

	now func() time.Time

	clusters  reconcile.Latest[*corev1alpha1.LogicalCluster]
	noting    turns
	replacing replacements
	waiting   waiting // for names
	roomless  waiting // for room for schemas
}

// observe returns what a binding is to follow. Its error is client.ErrIncomplete as long as it is not
// known what other shards export.
func (r *reconciler) observe(key client.Key, binding *apisv1alpha2.APIBinding) (o observation, err error) {
	if o.provider, err = providerOf(key.Cluster, binding, r.resolve); err != nil {
		return o, err
	}
	if o.export, err = r.exportOf(o.provider, binding); o.export == nil || err != nil || o.export.Status.IdentityHash == "" {
		return o, err
	}
	for i := range o.export.Spec.Resources {
		schema, err := r.schema(schemaKey(o.provider, o.export.Spec.Resources[i].Schema))
		if err != nil {
			return o, ignoreNotFound(err)
		}
		o.schemas = append(o.schemas, schema)
	}
	return o, nil
}

// exportOf returns the export of a binding, or nil if there is none.
func (r *reconciler) exportOf(provider logicalcluster.Name, binding *apisv1alpha2.APIBinding) (*apisv1alpha2.APIExport, error) {
	ref := binding.Spec.Reference.Export
	if provider == "" || ref == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	export, err := r.export(client.Key{Cluster: provider, Name: ref.Name})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // there is none
	}
	if err == nil && export.DeletionTimestamp != nil && !conditions.IsTrue(binding, apisv1alpha2.InitialBindingCompleted) {
		return nil, nil //nolint:nilnil // it goes, and is for those who have it
	}
	return export, err
}

// noted returns a LogicalCluster as it is, and as it says what a binding has bound, which
// is nil if it does so already.
func (r *reconciler) noted(cluster logicalcluster.Name, binding string, resources []apisv1alpha2.BoundAPIResource) (lc, updated *corev1alpha1.LogicalCluster, err error) {
	cached, err := r.logicalCluster(cluster)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, nil, err
	}
	key := client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName}
	lc, exists := r.clusters.Of(key, cached, err == nil)
	if !exists {
		return nil, nil, err
	}
	updated, err = withLocks(lc, binding, resources)
	return lc, updated, err
}

// note says in the LogicalCluster what a binding has bound, for tools that go by it.
func (r *reconciler) note(ctx context.Context, cluster logicalcluster.Name, binding string, resources []apisv1alpha2.BoundAPIResource) error {
	defer r.noting.lock(cluster)()
	lc, updated, err := r.noted(cluster, binding, resources)
	if err != nil || updated == nil {
		return err
	}
	written, err := r.commitCluster(ctx, lc, updated)
	if err != nil {
		return err
	}
	r.clusters.Wrote(written)
	return nil
}

// isStarting reports whether a LogicalCluster is still to get the label of its phase, and
// with it, in one write, the note of what its default bindings have bound.
func (r *reconciler) isStarting(lc *corev1alpha1.LogicalCluster) bool {
	phase := string(lc.Status.Phase)
	return (phase == "" || lc.Labels[tenancyv1alpha1.WorkspacePhaseLabel] != phase) && r.now().Before(lc.CreationTimestamp.Add(startTime))
}

// isGoing reports whether a logical cluster is being deleted.
func (r *reconciler) isGoing(cluster logicalcluster.Name) bool {
	lc, err := r.logicalCluster(cluster)
	return err == nil && lc.DeletionTimestamp != nil
}

// copySchema makes sure that the shard has a copy of a schema, and returns the version in which objects are
// stored, or why the schema cannot be bound.
func (r *reconciler) copySchema(ctx context.Context, key client.Key, resource *apisv1alpha2.BoundAPIResource, export string) (string, *problem, error) {
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

// read reads a schema. The error is client.ErrIncomplete if that is on another shard, and its replica
// cannot be read now.
func (r *reconciler) read(ctx context.Context, key client.Key) (*apis.APIResourceSchema, error) {
	schema, err := r.readSchema(ctx, key)
	if err == nil || key.Shard == "" || ctx.Err() != nil {
		return schema, err
	}
	klog.FromContext(ctx).V(2).Info("Cannot read the replica of a schema", "schema", key, "err", err)
	what := "does not answer for"
	if apierrors.IsNotFound(err) { // if it is gone, the informer is about to hear of it
		what = "that is asked does not have"
	}
	return nil, fmt.Errorf("%w: the cache server %s the APIResourceSchema %s of shard %s", client.ErrIncomplete, what, key.Name, key.Shard)
}

// change writes what says makes of a binding, and returns that. It returns known if that is the same, and nil if
// the binding has changed since the informer got known: the informer gets that, too, and the binding is reconciled
// again.
func (r *reconciler) change(ctx context.Context, key client.Key, known *apisv1alpha2.APIBinding, says func(*apisv1alpha2.APIBinding) *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error) {
	if equality.Semantic.DeepEqual(known, says(known)) {
		return known, nil
	}
	binding, err := r.binding(ctx, key)
	if err != nil || binding.ResourceVersion != known.ResourceVersion {
		return nil, err
	}
	return r.commit(ctx, binding, says(binding))
}
