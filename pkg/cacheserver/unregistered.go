package cacheserver

import (
	"context"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/instruments"
)

const (
	// unregisteredInterval is the time between two looks for shards without a Shard.
	unregisteredInterval = 3 * time.Second
	// tellUnregisteredAfter is how long one may be so before the log says it, since a new shard pushes
	// before its Shard has come, and tellUnregisteredInterval how often the log says it again.
	tellUnregisteredAfter    = time.Minute
	tellUnregisteredInterval = 10 * time.Minute
)

// unregisteredShards are those that have pushed something, and that have no Shard, as one that pushes to the
// cache server of another installation. Nobody was seen to remove them, so that it is told and nothing else: their
// Shard may come yet.
type unregisteredShards struct {
	removed *removedShards
	// pushed returns the shards that have replicas.
	pushed func() sets.Set[string]
	// since is since when a shard is one of them, and told when the log has said so last.
	since, told map[string]time.Time
	gauge       *prometheus.GaugeVec
}

func newUnregisteredShards(removed *removedShards, pushed func() sets.Set[string], registerer prometheus.Registerer) *unregisteredShards {
	return &unregisteredShards{
		removed: removed, pushed: pushed, since: map[string]time.Time{}, told: map[string]time.Time{},
		gauge: instruments.Register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "shardplane", Subsystem: "cache", Name: "unregistered_shard",
			Help: "[ALPHA] 1 for each shard, by its name, that has replicas here and no Shard in root, so that they count for nothing.",
		}, []string{"name"})),
	}
}

// Run looks until ctx is done.
func (u *unregisteredShards) Run(ctx context.Context) error {
	defer func() { u.are(context.WithoutCancel(ctx), nil) }()
	return repeat(ctx, unregisteredInterval, "Cannot find out which shards are not registered, trying again", func(ctx context.Context) error {
		names, err := u.find(ctx)
		if err != nil {
			return err
		}
		u.are(ctx, names)
		return nil
	})
}

// find returns which shards are unregistered. As long as root's part says nothing of root itself, it says
// nothing of others.
func (u *unregisteredShards) find(ctx context.Context) (sets.Set[string], error) {
	pushed := u.pushed() // before the Shards: what is registered then is among them
	registered, err := u.removed.registered(ctx)
	if err != nil || !registered.Has(corev1alpha1.RootShard) {
		return nil, err
	}
	return pushed.Difference(registered).Difference(u.removed.names()), nil
}

// are tells which shards are unregistered now.
func (u *unregisteredShards) are(ctx context.Context, names sets.Set[string]) {
	for name := range u.since {
		if !names.Has(name) {
			delete(u.since, name)
			delete(u.told, name)
			u.gauge.Delete(map[string]string{"name": name})
		}
	}
	now := time.Now()
	for name := range names {
		if _, known := u.since[name]; !known {
			u.since[name] = now
			u.gauge.WithLabelValues(name).Set(1)
		}
		if now.Sub(u.since[name]) >= tellUnregisteredAfter && now.Sub(u.told[name]) >= tellUnregisteredInterval {
			u.told[name] = now
			klog.FromContext(ctx).Info("A shard pushes, or has pushed, that has no Shard in root: nobody takes heed of its replicas. Have it register, or correct its --cache-kubeconfig, "+
				"or its --root-kubeconfig; to have the replicas deleted, stop it, create a Shard of its name in root and delete that", "name", name, "since", u.since[name])
		}
	}
}
