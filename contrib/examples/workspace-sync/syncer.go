package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"strings"
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
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/ring"
	"github.com/shardplane/shardplane/pkg/client/shards"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/reconcile/events"
)

const (
	// copyLabel is on what is to be copied.
	copyLabel = "workspace-sync.shardplane.io/copy"
	// byLabel is on copies, with --name.
	byLabel = "workspace-sync.shardplane.io/by"
	// hashAnnotation is on copies, and says what they were made from: without it, what the source
	// has no more would be told from what others have added by the managers of fields only.
	hashAnnotation = "workspace-sync.shardplane.io/hash"
	// conflictRetry is when it is looked again whether what is in the way has gone: objects of others
	// are not watched.
	conflictRetry = time.Minute
)

var logicalClusters = client.DefineResource[corev1alpha1.LogicalCluster, corev1alpha1.LogicalClusterList](corev1alpha1.SchemeGroupVersion, "logicalclusters")

// syncer keeps the copies in the workspaces that the ring gives to this replica.
type syncer struct {
	options

	proxy      *client.Factory
	replicas   *ring.Ring
	clusters   *shards.Multi[*corev1alpha1.LogicalCluster]
	kinds      []kind
	controller *reconcile.Controller[logicalcluster.Name]

	writes *prometheus.CounterVec

	mu sync.Mutex
	// last is how the last look at each workspace ended.
	last map[logicalcluster.Name]counts
}

// counts are of workspaces that are to have copies, and of copies that something is in the way of.
type counts struct{ targets, failing, conflicts int }

// kind is a resource that is copied: the objects, and the copies of this replica's workspaces.
type kind struct {
	schema.GroupVersionResource

	from   *client.Informer[*unstructured.Unstructured]
	copies *shards.Multi[*unstructured.Unstructured]
}

func newSyncer(o options, proxy *client.Factory, source shards.Source, replicas *ring.Ring, registry prometheus.Registerer) (*syncer, error) {
	s := &syncer{
		options: o, proxy: proxy, replicas: replicas, last: map[logicalcluster.Name]counts{},
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "workspace_sync_writes_total", Help: "Copies that were applied or deleted."}, []string{"verb"}),
	}
	s.writes.WithLabelValues("apply")
	s.writes.WithLabelValues("delete")
	// By logical cluster, so that this replica has a workspace and all copies in it, or nothing.
	ranges := func(string) client.RangeSource { return replicas.LoadedRanges() }
	var err error
	s.clusters, err = shards.New(source, logicalClusters, shards.Options[*corev1alpha1.LogicalCluster]{Ranges: ranges, Metrics: registry})
	if err != nil {
		return nil, err
	}
	sources := []reconcile.Source[logicalcluster.Name]{reconcile.FromInformer(s.clusters, of[*corev1alpha1.LogicalCluster]), reconcile.Gained(s.clusters, replicas, of[*corev1alpha1.LogicalCluster])}
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
			reconcile.FromInformer(k.copies, of[*unstructured.Unstructured]),
		)
	}
	s.controller = reconcile.New(reconcile.Config[logicalcluster.Name]{Name: o.name, Gate: replicas, Sources: sources, Workers: 16, Reconcile: s.reconcile})
	gauge := func(name, help string, value func(counts) int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "workspace_sync_" + name, Help: help}, func() float64 { return float64(value(s.counts())) })
	}
	registry.MustRegister(s.writes,
		gauge("targets", "Workspaces of this replica that are to have copies.", func(c counts) int { return c.targets }),
		gauge("failing", "Those of them whose last attempt failed.", func(c counts) int { return c.failing }),
		gauge("conflicts", "Copies there that are not made, or not brought up to date, because of what others have or changed.", func(c counts) int { return c.conflicts }),
	)
	return s, nil
}

func of[T client.Object](obj T) []logicalcluster.Name {
	return []logicalcluster.Name{logicalcluster.From(obj)}
}

