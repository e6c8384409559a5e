package mount

import (
	"context"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/storage"
)

// definitions is the key prefix of CustomResourceDefinitions.
var definitions = storage.ResourcePrefix(apiextensionsv1.Resource("customresourcedefinitions")) + "/"

// requeueDelays are the delays at which mounts are requeued after the served APIs have changed, because components observe such
// a change at different times.
var requeueDelays = []time.Duration{0, time.Second, 10 * time.Second}

// follower requeues mounts when the mounted objects change.
type follower struct {
	listen func(changed func(key string)) (stop func())

	mu    sync.Mutex
	queue reconcile.Queue[client.Key]
	// items contains the key of the object of each mount, which is empty if its kind is not served. mounts is the reverse
	// mapping, and byCluster contains all mounts.
	items     map[client.Key]string
	mounts    map[string]map[client.Key]struct{}
	byCluster map[logicalcluster.Name]map[client.Key]struct{}
}

func newFollower(listen func(changed func(key string)) (stop func())) *follower {
	return &follower{
		listen: listen, items: map[client.Key]string{},
		mounts: map[string]map[client.Key]struct{}{}, byCluster: map[logicalcluster.Name]map[client.Key]struct{}{},
	}
}

func (f *follower) source(_ context.Context, queue reconcile.Queue[client.Key]) (stop func(), err error) {
	f.mu.Lock()
	f.queue = queue
	f.mu.Unlock()
	return f.listen(f.changed), nil
}

// changed is called for each write on the shard.
func (f *follower) changed(key string) {
	if place, ok := storage.ObjectKeyOf(definitions, key); ok {
		f.redefined(place.Cluster)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.enqueueLocked(f.mounts[key], 0)
	if key == "" {
		for _, mounts := range f.byCluster {
			f.enqueueLocked(mounts, 0)
		}
	}
}

func (f *follower) redefined(cluster logicalcluster.Name) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.enqueueLocked(f.byCluster[cluster], requeueDelays...)
}

func (f *follower) enqueueLocked(mounts map[client.Key]struct{}, after ...time.Duration) {
	for mount := range mounts {
		for _, wait := range after {
			f.queue.AddAfter(mount, wait)
		}
	}
}

// follow requeues a mount when the object with the key item is written, and when the served APIs change; item is empty if
// the kind is not served. Changes after follow returned are not missed.
func (f *follower) follow(mount client.Key, item string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unfollowLocked(mount)
	f.items[mount] = item
	add(f.byCluster, mount.Cluster, mount)
	if item != "" {
		add(f.mounts, item, mount)
	}
}

func (f *follower) forget(mount client.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unfollowLocked(mount)
	delete(f.items, mount)
	remove(f.byCluster, mount.Cluster, mount)
}

func (f *follower) unfollowLocked(mount client.Key) {
	if item := f.items[mount]; item != "" {
		remove(f.mounts, item, mount)
	}
}

func add[K comparable](to map[K]map[client.Key]struct{}, key K, mount client.Key) {
	if to[key] == nil {
		to[key] = map[client.Key]struct{}{}
	}
	to[key][mount] = struct{}{}
}

func remove[K comparable](from map[K]map[client.Key]struct{}, key K, mount client.Key) {
	if delete(from[key], mount); len(from[key]) == 0 {
		delete(from, key)
	}
}
