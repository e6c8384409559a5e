// Package apibinding leads APIBindings through their life. What the export offers is
// bound, and follows the export from then on; what the export drops stays bound. When a
// binding is deleted, all objects of what it has bound go first, unless another binding
// of the logical cluster takes them over.
//
//	export, schemas ─► copies of the schemas ─► names ─► LogicalCluster ─► status
//
// What a binding should say is computed apart (status.go) from what is read and
// written. The status is what is served: bindings.Index goes by it.
package apibinding

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

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
	// workers is how many bindings are worked on at a time. Each waits for its writes
	// most of the time.
	workers = 16
	// timeout is for emptying one binding; what is left then is for the next attempt.
	timeout = 2 * time.Minute
	// startTime is how long a new logical cluster has at most to come up before the
	// controller notes what is bound in it.
	startTime = 5 * time.Second
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

func schemaKey(provider logicalcluster.Name, name string) client.Key {
	return client.Key{Cluster: provider, Name: name}
}

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
	FollowRoom(f func()) (stop func())
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
				return config.APIs.FollowRoom(func() { spread(queue, r.roomless.everywhere()) }), nil
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

	clusters reconcile.Latest[*corev1alpha1.LogicalCluster]
	noting   turns
	waiting  waiting // for names
	roomless waiting // for room for schemas
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
	switch upToDate, result, err := r.upToDate(ctx, key); {
	case err != nil:
		return result, err
	case upToDate:
		return result, r.apis.Yield(ctx, key) // also what was bound before this replica led
	}
	if done, err := r.rewrite(ctx, key); done || err != nil {
		return reconcile.Result{}, err
	}
	binding, err := r.binding(ctx, key)
	if err == nil && binding.DeletionTimestamp == nil {
		again, err := r.bind(ctx, key, binding)
		return reconcile.Result{Backoff: again}, err
	}
	r.waiting.set(key, false)
	r.roomless.set(key, false)
	if err != nil {
		return reconcile.Result{}, ignoreNotFound(err)
	}
	// Its siblings are to be as they were when it was deleted, or newer: of two that go one empties
	// what both may have. The informer tells when it has heard of it.
	if known, err := r.known(key); err != nil || known.DeletionTimestamp == nil {
		return reconcile.Result{}, ignoreNotFound(err)
	}
	return r.release(ctx, key, binding)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// plan is what is to become of a binding.
type plan struct {
	provider logicalcluster.Name
	export   *apisv1alpha2.APIExport // nil if there is none
	*offer
	wanted []apisv1alpha2.BoundAPIResource
	added  []types.UID // the schemas in it that are not bound yet
}

func (r *reconciler) plan(ctx context.Context, cluster logicalcluster.Name, binding *apisv1alpha2.APIBinding) (p plan, err error) {
	if p.provider, err = providerOf(cluster, binding, r.resolve); err != nil {
		return p, err
	}
	if p.export, err = r.exportOf(p.provider, binding); err != nil {
		return p, err
	}
	if p.offer, err = r.offer(ctx, p.provider, p.export); err != nil {
		return p, err
	}
	if err = r.checkReplacements(ctx, binding, p.offer); err != nil {
		return p, err
	}
	r.roomless.set(client.Key{Cluster: cluster, Name: binding.Name}, p.problem != nil && p.problem.noRoom)
	p.wanted = p.follow(binding.Status.BoundResources)
	p.added = newSchemas(binding.Status.BoundResources, p.wanted)
	return p, nil
}

// checkReplacements notes in an offer if a binding must not follow it, because objects that are stored already
// could not be read with the schema of a resource. The binding keeps all that it has then.
func (r *reconciler) checkReplacements(ctx context.Context, binding *apisv1alpha2.APIBinding, o *offer) error {
	for i := range o.resources {
		next := &o.resources[i]
		bound := boundAs(binding, next.Group, next.Resource)
		if o.problem != nil || bound != nil && bound.Schema.UID == next.Schema.UID {
			continue
		}
		if bound != nil && bound.Schema.IdentityHash != next.Schema.IdentityHash {
			continue // it is not followed in any case
		}
		err := r.apis.CheckReplacement(ctx, bound, next)
		if errors.Is(err, apis.ErrInvalidSchema) {
			o.problem = invalidSchema(next.Schema.Name, err)
		} else if err != nil {
			return fmt.Errorf("comparing the APIResourceSchema %s: %w", next.Schema.Name, err)
		}
	}
	return nil
}

// upToDate reports whether the informer has a binding that says what it should. Then it
// need not be read: that is so for all after a start, and after the controller's own
// writes. It may be to be looked at again.
func (r *reconciler) upToDate(ctx context.Context, key client.Key) (bool, reconcile.Result, error) {
	again := reconcile.Result{}
	known, err := r.known(key)
	if err != nil || known.DeletionTimestamp != nil {
		return false, again, ignoreNotFound(err)
	}
	p, err := r.plan(ctx, key.Cluster, known)
	if err != nil || len(p.added) > 0 {
		return false, again, err
	}
	if p.problem == nil && p.export != nil {
		switch lc, noted, err := r.noted(key.Cluster, key.Name, p.wanted); {
		case errors.Is(err, errTooMany):
			p.problem = tooMany()
		case err == nil && noted != nil && r.isStarting(lc):
			again.RequeueAfter = startTime
		case err != nil || noted != nil:
			return false, again, ignoreNotFound(err)
		}
	}
	return equality.Semantic.DeepEqual(known, advance(known, p.provider, p.export, p.offer, p.wanted)), again, nil
}