// parts are what runs. Nothing is decided before it is known what is to be copied: as long as
// that is not known, nothing looks as if it was to be deleted.
func (s *syncer) parts() []func(context.Context) error {
	parts := []func(context.Context) error{s.clusters.Run, func(ctx context.Context) error {
		for _, k := range s.kinds {
			if k.from.WaitForSync(ctx) != nil {
				return nil //nolint:nilerr // ctx has ended
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

func (s *syncer) reconcile(ctx context.Context, name logicalcluster.Name) (result reconcile.Result, err error) {
	var now counts
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.last[name] = now
	}()
	lc, err := s.clusters.Lister().Get(client.Key{Cluster: name, Name: corev1alpha1.LogicalClusterName})
	if err != nil || lc.DeletionTimestamp != nil || lc.Status.Phase != corev1alpha1.LogicalClusterPhaseReady {
		// It goes, and its content with it; or it is out of view, with its shard, and nothing is
		// known that could be a reason to delete.
		return result, nil
	}
	wanted := (s.typ == "" || lc.Annotations[tenancyv1alpha1.LogicalClusterTypeAnnotationKey] == s.typ) && s.selector.Matches(labels.Set(lc.Labels))
	if wanted {
		now.targets = 1
	}
	var errs []error
	for _, k := range s.kinds {
		conflicts, err := s.sync(ctx, k, name, wanted)
		now.conflicts += conflicts
		errs = append(errs, err)
	}
	if now.conflicts > 0 {
		result.RequeueAfter = conflictRetry
	}
	if err = errors.Join(errs...); err != nil {
		now.failing = now.targets
	}
	return result, err
}

// sync brings the copies of one kind in a workspace up to date. It returns how many cannot be,
// because of others.
func (s *syncer) sync(ctx context.Context, k kind, name logicalcluster.Name, wanted bool) (conflicts int, err error) {
	objects, err := s.proxy.Cluster(name.Path()).Dynamic()
	if err != nil {
		return 0, err
	}
	in := objects.Resource(k.GroupVersionResource)
	var errs []error
	keep := map[string]bool{}
	for _, from := range k.from.Lister().List(nil) {
		if !wanted || from.GetDeletionTimestamp() != nil || logicalcluster.From(from) == name {
			continue
		}
		keep[from.GetNamespace()+"/"+from.GetName()] = true
		err := s.copy(ctx, k, in, name, copyOf(from, s.name))
		if errors.Is(err, errConflict) {
			conflicts, err = conflicts+1, nil
		}
		errs = append(errs, err)
	}
	for _, c := range k.copies.Lister().InCluster(name, nil) {
		_, original := c.GetLabels()[copyLabel]
		if original || keep[c.GetNamespace()+"/"+c.GetName()] || c.GetDeletionTimestamp() != nil {
			continue
		}
		uid, version := c.GetUID(), c.GetResourceVersion()
		err := in.Namespace(c.GetNamespace()).Delete(ctx, c.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
		switch {
		case err == nil:
			s.writes.WithLabelValues("delete").Inc()
		case !apierrors.IsNotFound(err):
			errs = append(errs, err)
		}
	}
	return conflicts, errors.Join(errs...)
}

// errConflict is the error of a copy that something is in the way of, which was told.
var errConflict = errors.New("something is in the way")

// copy has a workspace have a copy.
func (s *syncer) copy(ctx context.Context, k kind, in dynamic.NamespaceableResourceInterface, name logicalcluster.Name, obj *unstructured.Unstructured) error {
	at := in.Namespace(obj.GetNamespace())
	old, err := k.copies.Lister().Get(client.Key{Cluster: name, Namespace: obj.GetNamespace(), Name: obj.GetName()})
	if apierrors.IsNotFound(err) {
		old, err = at.Get(ctx, obj.GetName(), metav1.GetOptions{}) // what is no copy is not followed
	}
	switch {
	case apierrors.IsNotFound(err):
		// It is made, as what is applied that is not there.
	case err != nil: // It is not known yet whether there is one.
		return err
	case old.GetLabels()[byLabel] != s.name:
		return s.tell(ctx, name, old, "there is an object of this name that is not a copy: delete or rename it")
	case contains(old.Object, obj.Object):
		return nil
	default:
		obj.SetUID(old.GetUID()) // not another one, which somebody made meanwhile
	}
	_, err = at.Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: s.name, Force: s.force})
	switch {
	case err == nil:
		s.writes.WithLabelValues("apply").Inc()
	case obj.GetUID() != "" && apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict):
		return s.tell(ctx, name, old, "it was changed, and is not kept up to date: undo that, or delete it: "+err.Error())
	}
	return err
}

// tell tells who has the workspace what is in the way of a copy, and returns errConflict.
func (s *syncer) tell(ctx context.Context, name logicalcluster.Name, obj *unstructured.Unstructured, why string) error {
	klog.FromContext(ctx).Info("Something is in the way of a copy", "cluster", name, "object", klog.KObj(obj), "why", why)
	about := corev1.ObjectReference{APIVersion: obj.GetAPIVersion(), Kind: obj.GetKind(), Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: obj.GetUID()}
	err := events.Record(ctx, s.proxy.Cluster(name.Path()), events.Event{
		About: about, Component: s.name, Type: corev1.EventTypeWarning, Reason: "NotCopied", Message: "from " + s.from + ": " + why,
	}, why)
	if err == nil {
		err = errConflict
	}
	return err
}

// counts returns the sum over the workspaces of this replica.
func (s *syncer) counts() (sum counts) {
	owned, _ := s.replicas.Ranges()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, last := range s.last {
		if lc, err := s.clusters.Lister().Get(client.Key{Cluster: name, Name: corev1alpha1.LogicalClusterName}); err != nil || !owned.Contains(lc) {
			delete(s.last, name) // it is looked at anew when it comes back
			continue
		}
		sum.targets += last.targets
		sum.failing += last.failing
		sum.conflicts += last.conflicts
	}
	return sum
}

// copyOf returns what is applied to have a copy of an object.
func copyOf(from *unstructured.Unstructured, by string) *unstructured.Unstructured {
	obj := from.DeepCopy()
	delete(obj.Object, "status")
	obj.Object["metadata"] = map[string]any{}
	obj.SetName(from.GetName())
	obj.SetNamespace(from.GetNamespace())
	labelled := from.GetLabels()
	delete(labelled, copyLabel)
	labelled[byLabel] = by
	obj.SetLabels(labelled)
	annotations := map[string]string{}
	for key, value := range from.GetAnnotations() {
		domain, _, _ := strings.Cut(key, "/")
		if key != corev1.LastAppliedConfigAnnotation && !strings.HasSuffix("."+domain, ".kcp.io") {
			annotations[key] = value
		}
	}
	obj.SetAnnotations(annotations)
	annotations[hashAnnotation] = fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%#v", obj.Object)))[:16]
	obj.SetAnnotations(annotations)
	return obj
}

// contains reports whether a document has all that another one has.
func contains(whole, part any) bool {
	wholeMap, isMap := whole.(map[string]any)
	partMap, wantsMap := part.(map[string]any)
	if !isMap || !wantsMap {
		return reflect.DeepEqual(whole, part)
	}
	for key, value := range partMap {
		if found, ok := wholeMap[key]; !ok || !contains(found, value) {
			return false
		}
	}
	return true
}
