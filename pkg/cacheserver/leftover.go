package cacheserver

import (
	"context"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/etcd"
)

const (
	// leftOverInterval is the interval of checks for orphaned replicas, and leftOverPeriod the age after which they are
	// deleted, unless the grace period of removed shards is shorter.
	leftOverInterval = 3 * time.Second
	leftOverPeriod   = 5 * time.Minute
)

// leftOver deletes the replicas of deleted CachedResources. A shard normally deletes them before its CachedResource, but
// some remain: a relay stops before, because the checkpoint of the shard no longer contains the resource, and a cache
// server may be restored from an older backup. No other component can delete them, because the resource is not served
// without the CachedResource. If the CachedResource does exist on the shard, the shard restores the replicas by digests.
type leftOver struct {
	digests *digests
	notes   *etcd.Notes
	period  time.Duration
	// since is the time since which replicas are orphaned.
	since map[replicas]time.Time
}

func newLeftOver(d *digests, notes *etcd.Notes, gracePeriod time.Duration) *leftOver {
	return &leftOver{digests: d, notes: notes, period: max(min(leftOverPeriod, gracePeriod), time.Second), since: map[replicas]time.Time{}}
}

// Run checks until ctx is done.
func (l *leftOver) Run(ctx context.Context) error {
	return repeat(ctx, min(leftOverInterval, l.period), "Failed to delete the replicas of deleted CachedResources, retrying", l.check)
}

// check deletes the replicas that have been orphaned for long enough.
func (l *leftOver) check(ctx context.Context) error {
	now := map[replicas]time.Time{}
	for _, of := range l.digests.sizes.identified() {
		if l.digests.cached.have(of) {
			continue
		}
		if now[of] = l.since[of]; now[of].IsZero() {
			now[of] = time.Now()
		}
	}
	l.since = now
	for of, since := range now {
		if time.Since(since) >= l.period {
			if err := l.purge(ctx, of); err != nil {
				return err
			}
		}
	}
	return nil
}

// purge deletes replicas page by page, as long as no stored CachedResource selects them.
func (l *leftOver) purge(ctx context.Context, of replicas) error {
	deleted := 0
	for n := purgePage; n == purgePage; deleted += n {
		if _, err := l.digests.current(ctx, of.shard); err != nil {
			return err
		}
		if l.digests.cached.have(of) {
			return nil
		}
		var err error
		if n, err = l.notes.DeletePage(ctx, prefixOf(of), purgePage, ""); err != nil {
			return err
		}
	}
	klog.FromContext(ctx).Info("Deleted the replicas of a deleted CachedResource", "name", of.shard, "resource", of.resource, "replicas", deleted)
	return nil
}

// identified returns the replicas of CachedResources.
func (s *sizes) identified() (all []replicas) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for shard, of := range s.all {
		for resource := range of {
			if strings.Contains(resource, ":") {
				all = append(all, replicas{shard, resource})
			}
		}
	}
	return all
}
