package cacheserver

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage"
)

const (
	// removalRecords is the prefix of records of deleted Shards. The keys have fewer segments than those of objects.
	removalRecords = "shardplane-removed-shards"
	// purgeInterval is the interval of purges, and purgePage the number of replicas that are deleted at a time.
	purgeInterval = 3 * time.Second
	purgePage     = 500
)

// removedShards are shards whose Shard was deleted in root: their writes are rejected, and their replicas are deleted
// after a grace period. The deletion is recorded before it is executed, so that it survives a crash, and is effective as
// long as no Shard of that name exists. A Shard that is missing without a recorded deletion has no effect.
type removedShards struct {
	notes       *etcd.Notes
	gracePeriod time.Duration
	// prefixes returns the key prefixes of the replicas of a shard, or false if they are unknown.
	prefixes func(shard string) ([]string, bool)

	mu sync.Mutex
	// recorded are the times of the deletion requests.
	recorded map[string]time.Time
}

func newRemovedShards(ctx context.Context, h *etcd.Handle, gracePeriod time.Duration, prefixes func(shard string) ([]string, bool)) (*removedShards, error) {
	r := &removedShards{notes: h.Notes(removalRecords), gracePeriod: gracePeriod, prefixes: prefixes}
	if err := r.read(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

func shardKey(shard string) string { return shardKeys() + shard }

// shardKeys returns the key prefix of the replicas of Shards.
func shardKeys() string {
	return storage.ResourcePrefix(corev1alpha1.Resource("shards")) + "/" + corev1alpha1.RootShard + "/" + core.RootCluster.String() + "/"
}

// read reads the records, which other replicas of the server may have written.
func (r *removedShards) read(ctx context.Context) error {
	notes, err := r.notes.Read(ctx)
	if err != nil {
		return fmt.Errorf("reading the removed shards: %w", err)
	}
	recorded := make(map[string]time.Time, len(notes))
	for shard, value := range notes {
		at, err := time.Parse(time.RFC3339, value)
		if err != nil {
			return fmt.Errorf("reading the removal time of shard %q: %w", shard, err)
		}
		recorded[shard] = at
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recorded = recorded
	return nil
}

// recordDeletion records that the deletion of a Shard is requested.
func (r *removedShards) recordDeletion(ctx context.Context, shard string) error {
	now := time.Now().UTC().Truncate(time.Second)
	if err := r.notes.Set(ctx, shard, now.Format(time.RFC3339)); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recorded[shard] = now
	return nil
}

// since returns the time since which a shard is removed, if it is. A shard whose Shard exists is not removed.
func (r *removedShards) since(ctx context.Context, shard string) (time.Time, bool, error) {
	r.mu.Lock()
	at, recorded := r.recorded[shard]
	r.mu.Unlock()
	if !recorded {
		return time.Time{}, false, nil
	}
	there, err := r.notes.There(ctx, shardKey(shard))
	return at, err == nil && !there, err
}

// Wrap records deletions of Shards and rejects writes of removed shards.
func (r *removedShards) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := r.check(req); err != nil {
			writeError(w, req, err)
			return
		}
		next.ServeHTTP(w, req)
	})
}

func (r *removedShards) check(req *http.Request) error {
	shard, scoped := request.ShardFrom(req.Context())
	info, ok := apirequest.RequestInfoFrom(req.Context())
	if !scoped || !ok || !info.IsResourceRequest || shard.Wildcard {
		return nil
	}
	resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	switch info.Verb {
	case "delete":
		cluster, _ := request.ClusterFrom(req.Context())
		// The root shard is never removed, because it has the list of shards.
		if shard.Name == corev1alpha1.RootShard && cluster.Name == core.RootCluster && resource.Group == corev1alpha1.SchemeGroupVersion.Group && resource.Resource == "shards" && info.Name != corev1alpha1.RootShard {
			if err := r.recordDeletion(req.Context(), info.Name); err != nil {
				return apierrors.NewServiceUnavailable("recording the removal of the shard: " + err.Error()) //nolint:forbidigo // as in digests.go
			}
		}
	case "create", "update", "patch":
		at, removed, err := r.since(req.Context(), shard.Name)
		if err != nil {
			return apierrors.NewServiceUnavailable("checking whether the shard was removed: " + err.Error()) //nolint:forbidigo // as in digests.go
		}
		if removed {
			return apierrors.NewForbidden(resource, info.Name, fmt.Errorf("shard %q was removed: its Shard was deleted in root at %s, and its replicas are deleted: create a Shard with its name in root to allow writes again", shard.Name, at.Format(time.RFC3339)))
		}
	}
	return nil
}

// Run deletes the replicas of removed shards until ctx is done.
func (r *removedShards) Run(ctx context.Context) error {
	return repeat(ctx, max(min(purgeInterval, r.gracePeriod), time.Second/10), "Failed to delete the replicas of removed shards, retrying", r.purge)
}

// purge deletes the replicas of shards whose grace period is over.
func (r *removedShards) purge(ctx context.Context) error {
	if err := r.read(ctx); err != nil {
		return err
	}
	for shard := range r.names() {
		at, removed, err := r.since(ctx, shard)
		switch {
		case err != nil:
			return err
		case !removed:
			// A deletion follows its record immediately, or has failed.
			if time.Since(at) > time.Minute {
				if err := r.notes.Delete(ctx, shard, at.Format(time.RFC3339), shardKey(shard)); err != nil {
					return err
				}
			}
		case time.Since(at) >= r.gracePeriod:
			if err := r.purgeShard(ctx, shard); err != nil {
				return err
			}
		}
	}
	return nil
}

// purgeShard deletes all replicas of a shard page by page, as long as it has no Shard.
func (r *removedShards) purgeShard(ctx context.Context, shard string) error {
	prefixes, known := r.prefixes(shard)
	if !known {
		return errUnread
	}
	deleted, began := 0, time.Now()
	for _, prefix := range prefixes {
		for {
			n, err := r.notes.DeletePage(ctx, prefix, purgePage, shardKey(shard))
			if deleted += n; err != nil {
				return err
			}
			if n < purgePage {
				break
			}
		}
	}
	if deleted > 0 {
		klog.FromContext(ctx).Info("Deleted the replicas of a removed shard", "name", shard, "replicas", deleted, "took", time.Since(began).Round(time.Millisecond))
	}
	return nil
}

func (r *removedShards) names() sets.Set[string] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return sets.New(slices.Collect(maps.Keys(r.recorded))...)
}

// repeat calls do in intervals until ctx is done. It logs errors with the message problem.
func repeat(ctx context.Context, interval time.Duration, problem string, do func(ctx context.Context) error) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := do(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, problem)
		}
	}
}

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
