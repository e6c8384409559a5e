package mcprovider

import (
	"context"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"
	mchandler "sigs.k8s.io/multicluster-runtime/pkg/handler"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"

	"github.com/shardplane/shardplane/pkg/client"
)

// Queue is the queue of a controller.
type Queue = workqueue.TypedRateLimitingInterface[mcreconcile.Request]

// SourceOption is an option of Source.
type SourceOption func(*source)

// WithPredicates drops events unless all predicates accept them.
func WithPredicates(predicates ...predicate.Predicate) SourceOption {
	return func(s *source) { s.predicates = append(s.predicates, predicates...) }
}

// WithHandler sets a handler that returns the requests for an event, as in Watches of multicluster-runtime's builder. The default is a
// request for the object itself. The handler is created for each event. If there is a ring, it only receives objects of logical clusters
// after they have been assigned to this replica.
func WithHandler(f mchandler.EventHandlerFunc) SourceOption {
	return func(s *source) { s.handler = f }
}

// Source returns the events of the objects of a kind in all logical clusters, for WatchesRawSource of multicluster-runtime's builder. Its
// cost does not depend on the number of logical clusters. Initial objects, and those assigned from another replica, have a low priority.
func (p *Provider) Source(obj ctrlclient.Object, options ...SourceOption) ctrlsource.TypedSyncingSource[mcreconcile.Request] {
	s := &source{provider: p, obj: obj}
	for _, option := range options {
		option(s)
	}
	return s
}

type source struct {
	provider   *Provider
	obj        ctrlclient.Object
	predicates []predicate.Predicate
	handler    mchandler.EventHandlerFunc
}

// Start implements ctrlsource.TypedSource.
func (s *source) Start(ctx context.Context, queue Queue) error {
	key, err := s.provider.keyOf(s.obj)
	if err != nil {
		return err
	}
	k, err := s.provider.kind(key)
	if err != nil {
		return err
	}
	f := &feed{source: s, ctx: ctx, queue: queue}
	l := newListener("", f)
	k.add(l)
	// An object may be read before its logical cluster.
	clusters := s.provider.clusters.AddEventHandler(client.Handler[*corev1alpha1.LogicalCluster]{
		OnAdd: func(obj *corev1alpha1.LogicalCluster, _ bool) { f.again(k.list(logicalcluster.From(obj))) },
	}, client.Buffered())
	ungain := func() {}
	if r := s.provider.options.Ring; r != nil {
		ungain = r.OnGain(func(gained client.Ranges) {
			for _, obj := range k.list("") {
				if gained.Contains(obj) {
					f.OnAdd(obj, true)
				}
			}
		})
	}
	context.AfterFunc(ctx, func() {
		k.remove(l)
		clusters.Remove()
		ungain()
	})
	return nil
}

// WaitForSync implements ctrlsource.TypedSyncingSource.
func (s *source) WaitForSync(ctx context.Context) error {
	if err := s.provider.Synced(ctx); err != nil {
		return err
	}
	key, err := s.provider.keyOf(s.obj)
	if err != nil {
		return err
	}
	k, err := s.provider.kind(key)
	if err != nil {
		return err
	}
	return k.WaitForSync(ctx)
}

// String implements fmt.Stringer.
func (s *source) String() string { return "objects of all logical clusters" }

// feed adds requests of a source to a queue.
type feed struct {
	*source

	ctx   context.Context //nolint:containedctx // handlers of controller-runtime have a context parameter
	queue Queue
}

var _ toolscache.ResourceEventHandler = &feed{}

func (f *feed) again(objs []ctrlclient.Object) {
	for _, obj := range objs {
		f.OnAdd(obj, true)
	}
}

// OnAdd implements toolscache.ResourceEventHandler.
func (f *feed) OnAdd(added any, initial bool) {
	obj, ok := added.(ctrlclient.Object)
	e := event.CreateEvent{Object: obj, IsInInitialList: initial}
	if !ok || f.ctx.Err() != nil || !f.matches(func(p predicate.Predicate) bool { return p.Create(e) }) {
		return
	}
	f.handle(obj, initial, func(h mchandler.EventHandler) { h.Create(f.ctx, e, f.queue) })
}

// OnUpdate implements toolscache.ResourceEventHandler.
func (f *feed) OnUpdate(before, after any) {
	old, ok := before.(ctrlclient.Object)
	obj, both := after.(ctrlclient.Object)
	e := event.UpdateEvent{ObjectOld: old, ObjectNew: obj}
	if !ok || !both || f.ctx.Err() != nil || !f.matches(func(p predicate.Predicate) bool { return p.Update(e) }) {
		return
	}
	f.handle(obj, false, func(h mchandler.EventHandler) { h.Update(f.ctx, e, f.queue) })
}

// OnDelete implements toolscache.ResourceEventHandler.
func (f *feed) OnDelete(last any) {
	tombstone, unseen := last.(toolscache.DeletedFinalStateUnknown)
	if unseen {
		last = tombstone.Obj
	}
	obj, ok := last.(ctrlclient.Object)
	e := event.DeleteEvent{Object: obj, DeleteStateUnknown: unseen}
	if !ok || f.ctx.Err() != nil || !f.matches(func(p predicate.Predicate) bool { return p.Delete(e) }) {
		return
	}
	f.handle(obj, false, func(h mchandler.EventHandler) { h.Delete(f.ctx, e, f.queue) })
}

func (f *feed) matches(lets func(predicate.Predicate) bool) bool {
	return !slices.ContainsFunc(f.predicates, func(p predicate.Predicate) bool { return !lets(p) })
}

// handle calls the handler of the object's logical cluster, or adds a request for the object if there is no handler.
func (f *feed) handle(obj ctrlclient.Object, initial bool, call func(mchandler.EventHandler)) {
	if f.handler == nil {
		f.enqueue(obj, initial)
		return
	}
	name := logicalcluster.From(obj)
	if f.provider.owns(f.ctx, name) != nil {
		return
	}
	call(f.handler(multicluster.ClusterName(name), clusterOf{f.provider, name}))
}

func (f *feed) enqueue(obj ctrlclient.Object, initial bool) {
	request := mcreconcile.Request{
		ClusterName: multicluster.ClusterName(logicalcluster.From(obj)),
		Request:     reconcile.Request{NamespacedName: types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}},
	}
	if prioritized, ok := f.queue.(priorityqueue.PriorityQueue[mcreconcile.Request]); ok && initial {
		low := handler.LowPriority
		prioritized.AddWithOpts(priorityqueue.AddOpts{Priority: &low}, request)
		return
	}
	f.queue.Add(request)
}