// isStarting reports whether a LogicalCluster is still to get the label of its phase, and
// with it, in one write, the note of what its default bindings have bound.
func (r *reconciler) isStarting(lc *corev1alpha1.LogicalCluster) bool {
	phase := string(lc.Status.Phase)
	return (phase == "" || lc.Labels[tenancyv1alpha1.WorkspacePhaseLabel] != phase) && r.now().Before(lc.CreationTimestamp.Add(startTime))
}

// bind leads a binding to what its export offers, and reports whether it is to be looked at again.
func (r *reconciler) bind(ctx context.Context, key client.Key, binding *apisv1alpha2.APIBinding) (again bool, err error) {
	p, err := r.plan(ctx, key.Cluster, binding)
	if err != nil {
		return false, err
	}
	conflict := ""
	if p.problem == nil && len(p.added) > 0 {
		var release func()
		if release, conflict, err = r.reserve(ctx, key, binding, p); err != nil {
			return false, err
		}
		if conflict == "" {
			defer release()
		} else {
			p.problem = namingConflict(conflict)
		}
	}
	// Before it is written: whoever gives the names back finds the binding.
	r.waiting.set(key, conflict != "")
	if p.problem == nil && p.export != nil {
		switch err := r.note(ctx, key.Cluster, key.Name, p.wanted); {
		case errors.Is(err, errTooMany):
			p.problem = tooMany()
			r.waiting.set(key, true) // it can when another one goes
		case apierrors.IsNotFound(err):
			p.problem = noLogicalCluster()
			again = true // nothing tells when it is known
		case err != nil:
			return false, err
		}
	}
	written, err := r.commit(ctx, binding, advance(binding, p.provider, p.export, p.offer, p.wanted))
	if err != nil {
		return false, ignoreNotFound(err)
	}
	if conflict != "" && r.conflictIsOver(ctx, key, binding, p) {
		return false, errors.New("names became free in the meantime")
	}
	return again, r.apis.WaitFor(ctx, written)
}

// conflictIsOver looks once more whether names are in use: they may have become free
// before the binding was known to wait for them.
func (r *reconciler) conflictIsOver(ctx context.Context, key client.Key, binding *apisv1alpha2.APIBinding, p plan) bool {
	release, conflict, err := r.reserve(ctx, key, binding, p)
	if err != nil || conflict != "" {
		return false
	}
	release()
	return true
}

// offer returns what an export offers, with copies of all its schemas made.
func (r *reconciler) offer(ctx context.Context, provider logicalcluster.Name, export *apisv1alpha2.APIExport) (*offer, error) {
	o := &offer{}
	switch {
	case export == nil:
		o.problem = noExport()
		return o, nil
	case export.Status.IdentityHash == "":
		o.problem = noIdentity()
		return o, nil
	}
	o.identity = export.Status.IdentityHash
	for i := range export.Spec.Resources {
		resource, problem, err := r.offered(ctx, provider, export, &export.Spec.Resources[i])
		if err != nil {
			return nil, err
		}
		if problem != nil {
			o.problem = problem
			return o, nil
		}
		o.resources = append(o.resources, *resource)
	}
	return o, nil
}

// offered returns a resource of an export as bindings would say it, with a copy of its schema made,
// or why it cannot be bound.
func (r *reconciler) offered(ctx context.Context, provider logicalcluster.Name, export *apisv1alpha2.APIExport, resource *apisv1alpha2.ResourceSchema) (*apisv1alpha2.BoundAPIResource, *problem, error) {
	key := schemaKey(provider, resource.Schema)
	schema, err := r.schema(key)
	if apierrors.IsNotFound(err) {
		return nil, noSchema(resource.Schema), nil
	}
	if err != nil {
		return nil, nil, err
	}
	key.Shard = schema.Annotations[request.ShardAnnotation]
	version, err := r.apis.Pin(ctx, schema.UID, func(ctx context.Context) (*apis.APIResourceSchema, error) { return r.read(ctx, key) })
	switch {
	case errors.Is(err, apis.ErrInvalidSchema):
		return nil, invalidSchema(resource.Schema, err), nil
	case apierrors.IsNotFound(err):
		return nil, noSchema(resource.Schema), nil
	case err != nil:
		return nil, nil, fmt.Errorf("resource %s of APIExport %s: %w", resource.Name, export.Name, err)
	}
	stored := []string{version}
	if resource.Storage.Virtual != nil {
		stored = nil // no version is, in the consumers
	}
	return &apisv1alpha2.BoundAPIResource{
		Group: resource.Group, Resource: resource.Name, StorageVersions: stored,
		Schema: apisv1alpha2.BoundAPIResourceSchema{Name: resource.Schema, UID: string(schema.UID), IdentityHash: export.Status.IdentityHash},
	}, nil, nil
}
