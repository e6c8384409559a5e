package resourcequota

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/documents"
)

// syncWait is how long counting waits for a watch to have seen everything.
const syncWait = 10 * time.Second

var errStopped = errors.New("the controller does not run")

// gather is how long news about a namespace is gathered before it is
// counted, so that many deletions are counted together.
const gather = 100 * time.Millisecond

// maxCounters is how many resources are watched in one logical cluster. What quotas count beyond
// that is counted without a watch, when a quota changes and all recount.
const maxCounters = 500

// byNamespace is the index of objects by their namespaces.
const byNamespace = "namespace"

// namespace is a namespace of a logical cluster, or, without a name, the whole logical
// cluster.
type namespace struct {
	Cluster logicalcluster.Name
	Name    string
}

// LogicalCluster returns the logical cluster, by which namespaces take turns.
func (n namespace) LogicalCluster() logicalcluster.Name { return n.Cluster }

// watches are the watches of what quotas count: one for each resource of a logical cluster, for
// all of its namespaces that have such quotas. So there are no more than kinds that are served there.
type watches struct {
	local   *client.Factory
	changed func(namespace)

	mu       sync.Mutex
	ctx      context.Context //nolint:containedctx // the life of the watches, which is that of the controller
	running  sync.WaitGroup
	clusters map[logicalcluster.Name]map[schema.GroupResource]*counter
}

// counter counts the objects of one resource in one logical cluster.
type counter struct {
	informer *client.Informer[*metav1.PartialObjectMetadata]
	cancel   context.CancelFunc
	// late is set if everything was not seen in time.
	late atomic.Bool
	// users are the namespaces with quotas that count the resource, under the lock of watches.
	users sets.Set[string]
}

func newWatches(local *client.Factory, changed func(namespace)) *watches {
	return &watches{local: local, changed: changed, clusters: map[logicalcluster.Name]map[schema.GroupResource]*counter{}}
}

// open lets watches run until ctx ends.
func (w *watches) open(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ctx = ctx
}

// close waits for the watches, whose context has ended.
func (w *watches) close() {
	w.mu.Lock()
	w.clusters = map[logicalcluster.Name]map[schema.GroupResource]*counter{}
	w.mu.Unlock()
	w.running.Wait()
}

// count returns the number of objects of each resource in the namespace, and
// watches these and no others for it from now on.
func (w *watches) count(ctx context.Context, in namespace, resources []schema.GroupResource) counts {
	w.keep(in, resources)
	all := counts{objects: make(map[schema.GroupResource]int64, len(resources)), failed: map[schema.GroupResource]error{}}
	for _, resource := range resources {
		n, served, err := w.countOf(ctx, in, resource)
		if err != nil {
			all.failed[resource] = err
		} else if served {
			all.objects[resource] = n
		}
	}
	return all
}

func (w *watches) countOf(ctx context.Context, in namespace, resource schema.GroupResource) (n int64, served bool, err error) {
	c, full := w.use(in, resource)
	if c == nil {
		gvr, served, err := w.version(ctx, in, resource)
		if err != nil || !served {
			return 0, false, err
		}
		if full {
			n, err := w.list(ctx, in, gvr)
			return n, true, err
		}
		if c, err = w.counter(in, gvr); err != nil { //nolint:contextcheck // it lives as long as a quota wants it, not as the call
			return 0, false, err
		}
	}
	if err := c.wait(ctx); err != nil {
		return 0, false, err
	}
	if in.Name == "" {
		return int64(c.informer.Lister().Len()), true, nil
	}
	found, err := c.informer.Lister().ByIndex(byNamespace, in.Name)
	return int64(len(found)), true, err
}

// wait waits until the counter has seen everything. It does not wait for one that fails, e.g. because of a conversion
// webhook, or that was too late before: all other entries of the quotas would be late, too.
func (c *counter) wait(ctx context.Context) error {
	if c.informer.HasSynced() {
		return nil
	}
	limit := syncWait
	if c.late.Load() {
		limit = 0
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	again := time.NewTicker(gather)
	defer again.Stop()
	for {
		select {
		case <-c.informer.Synced():
			return nil
		case <-ctx.Done():
			c.late.Store(true)
			return c.informer.WaitForSync(ctx)
		case <-again.C:
			if err := c.informer.LastError(); err != nil {
				return err
			}
		}
	}
}

// list counts without a watch.
func (w *watches) list(ctx context.Context, in namespace, gvr schema.GroupVersionResource) (int64, error) {
	clients, err := w.local.Cluster(in.Cluster.Path()).Metadata()
	if err != nil {
		return 0, err
	}
	page, err := clients.Resource(gvr).Namespace(in.Name).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	return int64(len(page.Items)) + ptr.Deref(page.RemainingItemCount, 0), nil
}

// keep ends the watches of what nobody counts any more, since the namespace counts the given
// resources only.
func (w *watches) keep(in namespace, resources []schema.GroupResource) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.clusters[in.Cluster]
	for resource, c := range all {
		if !c.users.Has(in.Name) || slices.Contains(resources, resource) {
			continue
		}
		if c.users.Delete(in.Name); c.users.Len() == 0 {
			c.cancel()
			delete(all, resource)
		}
	}
	if len(all) == 0 {
		delete(w.clusters, in.Cluster)
	}
}

