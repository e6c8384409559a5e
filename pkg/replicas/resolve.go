package replicas

import (
	"context"
	"maps"
	"time"

	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
)

// resolveInterval is the time between two looks whether a cache has caught up.
const resolveInterval = time.Second

// Factory returns a factory whose informers keep what the cache server has lost.
func (c *Cache) Factory() *client.Factory {
	return c.factory.WithGuard(func(informer client.Guarded) client.Guard { return newReader(c, informer) })
}

// Run implements client.Guard: it looks, until ctx is done, whether the cache has caught up, and whether all is known of
// shards that have come.
func (r *reader) Run(ctx context.Context) {
	for {
		// All informers look at the same moment, for which an idle process wakes once.
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
		marks, err := r.cache.currentMarks(ctx, time.Time{})
		if err != nil {
			continue // the informer reports what is wrong
		}
		for _, shard := range shards {
			if err := r.resolveShard(ctx, round, shard, marks[shard]); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).V(2).Info("Cannot compare the replicas of a shard, trying again", "informer", r.informer.Name(), "shard", shard, "err", err)
			}
		}
	}
}

// unresolved returns the shards of which the cache may have caught up, or which are not covered.
func (r *reader) unresolved() (shards []string, round int) {
	named := r.cache.naming(r.resource)
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

// resolveShard compares a shard's part with what is known, if its mark says that it is complete.
func (r *reader) resolveShard(ctx context.Context, round int, shard string, mark Checkpoint) error {
	var l *lag
	var removed bool
	r.informer.Pause(func() { l, removed = r.behind[shard], r.cache.removed(shard) })
	_, named := mark.Versions[r.resource]
	var present map[client.Key]client.Object
	var version string
	if !removed {
		// The shard may have said more since the cache was found to be behind, and that cache, restored since, have less again.
		known, _ := r.known(shard)
		if l == nil && !named || l != nil && !mark.reaches(l.target) || !mark.reaches(known) {
			return nil
		}
		var err error
		if present, version, err = r.informer.ListShard(ctx, shard); err != nil {
			return err
		}
	}
	r.informer.Pause(func() {
		if r.round != round || r.behind[shard] != l {
			return // it was read anew meanwhile
		}
		r.apply(shard, mark, present)
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

// apply removes the objects of a shard that its part does not have, and stores the doubted ones that it has, with the
// informer's lock held.
func (r *reader) apply(shard string, mark Checkpoint, present map[client.Key]client.Object) {
	marked, named := mark.Versions[r.resource]
	var gone []client.Key
	for key, obj := range r.informer.All() {
		_, there := present[key]
		_, held := r.held[key]
		// What came since is later than the mark.
		if key.Shard == shard && !there && (held || named && !older(marked, obj.GetResourceVersion())) {
			gone = append(gone, key)
		}
	}
	for _, key := range gone {
		r.informer.Remove(key)
	}
	maps.DeleteFunc(r.held, func(key client.Key, _ struct{}) bool { return key.Shard == shard })
	for key, obj := range r.doubted {
		if key.Shard != shard {
			continue
		}
		delete(r.doubted, key)
		// Another version than the stream's will come on that.
		if there, ok := present[key]; ok && there.GetResourceVersion() == obj.GetResourceVersion() {
			r.saw(shard, obj.GetResourceVersion())
			r.informer.Put(key, obj)
		}
	}
}

// due returns the versions of objects that are not known, or not as they are.
func (r *reader) due(present map[client.Key]client.Object) map[client.Key]string {
	due := map[client.Key]string{}
	for key, obj := range present {
		if known, ok := r.informer.Get(key); !ok || known.GetResourceVersion() != obj.GetResourceVersion() {
			due[key] = obj.GetResourceVersion()
		}
	}
	return due
}

// hasAll reports whether all objects are known, or were, as they are or later.
func (r *reader) hasAll(present map[client.Key]client.Object) bool {
	for key, obj := range present {
		if known, ok := r.informer.Get(key); !ok || older(known.GetResourceVersion(), obj.GetResourceVersion()) {
			return false
		}
	}
	return true
}
