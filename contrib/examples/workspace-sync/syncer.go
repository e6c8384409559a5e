package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/ring"
	"github.com/shardplane/shardplane/pkg/client/shards"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/reconcile/events"
)

// conflictRetry is when it is looked again whether what is in the way has gone: objects of others
// are not watched.
const conflictRetry = time.Minute

var logicalClusters = client.DefineResource[corev1alpha1.LogicalCluster, corev1alpha1.LogicalClusterList](corev1alpha1.SchemeGroupVersion, "logicalclusters")

// member is what is asked of a ring.Ring.
type member interface {
	reconcile.Gate
	reconcile.Gains
	Ranges() (owned, coming client.Ranges)
	Holds() client.RangeSource
	Status() ring.Status
}

// syncer keeps the copies in the workspaces that the ring gives to this replica.
type syncer struct {
	options

	proxy      *client.Factory
	replicas   member
	clusters   *shards.Multi[*corev1alpha1.LogicalCluster]
	kinds      []kind
	controller *reconcile.Controller[logicalcluster.Name]

	targets, failing, conflicts *prometheus.Desc
	writes                      *prometheus.CounterVec

	mu sync.Mutex
	// troubles are what keeps workspaces from having their copies.
	troubles map[logicalcluster.Name]trouble
}

// trouble is how the last look at a workspace ended.
type trouble struct {
	failed    bool
	conflicts int
}

// kind is a resource that is copied: the objects, and the copies of this replica's workspaces.
type kind struct {
	schema.GroupVersionResource

	from   *client.Informer[*unstructured.Unstructured]
	copies *shards.Multi[*unstructured.Unstructured]
}

func newSyncer(o options, proxy *client.Factory, source shards.Source, replicas member, registry prometheus.Registerer) (*syncer, error) {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("workspace_sync_"+name, help, nil, nil)
	}
	s := &syncer{
		options: o, proxy: proxy, replicas: replicas, troubles: map[logicalcluster.Name]trouble{},
		targets:   desc("targets", "Workspaces of this replica that are to have copies."),
		failing:   desc("failing", "Those of them whose last attempt failed."),
		conflicts: desc("conflicts", "Copies there that are not made, or not brought up to date, because of what others have or changed."),
		writes:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "workspace_sync_writes_total", Help: "Copies that were applied or deleted."}, []string{"verb"}),
	}
	s.writes.WithLabelValues("apply")
	s.writes.WithLabelValues("delete")
	// By logical cluster, so that this replica has a workspace and all copies in it, or nothing.
	ranges := func(string) client.RangeSource { return replicas.Holds() }
	var err error
	s.clusters, err = shards.New(source, logicalClusters, shards.Options[*corev1alpha1.LogicalCluster]{
		Ranges: ranges, Metrics: registry, Informer: client.InformerOptions[*corev1alpha1.LogicalCluster]{Transform: kept},
	})
	if err != nil {
		return nil, err
	}
	of := func(name logicalcluster.Name) []logicalcluster.Name { return []logicalcluster.Name{name} }
	sources := []reconcile.Source[logicalcluster.Name]{
		reconcile.FromInformer(s.clusters, func(lc *corev1alpha1.LogicalCluster) []logicalcluster.Name { return of(logicalcluster.From(lc)) }),
		reconcile.Gained(s.clusters, replicas, func(lc *corev1alpha1.LogicalCluster) []logicalcluster.Name { return of(logicalcluster.From(lc)) }),
	}
	for _, gvr := range o.resources {
		k := kind{GroupVersionResource: gvr}
		k.from, err = client.NewDynamicInformer(proxy.Cluster(logicalcluster.NewPath(o.from)), gvr, client.InformerOptions[*unstructured.Unstructured]{LabelSelector: copyLabel})
		if err != nil {
			return nil, err
		}
		k.copies, err = shards.NewWith(source, func(scope client.Scope, options client.InformerOptions[*unstructured.Unstructured]) (*client.Informer[*unstructured.Unstructured], error) {
			return client.NewDynamicInformer(scope, gvr, options)
		}, shards.Options[*unstructured.Unstructured]{
			Name: gvr.GroupResource().String(), Ranges: ranges, Metrics: registry,
			Informer: client.InformerOptions[*unstructured.Unstructured]{LabelSelector: labels.Set{byLabel: o.name}.String()},
		})
		if err != nil {
			return nil, err
		}
		s.kinds = append(s.kinds, k)
		sources = append(sources,
			reconcile.FromInformer(k.from, func(*unstructured.Unstructured) []logicalcluster.Name { return s.clusters.Lister().Clusters() }),
			reconcile.FromInformer(k.copies, func(c *unstructured.Unstructured) []logicalcluster.Name { return of(logicalcluster.From(c)) }),
		)
	}
	s.controller = reconcile.New(reconcile.Config[logicalcluster.Name]{Name: o.name, Gate: replicas, Sources: sources, Workers: o.workers, Reconcile: s.reconcile})
	return s, registry.Register(s.writes)
}

