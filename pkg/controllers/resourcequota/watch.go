package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/documents"
)

// syncWait is how long counting waits for a watch to have seen everything.
const syncWait = 10 * time.Second

var errStopped = errors.New("the controller does not run")

// watches are the watches of what quotas count, in each namespace that has
// quotas.
type watches struct {
	local   *client.Factory
	changed func(namespace)

	mu         sync.Mutex
	ctx        context.Context //nolint:containedctx // the life of the watches, which is that of the controller
	running    sync.WaitGroup
	namespaces map[namespace]map[schema.GroupResource]*counter
}

// counter counts the objects of one resource in one namespace.
type counter struct {
	informer *client.Informer[*metav1.PartialObjectMetadata]
	cancel   context.CancelFunc
}

func newWatches(local *client.Factory, changed func(namespace)) *watches {
	return &watches{local: local, changed: changed, namespaces: map[namespace]map[schema.GroupResource]*counter{}}
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
	w.namespaces = map[namespace]map[schema.GroupResource]*counter{}
	w.mu.Unlock()
	w.running.Wait()
}

// count returns the number of objects of each resource in the namespace, and
// watches these and no others from now on. Resources that are not served are
// left out.
func (w *watches) count(ctx context.Context, in namespace, resources []schema.GroupResource) (map[schema.GroupResource]int64, error) {
	w.keep(in, resources)
	counts := make(map[schema.GroupResource]int64, len(resources))
	for _, resource := range resources {
		c, err := w.counter(ctx, in, resource)
		if err != nil {
			return nil, fmt.Errorf("counting %s: %w", resource, err)
		}
		if c == nil {
			continue
		}
		wait, cancel := context.WithTimeout(ctx, syncWait)
		err = c.informer.WaitForSync(wait)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("counting %s: %w", resource, err)
		}
		counts[resource] = int64(c.informer.Lister().Len())
	}
	return counts, nil
}

// keep ends the watches of all but the given resources.
func (w *watches) keep(in namespace, resources []schema.GroupResource) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for resource, c := range w.namespaces[in] {
		if !slices.Contains(resources, resource) {
			c.cancel()
			delete(w.namespaces[in], resource)
		}
	}
	if len(w.namespaces[in]) == 0 {
		delete(w.namespaces, in)
	}
}

//nolint:contextcheck // the counter lives as long as a quota wants it, not as the call
func (w *watches) counter(ctx context.Context, in namespace, resource schema.GroupResource) (*counter, error) {
	w.mu.Lock()
	found := w.namespaces[in][resource]
	gone := found != nil && apierrors.IsNotFound(found.informer.LastError())
	if gone { // it may be served again, in another version
		found.cancel()
		delete(w.namespaces[in], resource)
	}
	w.mu.Unlock()
	if found != nil && !gone {
		return found, nil
	}
	gvr, served, err := w.version(ctx, in, resource)
	if err != nil || !served {
		return nil, err
	}
	informer, err := client.NewMetadataInformer(w.local.Cluster(in.Cluster.Path()), gvr, client.InformerOptions[*metav1.PartialObjectMetadata]{
		Namespace: in.Name,
		Transform: nothingBut,
	})
	if err != nil {
		return nil, err
	}
	informer.AddEventHandler(informer.KeyHandler(func(client.Key) { w.changed(in) }))

	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx == nil || w.ctx.Err() != nil {
		return nil, errStopped
	}
	life, cancel := context.WithCancel(w.ctx)
	c := &counter{informer: informer, cancel: cancel}
	if w.namespaces[in] == nil {
		w.namespaces[in] = map[schema.GroupResource]*counter{}
	}
	w.namespaces[in][resource] = c
	w.running.Go(func() {
		if err := informer.Run(life); err != nil {
			klog.FromContext(life).Error(err, "Cannot watch what a quota counts", "cluster", in.Cluster, "namespace", in.Name, "resource", gvr)
		}
	})
	return c, nil
}

// nothingBut keeps of an object what identifies it.
func nothingBut(obj *metav1.PartialObjectMetadata) (*metav1.PartialObjectMetadata, error) {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: obj.Name, Namespace: obj.Namespace, UID: obj.UID, ResourceVersion: obj.ResourceVersion, Annotations: clusterOf(obj),
	}}, nil
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
