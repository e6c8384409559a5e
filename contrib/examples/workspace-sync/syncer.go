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
	// copyLabel is a label of objects that are copied.
	copyLabel = "workspace-sync.shardplane.io/copy"
	// byLabel is a label of copies. Its value is --name.
	byLabel = "workspace-sync.shardplane.io/by"
	// hashAnnotation is an annotation of copies with a hash of the source. It changes if the source loses a field. Otherwise the field would
	// look like one that was added to the copy by another client.
	hashAnnotation = "workspace-sync.shardplane.io/hash"
	// conflictRetry is the interval of retries after conflicts, because objects of others are not watched.
	conflictRetry = time.Minute
)

var logicalClusters = client.DefineResource[corev1alpha1.LogicalCluster, corev1alpha1.LogicalClusterList](corev1alpha1.SchemeGroupVersion, "logicalclusters")

// syncer syncs the copies in the workspaces that the ring assigns to this replica.
type syncer struct {
	options

	proxy      *client.Factory
	replicas   *ring.Ring
	clusters   *shards.Multi[*corev1alpha1.LogicalCluster]
	kinds      []kind
	controller *reconcile.Controller[logicalcluster.Name]

	writes *prometheus.CounterVec

	mu sync.Mutex
	// last contains the last result for each workspace.
	last map[logicalcluster.Name]counts
}

// counts contains numbers of workspaces that should have copies, and of conflicting copies.
type counts struct{ targets, failing, conflicts int }

// kind is a copied resource with its sources, and the copies in workspaces of this replica.
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
	// Ranges are by logical cluster, so that a replica has a workspace with all its copies.
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
		gauge("targets", "Workspaces of this replica that should have copies.", func(c counts) int { return c.targets }),
		gauge("failing", "Workspaces of this replica with an error in the last attempt.", func(c counts) int { return c.failing }),
		gauge("conflicts", "Copies that are not created or updated because of conflicts with objects or changes of others.", func(c counts) int { return c.conflicts }),
	)
	return s, nil
}

func of[T client.Object](obj T) []logicalcluster.Name {
	return []logicalcluster.Name{logicalcluster.From(obj)}
}

// parts returns the functions to run. Workspaces are only synced after the sources have been read, because copies without a source are
// deleted.
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

// ready returns nil if this replica syncs its workspaces.
func (s *syncer) ready() error {
	if status := s.replicas.Status(); status.Epoch == 0 || status.Isolated {
		return errors.New("ring: " + status.Waits)
	}
	for _, k := range s.kinds {
		if !k.from.HasSynced() {
			return fmt.Errorf("%s in %s have not been read yet: %w", k.Resource, s.from, k.from.LastError())
		}
		if !k.copies.HasSynced(shards.Reachable) || !s.clusters.HasSynced(shards.Reachable) {
			return errors.New("the shards have not been read yet")
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
		// If it is being deleted, its objects are deleted as well. If it is unknown, e.g. because its shard was removed, copies must not be
		// deleted.
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

// sync updates the copies of a kind in a workspace, and returns the number of conflicts.
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

// errConflict is returned for conflicts that have been reported.
var errConflict = errors.New("the copy conflicts with another object or change")

// copy creates or updates a copy in a workspace.
func (s *syncer) copy(ctx context.Context, k kind, in dynamic.NamespaceableResourceInterface, name logicalcluster.Name, obj *unstructured.Unstructured) error {
	at := in.Namespace(obj.GetNamespace())
	old, err := k.copies.Lister().Get(client.Key{Cluster: name, Namespace: obj.GetNamespace(), Name: obj.GetName()})
	if apierrors.IsNotFound(err) {
		old, err = at.Get(ctx, obj.GetName(), metav1.GetOptions{}) // only copies are watched
	}
	switch {
	case apierrors.IsNotFound(err):
		// Apply creates it.
	case err != nil:
		return err
	case old.GetLabels()[byLabel] != s.name:
		return s.report(ctx, name, old, "an object with this name exists that is not a copy: delete or rename it")
	case contains(old.Object, obj.Object):
		return nil
	default:
		obj.SetUID(old.GetUID()) // fails if the object was replaced meanwhile
	}
	_, err = at.Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: s.name, Force: s.force})
	switch {
	case err == nil:
		s.writes.WithLabelValues("apply").Inc()
	case obj.GetUID() != "" && apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict):
		return s.report(ctx, name, old, "it was changed, and is not updated anymore: revert the change, or delete it: "+err.Error())
	}
	return err
}

// report reports a conflict by an Event in the workspace, and returns errConflict.
func (s *syncer) report(ctx context.Context, name logicalcluster.Name, obj *unstructured.Unstructured, reason string) error {
	klog.FromContext(ctx).Info("A copy conflicts with another object or change", "cluster", name, "object", klog.KObj(obj), "reason", reason)
	about := corev1.ObjectReference{APIVersion: obj.GetAPIVersion(), Kind: obj.GetKind(), Namespace: obj.GetNamespace(), Name: obj.GetName(), UID: obj.GetUID()}
	err := events.Record(ctx, s.proxy.Cluster(name.Path()), events.Event{
		About: about, Component: s.name, Type: corev1.EventTypeWarning, Reason: "NotCopied", Message: "from " + s.from + ": " + reason,
	}, reason)
	if err == nil {
		err = errConflict
	}
	return err
}

// counts returns the sums for the workspaces of this replica.
func (s *syncer) counts() (sum counts) {
	owned, _ := s.replicas.Ranges()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, last := range s.last {
		if lc, err := s.clusters.Lister().Get(client.Key{Cluster: name, Name: corev1alpha1.LogicalClusterName}); err != nil || !owned.Contains(lc) {
			delete(s.last, name) // synced again if it is assigned again
			continue
		}
		sum.targets += last.targets
		sum.failing += last.failing
		sum.conflicts += last.conflicts
	}
	return sum
}

// copyOf returns the configuration to apply for a copy of an object.
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

// contains reports whether part is a subset of whole.
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
