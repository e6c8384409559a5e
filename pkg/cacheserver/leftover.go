package cacheserver

import (
	"context"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/etcd"
)

const (
	// leftOverInterval is the time between two looks for replicas that are left over, and
	// leftOverPeriod for how long they have to be, unless shards are to go sooner.
	leftOverInterval = 3 * time.Second
	leftOverPeriod   = 5 * time.Minute
)

// leftOver deletes the replicas of what cached resources selected that have gone. A shard deletes
// its own before its cached resource goes. A relay does not come to that, since the shard's mark
// does not name them any more by then, and neither does a shard whose cached resource was deleted
// before its cache server was restored from a backup. Nobody else does either, since the kind goes
// with the cached resource.
//
// Should a shard have its cached resource nevertheless, it finds what is missing by digests.
type leftOver struct {
	digests *digests
	notes   *etcd.Notes
	period  time.Duration
	// since is since when they are.
	since map[replicas]time.Time
}

func newLeftOver(d *digests, notes *etcd.Notes, gracePeriod time.Duration) *leftOver {
	return &leftOver{digests: d, notes: notes, period: max(min(leftOverPeriod, gracePeriod), time.Second), since: map[replicas]time.Time{}}
}

// Run looks until ctx is done.
func (l *leftOver) Run(ctx context.Context) error {
	return repeat(ctx, min(leftOverInterval, l.period), "Cannot delete what cached resources have left, trying again", l.look)
}

// look deletes what has been left over for long enough.
func (l *leftOver) look(ctx context.Context) error {
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

// purge deletes them page by page, as long as no cached resource is there by all that is stored.
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
	klog.FromContext(ctx).Info("Deleted what a cached resource has left that the shard has no more", "name", of.shard, "resource", of.resource, "replicas", deleted)
	return nil
}

// identified returns the replicas that there are of cached resources.
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
