package cacheserver

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage"
)

const (
	// removalRecords is the prefix of records of deleted Shards. The keys have fewer segments than those of objects.
	removalRecords = "shardplane-removed-shards"
	// checkInterval is the interval of purges and of checks for orphaned replicas and for shards without a Shard.
	checkInterval = 3 * time.Second
	// purgePage is the number of replicas that are deleted at a time.
	purgePage = 500
	// orphanPeriod is the maximum age after which orphaned replicas are deleted.
	orphanPeriod = 5 * time.Minute
	// logUnregisteredAfter is the delay of the log message, because a new shard pushes replicas before its Shard is
	// replicated. logUnregisteredInterval is the interval of repetitions.
	logUnregisteredAfter    = time.Minute
	logUnregisteredInterval = 10 * time.Minute
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
	there, err := r.notes.Exists(ctx, shardKey(shard))
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
	return repeat(ctx, max(min(checkInterval, r.gracePeriod), time.Second/10), "Failed to delete the replicas of removed shards, retrying", r.purge)
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
		for n := purgePage; n == purgePage; deleted += n {
			var err error
			if n, err = r.notes.DeletePage(ctx, prefix, purgePage, shardKey(shard)); err != nil {
				return err
			}
		}
	}
	if deleted > 0 {
		klog.FromContext(ctx).Info("Deleted the replicas of a removed shard", "shard", shard, "replicas", deleted, "took", time.Since(began).Round(time.Millisecond))
	}
	return nil
}

func (r *removedShards) names() sets.Set[string] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return sets.KeySet(r.recorded)
}

// repeat calls do in intervals until ctx is done. It logs errors with the message problem.
func repeat(ctx context.Context, interval time.Duration, problem string, do func(ctx context.Context) error) error {
	_ = wait.PollUntilContextCancel(ctx, interval, false, func(ctx context.Context) (bool, error) {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, problem)
		}
		return false, nil
	})
	return nil
}

// orphanedReplicas deletes replicas of deleted CachedResources if their shard did not delete them. For example, a relay
// stopped before, or the cache server was restored from an older backup. No other component can, because the resource
// is not served without the CachedResource. If that does exist on the shard, the shard restores the replicas by
// digests.
type orphanedReplicas struct {
	digests *digests
	notes   *etcd.Notes
	period  time.Duration
	// since is the time since which replicas are orphaned.
	since map[replicas]time.Time
}

func newOrphanedReplicas(d *digests, notes *etcd.Notes, gracePeriod time.Duration) *orphanedReplicas {
	return &orphanedReplicas{digests: d, notes: notes, period: max(min(orphanPeriod, gracePeriod), time.Second), since: map[replicas]time.Time{}}
}

// Run checks until ctx is done.
func (o *orphanedReplicas) Run(ctx context.Context) error {
	return repeat(ctx, min(checkInterval, o.period), "Failed to delete the replicas of deleted CachedResources, retrying", o.check)
}

// check deletes the replicas that have been orphaned for long enough.
func (o *orphanedReplicas) check(ctx context.Context) error {
	now := map[replicas]time.Time{}
	for _, of := range o.digests.stored() {
		if !strings.Contains(of.resource, ":") || o.digests.cached.mayBeSelected(of) {
			continue
		}
		if now[of] = o.since[of]; now[of].IsZero() {
			now[of] = time.Now()
		}
	}
	o.since = now
	for of, since := range now {
		if time.Since(since) >= o.period {
			if err := o.purge(ctx, of); err != nil {
				return err
			}
		}
	}
	return nil
}

// purge deletes replicas page by page, as long as no stored CachedResource selects them.
func (o *orphanedReplicas) purge(ctx context.Context, of replicas) error {
	deleted := 0
	for n := purgePage; n == purgePage; deleted += n {
		if _, err := o.digests.current(ctx, of.shard); err != nil {
			return err
		}
		if o.digests.cached.mayBeSelected(of) {
			return nil
		}
		var err error
		if n, err = o.notes.DeletePage(ctx, prefixOf(of), purgePage, ""); err != nil {
			return err
		}
	}
	klog.FromContext(ctx).Info("Deleted the replicas of a deleted CachedResource", "shard", of.shard, "resource", of.resource, "replicas", deleted)
	return nil
}

// unregisteredShards are shards that have replicas but no Shard, e.g. because they push to the cache server of another
// installation. They are only logged, because their Shard was not deleted and may be replicated later.
type unregisteredShards struct {
	removed *removedShards
	pushed  func() sets.Set[string]
	// since is the time since which a shard is unregistered, and logged the time of the last log message.
	since, logged map[string]time.Time
	gauge         *prometheus.GaugeVec
}

func newUnregisteredShards(removed *removedShards, pushed func() sets.Set[string], registerer prometheus.Registerer) *unregisteredShards {
	return &unregisteredShards{
		removed: removed, pushed: pushed, since: map[string]time.Time{}, logged: map[string]time.Time{},
		gauge: instruments.NewGaugeVec(registerer, "shardplane_cache_unregistered_shard",
			"1 for each shard that has replicas on the cache server but no Shard object in root, by its name. Its replicas are not used.", "name"),
	}
}

// Run checks until ctx is done.
func (u *unregisteredShards) Run(ctx context.Context) error {
	return repeat(ctx, checkInterval, "Failed to find unregistered shards, retrying", func(ctx context.Context) error {
		names, err := u.find(ctx)
		if err == nil {
			u.update(ctx, names)
		}
		return err
	})
}

// find returns the unregistered shards. Without the Shard of root itself, the replicas of root are incomplete.
func (u *unregisteredShards) find(ctx context.Context) (sets.Set[string], error) {
	pushed := u.pushed() // must be read before the Shards
	names, err := u.removed.notes.Names(ctx, shardKeys())
	if err != nil {
		return nil, fmt.Errorf("reading the registered shards: %w", err)
	}
	registered := sets.New(names...)
	if !registered.Has(corev1alpha1.RootShard) {
		return nil, nil
	}
	return pushed.Difference(registered).Difference(u.removed.names()), nil
}

func (u *unregisteredShards) update(ctx context.Context, names sets.Set[string]) {
	for name := range u.since {
		if !names.Has(name) {
			delete(u.since, name)
			delete(u.logged, name)
			u.gauge.Delete(map[string]string{"name": name})
		}
	}
	now := time.Now()
	for name := range names {
		if _, known := u.since[name]; !known {
			u.since[name] = now
			u.gauge.WithLabelValues(name).Set(1)
		}
		if now.Sub(u.since[name]) >= logUnregisteredAfter && now.Sub(u.logged[name]) >= logUnregisteredInterval {
			u.logged[name] = now
			klog.FromContext(ctx).Info("Ignoring replicas of a shard without a Shard object in root: register the shard, or correct its --cache-kubeconfig or "+
				"--root-kubeconfig; to delete the replicas, stop the shard, then create and delete a Shard with its name in root", "shard", name, "since", u.since[name])
		}
	}
}