// use returns the counter that there is, for a namespace too from now on, or nil, and whether there may
// be no more of them in the logical cluster.
func (w *watches) use(in namespace, resource schema.GroupResource) (c *counter, full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.clusters[in.Cluster]
	found := all[resource]
	if found != nil && apierrors.IsNotFound(found.informer.LastError()) { // it may be served again, in another version
		found.cancel()
		delete(all, resource)
		for user := range found.users {
			if user != in.Name { // which would hear no more of it
				w.changed(namespace{Cluster: in.Cluster, Name: user})
			}
		}
		found = nil
	}
	if found == nil {
		return nil, len(all) >= maxCounters
	}
	found.users.Insert(in.Name)
	return found, false
}

// counter counts a resource from now on.
func (w *watches) counter(in namespace, gvr schema.GroupVersionResource) (*counter, error) {
	informer, err := client.NewMetadataInformer(w.local.Cluster(in.Cluster.Path()), gvr, client.InformerOptions[*metav1.PartialObjectMetadata]{
		Transform: nothingBut,
		Indexers: map[string]client.IndexFunc[*metav1.PartialObjectMetadata]{
			byNamespace: func(obj *metav1.PartialObjectMetadata) []string { return []string{obj.Namespace} },
		},
	})
	if err != nil {
		return nil, err
	}
	c := &counter{informer: informer, users: sets.New(in.Name)}
	informer.AddEventHandler(informer.KeyHandler(func(key client.Key) { w.tell(c, key) }))

	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx == nil || w.ctx.Err() != nil {
		return nil, errStopped
	}
	all := w.clusters[in.Cluster]
	if all == nil {
		all = map[schema.GroupResource]*counter{}
		w.clusters[in.Cluster] = all
	}
	if found := all[gvr.GroupResource()]; found != nil { // another namespace was quicker
		found.users.Insert(in.Name)
		return found, nil
	}
	life, cancel := context.WithCancel(w.ctx)
	c.cancel = cancel
	all[gvr.GroupResource()] = c
	w.running.Go(func() {
		if err := informer.Run(life); err != nil {
			klog.FromContext(life).Error(err, "Cannot watch what a quota counts", "cluster", in.Cluster, "resource", gvr)
		}
	})
	return c, nil
}

// tell says that an object has changed to the namespaces that count it: its own one, and "", the
// whole logical cluster.
func (w *watches) tell(c *counter, key client.Key) {
	w.mu.Lock()
	own, whole := c.users.Has(key.Namespace), c.users.Has("")
	w.mu.Unlock()
	if own {
		w.changed(namespace{Cluster: key.Cluster, Name: key.Namespace})
	}
	if whole && key.Namespace != "" {
		w.changed(namespace{Cluster: key.Cluster})
	}
}

// nothingBut keeps of an object what identifies it.
func nothingBut(obj *metav1.PartialObjectMetadata) (*metav1.PartialObjectMetadata, error) {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: obj.Name, Namespace: obj.Namespace, UID: obj.UID, ResourceVersion: obj.ResourceVersion, Annotations: clusterOf(obj),
	}}, nil
}

// clusterOf returns the annotation that an informer needs of an object.
func clusterOf(obj metav1.Object) map[string]string {
	return map[string]string{logicalcluster.AnnotationKey: logicalcluster.From(obj).String()}
}

// version finds the version in which a resource that can be in there is served.
func (w *watches) version(ctx context.Context, in namespace, resource schema.GroupResource) (schema.GroupVersionResource, bool, error) {
	scope := w.local.Cluster(in.Cluster.Path())
	if resource.Group == "" { // nearly all of it is v1
		if found, served, err := servedIn(ctx, scope, in, resource.WithVersion("v1")); served || err != nil {
			return found, served, err
		}
	}
	asked, err := documents.Of(scope)
	if err != nil {
		return schema.GroupVersionResource{}, false, err
	}
	groups, err := discovery.ToDiscoveryInterfaceWithContext(asked).ServerGroupsWithContext(ctx)
	if err != nil {
		return schema.GroupVersionResource{}, false, err
	}
	for i := range groups.Groups {
		if groups.Groups[i].Name != resource.Group {
			continue
		}
		for _, v := range groups.Groups[i].Versions {
			if found, served, err := servedIn(ctx, scope, in, resource.WithVersion(v.Version)); served || err != nil {
				return found, served, err
			}
		}
	}
	return schema.GroupVersionResource{}, false, nil
}

// servedIn reports whether a resource that can be in there can be watched in a version.
func servedIn(ctx context.Context, scope client.Scope, in namespace, resource schema.GroupVersionResource) (schema.GroupVersionResource, bool, error) {
	list, err := scope.Resources(ctx, resource.GroupVersion())
	if apierrors.IsNotFound(err) {
		return resource, false, nil
	}
	if err != nil {
		return resource, false, err
	}
	return resource, slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool {
		return r.Name == resource.Resource && (r.Namespaced || in.Name == "") && slices.Contains(r.Verbs, "watch")
	}), nil
}