// kept returns what is kept of a LogicalCluster.
func kept(lc *corev1alpha1.LogicalCluster) (*corev1alpha1.LogicalCluster, error) {
	k := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{
		Name: lc.Name, UID: lc.UID, ResourceVersion: lc.ResourceVersion, DeletionTimestamp: lc.DeletionTimestamp, Labels: lc.Labels, Annotations: map[string]string{},
	}}
	for _, key := range []string{logicalcluster.AnnotationKey, tenancyv1alpha1.LogicalClusterTypeAnnotationKey} {
		k.Annotations[key] = lc.Annotations[key]
	}
	k.Status.Phase = lc.Status.Phase
	return k, nil
}

// parts are what runs. Nothing is decided before it is known what is to be copied: as long as
// that is not known, nothing looks as if it was to be deleted.
func (s *syncer) parts() []func(context.Context) error {
	parts := []func(context.Context) error{s.clusters.Run, func(ctx context.Context) error {
		for _, k := range s.kinds {
			select {
			case <-ctx.Done():
				return nil
			case <-k.from.Synced():
			}
		}
		return s.controller.Run(ctx)
	}}
	for _, k := range s.kinds {
		parts = append(parts, k.from.Run, k.copies.Run)
	}
	return parts
}

// ready returns nil when this replica works.
func (s *syncer) ready() error {
	if status := s.replicas.Status(); status.Epoch == 0 || status.Isolated {
		return errors.New("ring: " + status.Waits)
	}
	for _, k := range s.kinds {
		if !k.from.HasSynced() {
			return fmt.Errorf("%s of %s are not read yet: %w", k.Resource, s.from, k.from.LastError())
		}
		if !k.copies.HasSynced(shards.Reachable) || !s.clusters.HasSynced(shards.Reachable) {
			return errors.New("the shards are not read yet")
		}
	}
	return nil
}

// selects reports whether a workspace is to have copies.
func (s *syncer) selects(lc *corev1alpha1.LogicalCluster) bool {
	return (s.typ == "" || lc.Annotations[tenancyv1alpha1.LogicalClusterTypeAnnotationKey] == s.typ) && s.selector.Matches(labels.Set(lc.Labels))
}

func (s *syncer) reconcile(ctx context.Context, name logicalcluster.Name) (reconcile.Result, error) {
	lc, err := s.clusters.Lister().Get(client.Key{Cluster: name, Name: corev1alpha1.LogicalClusterName})
	if err != nil || lc.DeletionTimestamp != nil || lc.Status.Phase != corev1alpha1.LogicalClusterPhaseReady {
		// It goes, and its content with it; or it is out of view, with its shard, and nothing is
		// known that could be a reason to delete.
		s.note(name, trouble{})
		return reconcile.Result{}, nil //nolint:nilerr // as said
	}
	var errs []error
	conflicts := 0
	for _, k := range s.kinds {
		n, err := s.sync(ctx, k, name, s.selects(lc))
		conflicts += n
		errs = append(errs, err)
	}
	err = errors.Join(errs...)
	s.note(name, trouble{failed: err != nil, conflicts: conflicts})
	if conflicts > 0 {
		return reconcile.Result{RequeueAfter: conflictRetry}, err
	}
	return reconcile.Result{}, err
}

