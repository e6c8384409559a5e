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
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const syncWait = 10 * time.Second

var errStopped = errors.New("the controller is not running")

// batchDelay is the delay between a change and the count, so that several changes are counted together.
const batchDelay = 100 * time.Millisecond

// maxCounters limits the watched resources of a logical cluster. Further resources are counted without a watch, when a
// quota changes and periodically.
//
//reference:limit cluster | resources that are watched for quotas | others are counted every 5 minutes
const maxCounters = 500

const byNamespace = "namespace" // index of objects

// namespace is a namespace of a logical cluster, or the complete logical cluster if Name is empty.
type namespace struct {
	Cluster logicalcluster.Name
	Name    string
}

// LogicalCluster implements the interface of keys in pkg/reconcile.
func (n namespace) LogicalCluster() logicalcluster.Name { return n.Cluster }

// counts are the numbers of objects. Resources that are not served are in neither map.
type counts struct {
	objects map[schema.GroupResource]int64
	// failed contains errors of resources that could not be counted.
	failed map[schema.GroupResource]error
}

// watches contains an informer for each counted resource of a logical cluster, which all of its namespaces share.
type watches struct {
	local *client.Factory

	mu       sync.Mutex
	ctx      context.Context //nolint:containedctx // of the watches: the lifetime of the controller
	queue    reconcile.Queue[namespace]
	running  sync.WaitGroup
	clusters map[logicalcluster.Name]map[schema.GroupResource]*counter
}

// counter counts the objects of one resource in one logical cluster.
type counter struct {
	informer *client.Informer[*metav1.PartialObjectMetadata]
	cancel   context.CancelFunc
	late     atomic.Bool      // set if it did not sync in time
	users    sets.Set[string] // the namespaces with quotas that count the resource, guarded by watches.mu
}

func newWatches(local *client.Factory) *watches {
	return &watches{local: local, clusters: map[logicalcluster.Name]map[schema.GroupResource]*counter{}}
}

// source is a reconcile.Source of the namespaces with changed objects. The watches end with it.
func (w *watches) source(ctx context.Context, queue reconcile.Queue[namespace]) (func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ctx, w.queue = ctx, queue
	return func() {
		cancel()
		w.mu.Lock()
		w.clusters = map[logicalcluster.Name]map[schema.GroupResource]*counter{}
		w.mu.Unlock()
		w.running.Wait()
	}, nil
}

// count returns the number of objects of each resource in the namespace, and watches exactly these resources for it.
func (w *watches) count(ctx context.Context, in namespace, resources []schema.GroupResource) counts {
	w.release(in, resources)
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
		if c, err = w.counter(in, gvr); err != nil { //nolint:contextcheck // it outlives the call
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

// wait waits until the counter has synced. It does not wait if the informer fails, e.g. because of a conversion webhook, or
// was late before, because this would delay all entries of the quotas.
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
	again := time.NewTicker(batchDelay)
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

// release stops the watches that the namespace no longer needs if no other namespace uses them.
func (w *watches) release(in namespace, resources []schema.GroupResource) {
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

// use returns the existing counter of a resource, or nil and whether the limit of the logical cluster has been reached.
func (w *watches) use(in namespace, resource schema.GroupResource) (c *counter, full bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.clusters[in.Cluster]
	found := all[resource]
	if found != nil && apierrors.IsNotFound(found.informer.LastError()) { // the resource may be served in another version
		found.cancel()
		delete(all, resource)
		for user := range found.users {
			if user != in.Name { // it would not be notified any more
				w.queue.AddAfter(namespace{Cluster: in.Cluster, Name: user}, batchDelay)
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

func (w *watches) counter(in namespace, gvr schema.GroupVersionResource) (*counter, error) {
	informer, err := client.NewMetadataInformer(w.local.Cluster(in.Cluster.Path()), gvr, client.InformerOptions[*metav1.PartialObjectMetadata]{
		Transform: slim,
		Indexers: map[string]client.IndexFunc[*metav1.PartialObjectMetadata]{
			byNamespace: func(obj *metav1.PartialObjectMetadata) []string { return []string{obj.Namespace} },
		},
	})
	if err != nil {
		return nil, err
	}
	c := &counter{informer: informer, users: sets.New(in.Name)}
	informer.AddKeyHandler(func(key client.Key) { w.notify(c, key) }, nil)

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
	if found := all[gvr.GroupResource()]; found != nil { // started concurrently
		found.users.Insert(in.Name)
		return found, nil
	}
	life, cancel := context.WithCancel(w.ctx)
	c.cancel = cancel
	all[gvr.GroupResource()] = c
	w.running.Go(func() {
		if err := informer.Run(life); err != nil {
			klog.FromContext(life).Error(err, "Failed to watch a resource with quotas", "logicalCluster", in.Cluster, "resource", gvr)
		}
	})
	return c, nil
}

// notify notifies the namespaces that count an object: its own one, and "" for the logical cluster.
func (w *watches) notify(c *counter, key client.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.users.Has(key.Namespace) {
		w.queue.AddAfter(namespace{Cluster: key.Cluster, Name: key.Namespace}, batchDelay)
	}
	if key.Namespace != "" && c.users.Has("") {
		w.queue.AddAfter(namespace{Cluster: key.Cluster}, batchDelay)
	}
}

func slim(obj *metav1.PartialObjectMetadata) (*metav1.PartialObjectMetadata, error) {
	return &metav1.PartialObjectMetadata{ObjectMeta: tenancy.Slim(&obj.ObjectMeta)}, nil
}

// version returns a served version of a resource.
func (w *watches) version(ctx context.Context, in namespace, resource schema.GroupResource) (schema.GroupVersionResource, bool, error) {
	scope := w.local.Cluster(in.Cluster.Path())
	if resource.Group == "" { // most of it is v1
		if found, served, err := servedIn(ctx, scope, in, resource.WithVersion("v1")); served || err != nil {
			return found, served, err
		}
	}
	scoped, err := documents.Of(scope)
	if err != nil {
		return schema.GroupVersionResource{}, false, err
	}
	groups, err := discovery.ToDiscoveryInterfaceWithContext(scoped).ServerGroupsWithContext(ctx)
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
