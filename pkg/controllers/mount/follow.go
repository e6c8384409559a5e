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

// definitions are the keys of CustomResourceDefinitions.
var definitions = storage.ResourcePrefix(apiextensionsv1.Resource("customresourcedefinitions")) + "/"

// lookAgain is when mounts are looked at after something else is served: what serves it may
// hear of it a moment later.
var lookAgain = []time.Duration{0, time.Second, 10 * time.Second}

// follower knows which objects are mounted, and has their mounts looked at when they change.
type follower struct {
	// listen has changed called with the key of each object that is written, or with none
	// when any may have been.
	listen func(changed func(key string)) (stop func())

	mu    sync.Mutex
	queue reconcile.Queue[client.Key]
	// items has the key of the object that each mount waits for, empty where there can be
	// none, and mounts the reverse of it. byCluster has all of them.
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

// source has mounts looked at when what they mount, or what is served, changes.
func (f *follower) source(_ context.Context, queue reconcile.Queue[client.Key]) (stop func(), err error) {
	f.mu.Lock()
	f.queue = queue
	f.mu.Unlock()
	return f.listen(f.changed), nil
}

// changed is called for each write on the shard, most of which are of nothing that is mounted.
func (f *follower) changed(key string) {
	if place, ok := storage.ObjectKeyOf(definitions, key); ok {
		f.redefined(place.Cluster)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lookLocked(f.mounts[key], 0)
	if key == "" {
		for _, mounts := range f.byCluster {
			f.lookLocked(mounts, 0)
		}
	}
}

// redefined has the mounts of a logical cluster looked at, which serves something else.
func (f *follower) redefined(cluster logicalcluster.Name) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lookLocked(f.byCluster[cluster], lookAgain...)
}

func (f *follower) lookLocked(mounts map[client.Key]struct{}, after ...time.Duration) {
	for mount := range mounts {
		for _, wait := range after {
			f.queue.AddAfter(mount, wait)
		}
	}
}

// follow has a mount looked at whenever the object is written whose key is item, and whenever
// something else is served; item is empty for what is not served. When it has returned, no
// change is missed.
func (f *follower) follow(mount client.Key, item string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leaveLocked(mount)
	f.items[mount] = item
	add(f.byCluster, mount.Cluster, mount)
	if item != "" {
		add(f.mounts, item, mount)
	}
}

// forget is for a mount whose Workspace is gone.
func (f *follower) forget(mount client.Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leaveLocked(mount)
	delete(f.items, mount)
	remove(f.byCluster, mount.Cluster, mount)
}

func (f *follower) leaveLocked(mount client.Key) {
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
