package replicas

import (
	"context"
	"maps"
	"time"

	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
)

// resolveInterval is the interval of checks whether a cache has caught up.
const resolveInterval = time.Second

// Factory returns a factory for informers that keep objects which the cache server has lost.
func (c *Cache) Factory() *client.Factory {
	return c.factory.WithGuard(func(informer client.Guarded) client.Guard { return newReader(c, informer) })
}

// Run implements client.Guard: it checks whether the cache has caught up, and whether new shards are covered.
func (r *reader) Run(ctx context.Context) {
	for {
		// All informers check at the same moment, so that an idle process wakes up only once.
		now := time.Now()
		select {
		case <-ctx.Done():
			return
		case <-time.After(now.Truncate(resolveInterval).Add(resolveInterval).Sub(now)):
		}
		shards, round := r.unresolved()
		if len(shards) == 0 {
			continue
		}
		checkpoints, err := r.cache.currentCheckpoints(ctx, time.Time{})
		if err != nil {
			continue // the informer reports the error
		}
		for _, shard := range shards {
			if err := r.resolveShard(ctx, round, shard, checkpoints[shard]); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).V(2).Info("Failed to compare the replicas of a shard, retrying", "informer", r.informer.Name(), "shard", shard, "err", err)
			}
		}
	}
}

// unresolved returns the shards for which the cache may have caught up, or which are not covered.
func (r *reader) unresolved() (shards []string, round int) {
	named := r.cache.shardsWith(r.resource)
	r.informer.Pause(func() {
		if !r.informer.Current() {
			return
		}
		round = r.round
		for shard, l := range r.behind {
			if l.until == "" {
				shards = append(shards, shard)
			}
		}
		for _, shard := range named {
			if !r.coverage.has(shard) && r.behind[shard] == nil && !r.cache.removed(shard) {
				shards = append(shards, shard)
			}
		}
	})
	return shards, round
}

// resolveShard compares the listed objects of a shard with the known ones if its checkpoint is reached.
func (r *reader) resolveShard(ctx context.Context, round int, shard string, checkpoint Checkpoint) error {
	var l *lag
	var removed bool
	r.informer.Pause(func() { l, removed = r.behind[shard], r.cache.removed(shard) })
	_, named := checkpoint.Versions[r.resource]
	var present map[client.Key]client.Object
	var version string
	if !removed {
		// Since then, the shard may have written later checkpoints, and the cache may have been restored again.
		known, _ := r.known(shard)
		if l == nil && !named || l != nil && !checkpoint.reaches(l.target) || !checkpoint.reaches(known) {
			return nil
		}
		var err error
		if present, version, err = r.informer.ListShard(ctx, shard); err != nil {
			return err
		}
	}
	r.informer.Pause(func() {
		if r.round != round || r.behind[shard] != l {
			return // the complete state was read again
		}
		r.apply(shard, checkpoint, present)
		switch {
		case removed:
			delete(r.behind, shard)
			return
		case l != nil:
			l.until, l.due = version, r.due(present)
		}
		if named && r.hasAll(present) {
			r.coverage.add(shard)
		}
	})
	return nil
}

// apply removes the objects of a shard that are not listed, and stores outdated objects that are listed. The lock must
// be held.
func (r *reader) apply(shard string, checkpoint Checkpoint, present map[client.Key]client.Object) {
	version, named := checkpoint.Versions[r.resource]
	var deleted []client.Key
	for key, obj := range r.informer.All() {
		_, there := present[key]
		_, held := r.retained[key]
		// Objects that were received since are later than the checkpoint.
		if key.Shard == shard && !there && (held || named && !older(version, obj.GetResourceVersion())) {
			deleted = append(deleted, key)
		}
	}
	for _, key := range deleted {
		r.informer.Remove(key)
	}
	maps.DeleteFunc(r.retained, func(key client.Key, _ struct{}) bool { return key.Shard == shard })
	for key, obj := range r.outdated {
		if key.Shard != shard {
			continue
		}
		delete(r.outdated, key)
		// For other versions an event will follow.
		if there, ok := present[key]; ok && there.GetResourceVersion() == obj.GetResourceVersion() {
			r.observe(shard, obj.GetResourceVersion())
			r.informer.Put(key, obj)
		}
	}
}

func (r *reader) due(present map[client.Key]client.Object) map[client.Key]string {
	due := map[client.Key]string{}
	for key, obj := range present {
		if known, ok := r.informer.Get(key); !ok || known.GetResourceVersion() != obj.GetResourceVersion() {
			due[key] = obj.GetResourceVersion()
		}
	}
	return due
}

// hasAll reports whether the informer has all objects at the listed or later versions.
func (r *reader) hasAll(present map[client.Key]client.Object) bool {
	for key, obj := range present {
		if known, ok := r.informer.Get(key); !ok || older(known.GetResourceVersion(), obj.GetResourceVersion()) {
			return false
		}
	}
	return true
}
