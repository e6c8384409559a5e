package cacheserver

import (
	"context"
	"fmt"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/instruments"
)

const (
	// unregisteredInterval is the interval of checks for shards without a Shard.
	unregisteredInterval = 3 * time.Second
	// logUnregisteredAfter is the delay of the log message, because a new shard pushes replicas before its Shard is
	// replicated. logUnregisteredInterval is the interval of repetitions.
	logUnregisteredAfter    = time.Minute
	logUnregisteredInterval = 10 * time.Minute
)

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
	defer func() { u.are(context.WithoutCancel(ctx), nil) }()
	return repeat(ctx, unregisteredInterval, "Failed to find unregistered shards, retrying", func(ctx context.Context) error {
		names, err := u.find(ctx)
		if err != nil {
			return err
		}
		u.are(ctx, names)
		return nil
	})
}

// find returns the unregistered shards. If the replicas of root do not contain the Shard of root itself, they are
// incomplete.
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

func (u *unregisteredShards) are(ctx context.Context, names sets.Set[string]) {
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
			klog.FromContext(ctx).Info("Replicas of a shard without a Shard object in root are not used: register the shard, or correct its --cache-kubeconfig "+
				"or --root-kubeconfig. To delete the replicas, stop the shard, then create and delete a Shard with its name in root", "name", name, "since", u.since[name])
		}
	}
}
