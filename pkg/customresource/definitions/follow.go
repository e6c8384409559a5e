package definitions

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/hub"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
)

// Run keeps the index up to date until ctx ends, by listing and watching the storage in this process.
func (o *Index) Run(ctx context.Context) {
	defer close(o.ended)
	everywhere := request.Cluster{Wildcard: true}
	listWatch := &cache.ListWatch{
		// Ignores the options, i.e. lists everything at the current revision.
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			return o.store.List(storeContext(ctx, everywhere), &internalversion.ListOptions{})
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return o.store.Watch(storeContext(ctx, everywhere), &internalversion.ListOptions{
				ResourceVersion: options.ResourceVersion, AllowWatchBookmarks: true,
			})
		},
	}
	cache.NewReflectorWithOptions(inProcess{listWatch}, nil, reflectorStore{ctx, o}, cache.ReflectorOptions{
		Name: "customresourcedefinitions",
		// The interval is short, because writes wait for the index and only this reflector queries etcd.
		Backoff: &wait.Backoff{Duration: 20 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: 5 * time.Second},
	}).RunWithContext(ctx)
}

// inProcess disables WatchList, because reflectors then identify objects by name, and logical clusters share names.
type inProcess struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is called by reflectors.
func (inProcess) IsWatchListSemanticsUnSupported() bool { return true }

type reflectorStore struct {
	ctx context.Context //nolint:containedctx // reflectors hand over none
	*Index
}

var (
	_ cache.ReflectorStore         = reflectorStore{}
	_ cache.ResourceVersionUpdater = reflectorStore{}
)

func (r reflectorStore) Add(obj any) error {
	crd, err := definitionOf(obj)
	if err == nil {
		r.upsert(r.ctx, crd)
	}
	return err
}

func (r reflectorStore) Update(obj any) error { return r.Add(obj) }

func (r reflectorStore) Delete(obj any) error {
	crd, err := definitionOf(obj)
	if err == nil {
		cluster := logicalcluster.From(crd)
		r.unreadable.Remove(cluster, keyOf(cluster, crd.Name))
		r.replace(cluster, crd.Name, nil)
	}
	return err
}

func definitionOf(obj any) (*apiextensions.CustomResourceDefinition, error) {
	if event, ok := obj.(runtime.Object); ok {
		obj = hub.Unwrap(event)
	}
	crd, ok := obj.(*apiextensions.CustomResourceDefinition)
	if !ok {
		return nil, fmt.Errorf("the storage of definitions returned a %T", obj)
	}
	return crd, nil
}

func (r reflectorStore) Replace(all []any, resourceVersion string) error {
	revision, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return fmt.Errorf("resource version %q of the list of definitions: %w", resourceVersion, err)
	}
	present := map[logicalcluster.Name]map[string]bool{}
	for _, obj := range all {
		crd, err := definitionOf(obj)
		if err != nil {
			return err
		}
		put(present, logicalcluster.From(crd), crd.Name, true)
		r.upsert(r.ctx, crd)
	}
	r.mu.RLock()
	var removed []*entry
	for cluster, of := range r.clusters {
		for name, e := range of {
			if !present[cluster][name] {
				removed = append(removed, e)
			}
		}
	}
	r.mu.RUnlock()
	for _, e := range removed {
		r.replace(e.cluster, e.name, nil)
	}
	r.advance(revision, true)
	return nil
}

// UpdateResourceVersion implements cache.ResourceVersionUpdater: of each event, once it is applied.
func (r reflectorStore) UpdateResourceVersion(resourceVersion string) {
	if revision, err := strconv.ParseUint(resourceVersion, 10, 64); err == nil {
		r.advance(revision, false)
	}
}

// Resync implements cache.ReflectorStore; it is not used.
func (reflectorStore) Resync() error { return nil }

// advance notifies the goroutines that wait for a revision.
func (o *Index) advance(revision uint64, synced bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.synced = o.synced || synced
	o.revision = max(o.revision, revision)
	close(o.advanced)
	o.advanced = make(chan struct{})
}

// upsert adds or updates a definition. If the definition cannot be served, it is removed.
func (o *Index) upsert(ctx context.Context, crd *apiextensions.CustomResourceDefinition) {
	cluster := logicalcluster.From(crd)
	if cluster == "" {
		return // not written through the API
	}
	e, err := o.newEntry(cluster, crd)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to serve definition", "logicalCluster", cluster, "definition", crd.Name)
		reason := unreadable.Conversion
		if bad := unreadable.Of(err); bad != nil {
			reason = bad.Reason
		}
		revision, _ := strconv.ParseInt(crd.ResourceVersion, 10, 64)
		o.unreadable.Add(unreadable.Object{
			Key: keyOf(cluster, crd.Name), Revision: revision, Resource: definitionsResource, Cluster: cluster, Name: crd.Name,
			Reason: reason, Message: fmt.Sprintf("it cannot be served: %v", err),
		})
		o.replace(cluster, crd.Name, nil)
		return
	}
	o.unreadable.Remove(cluster, keyOf(cluster, crd.Name))
	o.replace(cluster, crd.Name, e)
}

var definitionsResource = apiextensions.Resource("customresourcedefinitions")

func keyOf(cluster logicalcluster.Name, name string) string {
	return storage.Key(storage.ResourcePrefix(definitionsResource)+"/", "", cluster, "", name)
}

// replace adds, updates or, if e is nil, removes an entry, and notifies the listeners.
func (o *Index) replace(cluster logicalcluster.Name, name string, e *entry) {
	o.mu.Lock()
	before := o.clusters[cluster][name]
	switch {
	case e != nil && before != nil && before.revision >= e.revision:
		o.mu.Unlock()
		o.table.Release(e.schema, time.Now())
		return
	case e != nil:
		put(o.clusters, cluster, name, e)
		put(o.byName, name, cluster, e)
	default:
		remove(o.clusters, cluster, name)
		remove(o.byName, name, cluster)
	}
	o.mu.Unlock()

	if before == nil && e == nil {
		return
	}
	if before != nil && (e == nil || e.schema != before.schema || e.served != before.served) {
		o.changes.Notify(Change{Schema: before.schema, Cluster: request.Cluster{Name: cluster}, Removed: e == nil || !e.served})
	}
	o.entries.Notify(entryChange{before, e})
	if before != nil {
		o.table.Release(before.schema, time.Now())
	}
}

func put[K1, K2 comparable, V any](m map[K1]map[K2]V, k1 K1, k2 K2, v V) {
	inner := m[k1]
	if inner == nil {
		inner = map[K2]V{}
		m[k1] = inner
	}
	inner[k2] = v
}

func remove[K1, K2 comparable, V any](m map[K1]map[K2]V, k1 K1, k2 K2) {
	delete(m[k1], k2)
	if len(m[k1]) == 0 {
		delete(m, k1)
	}
}