// sync brings the copies of one kind in a workspace up to date. It returns how many cannot be,
// because of others.
func (s *syncer) sync(ctx context.Context, k kind, name logicalcluster.Name, wanted bool) (conflicts int, err error) {
	scope := s.proxy.Cluster(name.Path())
	objects, err := scope.Dynamic()
	if err != nil {
		return 0, err
	}
	var errs []error
	keep := map[types.NamespacedName]bool{}
	for _, from := range k.from.Lister().List(nil) {
		if !wanted || from.GetDeletionTimestamp() != nil || logicalcluster.From(from) == name {
			continue
		}
		keep[types.NamespacedName{Namespace: from.GetNamespace(), Name: from.GetName()}] = true
		obj := copyOf(from, s.name)
		old, err := k.copies.Lister().Get(client.Key{Cluster: name, Namespace: obj.GetNamespace(), Name: obj.GetName()})
		switch {
		case err == nil && contains(old.Object, obj.Object):
			continue
		case err == nil:
			err = s.apply(ctx, objects.Resource(k.GroupVersionResource), old, obj)
		case apierrors.IsNotFound(err):
			err = s.apply(ctx, objects.Resource(k.GroupVersionResource), nil, obj)
		default: // It is not known yet whether there is one.
		}
		if conflict := (conflictError{}); errors.As(err, &conflict) {
			conflicts++
			err = s.tell(ctx, scope, obj, conflict)
		}
		errs = append(errs, err)
	}
	for _, c := range k.copies.Lister().InCluster(name, nil) {
		_, original := c.GetLabels()[copyLabel]
		if original || keep[types.NamespacedName{Namespace: c.GetNamespace(), Name: c.GetName()}] || c.GetDeletionTimestamp() != nil {
			continue
		}
		uid, version := c.GetUID(), c.GetResourceVersion()
		err := objects.Resource(k.GroupVersionResource).Namespace(c.GetNamespace()).Delete(ctx, c.GetName(), metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version},
		})
		if err == nil {
			s.writes.WithLabelValues("delete").Inc()
		}
		errs = append(errs, ignoreNotFound(err))
	}
	return conflicts, errors.Join(errs...)
}

// conflictError says what is in the way of a copy.
type conflictError struct {
	uid  types.UID
	what string
}

func (e conflictError) Error() string { return e.what }

// apply makes a copy, or brings the old one up to date.
func (s *syncer) apply(ctx context.Context, in dynamic.NamespaceableResourceInterface, old, obj *unstructured.Unstructured) error {
	at := in.Namespace(obj.GetNamespace())
	if old == nil {
		found, err := at.Get(ctx, obj.GetName(), metav1.GetOptions{})
		if err == nil && found.GetLabels()[byLabel] != s.name {
			return conflictError{found.GetUID(), "there is an object of this name that is not a copy: delete or rename it"}
		}
		if ignoreNotFound(err) != nil {
			return err
		}
	} else {
		obj.SetUID(old.GetUID()) // not another one, which somebody made meanwhile
	}
	_, err := at.Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: s.name, Force: s.force})
	switch {
	case err == nil:
		s.writes.WithLabelValues("apply").Inc()
	case old != nil && apierrors.IsConflict(err) && len(conflictingFields(err)) > 0:
		return conflictError{old.GetUID(), fmt.Sprintf("it was changed, and is not kept up to date in %v: undo that, or delete it", conflictingFields(err))}
	}
	return err
}

// tell tells who has the workspace what is in the way of a copy.
func (s *syncer) tell(ctx context.Context, scope client.Scope, obj *unstructured.Unstructured, conflict conflictError) error {
	klog.FromContext(ctx).Info("Something is in the way of a copy", "cluster", scope.String(), "object", klog.KObj(obj), "why", conflict.what)
	return events.Tell(ctx, scope, events.Event{
		About:     corev1.ObjectReference{APIVersion: obj.GetAPIVersion(), Kind: obj.GetKind(), Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: conflict.uid},
		Component: s.name, Type: corev1.EventTypeWarning, Reason: "NotCopied", Message: "from " + s.from + ": " + conflict.what,
	}, conflict.what)
}

func (s *syncer) note(name logicalcluster.Name, t trouble) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.troubles, name)
	if t != (trouble{}) {
		s.troubles[name] = t
	}
}

// Describe implements prometheus.Collector.
func (s *syncer) Describe(out chan<- *prometheus.Desc) {
	out <- s.targets
	out <- s.failing
	out <- s.conflicts
}

// Collect implements prometheus.Collector.
func (s *syncer) Collect(out chan<- prometheus.Metric) {
	owned, _ := s.replicas.Ranges()
	targets, failing, conflicts := 0, 0, 0
	here := map[logicalcluster.Name]bool{}
	for _, lc := range s.clusters.Lister().List(nil) {
		if owned.Contains(lc) && s.selects(lc) {
			targets++
			here[logicalcluster.From(lc)] = true
		}
	}
	s.mu.Lock()
	for name, t := range s.troubles {
		if !here[name] {
			delete(s.troubles, name) // another replica's, or no target any more
			continue
		}
		conflicts += t.conflicts
		if t.failed {
			failing++
		}
	}
	s.mu.Unlock()
	for desc, value := range map[*prometheus.Desc]int{s.targets: targets, s.failing: failing, s.conflicts: conflicts} {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value))
	}
}
