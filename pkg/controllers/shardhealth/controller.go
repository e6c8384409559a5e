// Package shardhealth runs on root's shard and says in the Shard objects how the shards are:
// whether they are ready, and how much they hold, as their heartbeats tell it.
//
// Clocks of machines are not compared, and time is not measured at all: a shard's heartbeats
// are missing when root's shard has stored and seen several of its own since the shard's
// last one. So nobody is judged by a shard that has slept, or that cannot store heartbeats.
//
//	Leases in root ─► what was heard of whom ─► Shard: condition Ready, annotations, capacity
package shardhealth

import (
	"context"
	"fmt"
	"time"

	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

// Name is the name of the controller.
const Name = "shardhealth"

// tellEvery is how often a load is written that matters to nobody at once.
const tellEvery = 30 * time.Second

// Config is what the controller needs.
type Config struct {
	// ShardName is the name of root's shard, which the controller runs on.
	ShardName string
	// Local reaches that shard as system:masters, and Objects are what it stores.
	Local   *client.Factory
	Objects reconcile.Objects
	// Shards are those that are registered in root, and Leases are their heartbeats, as
	// NewInformer returns it.
	Shards *client.Informer[*corev1alpha1.Shard]
	Leases *client.Informer[*coordinationv1.Lease]
	// Metrics registers metrics; nil registers none.
	Metrics prometheus.Registerer
}

// NewInformer returns an informer of heartbeats.
func NewInformer(local *client.Factory) *client.Informer[*coordinationv1.Lease] {
	return kinds.Leases.Informer(local.Cluster(core.RootCluster.Path()), client.InformerOptions[*coordinationv1.Lease]{
		Name: "heartbeats", Namespace: shardload.LeaseNamespace, LabelSelector: shardload.LeaseLabel,
	})
}

// New returns the controller.
func New(config Config) *reconcile.Controller[string] {
	shards := config.Shards.Lister().Cluster(core.RootCluster)
	leases := config.Leases.Lister().Cluster(core.RootCluster)
	j := &judge{
		now:   time.Now,
		heard: newHearing(config.ShardName),
		shard: func(name string) (*corev1alpha1.Shard, error) { return shards.Get("", name) },
		lease: func(name string) (*coordinationv1.Lease, error) {
			return leases.Get(shardload.LeaseNamespace, shardload.LeaseName(name))
		},
		commit: func(ctx context.Context, old, updated *corev1alpha1.Shard) error {
			client := kinds.Shards.In(config.Local.Cluster(core.RootCluster.Path()))
			_, err := reconcile.CommitStored(ctx, config.Objects, corev1alpha1.Resource("shards"), client, old, updated)
			return err
		},
		alone:   func() bool { return len(shards.List(nil)) < 2 },
		told:    map[string]time.Time{},
		metrics: newMetrics(config.Metrics),
	}
	all := func(queue reconcile.Queue[string]) {
		for _, shard := range shards.List(nil) {
			queue.Add(shard.Name)
		}
	}
	return reconcile.New(reconcile.Config[string]{
		Name:      Name,
		Reconcile: j.reconcile,
		Workers:   1,
		Sources: []reconcile.Source[string]{
			func(_ context.Context, queue reconcile.Queue[string]) (func(), error) {
				stop := config.Leases.AddEventHandler(j.heard.handler(queue, all)).Remove
				return func() {
					stop()
					j.metrics.ready.Reset() // who leads next says it
					j.metrics.used.Reset()
				}, nil
			},
			reconcile.FromInformer(config.Shards, func(shard *corev1alpha1.Shard) []string { return []string{shard.Name} }),
		},
	})
}

// judge says how shards are. One goroutine at a time calls it.
type judge struct {
	now    func() time.Time
	heard  *hearing
	shard  func(name string) (*corev1alpha1.Shard, error)
	lease  func(name string) (*coordinationv1.Lease, error)
	commit func(ctx context.Context, old, updated *corev1alpha1.Shard) error

	// alone reports whether there is only one shard.
	alone func() bool
	// told is when the load of a shard was written last.
	told    map[string]time.Time
	metrics metrics
}

func (j *judge) reconcile(ctx context.Context, name string) (reconcile.Result, error) {
	shard, err := j.shard(name)
	if apierrors.IsNotFound(err) {
		delete(j.told, name)
		j.metrics.delete(name)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	lease, err := j.lease(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, err
	}
	updated, telling := shard.DeepCopy(), false
	if err != nil {
		shardload.ClearOnShard(updated)
	} else {
		load, known := shardload.OfLease(lease)
		setReady(updated, j.heard.of(name), load)
		if known {
			setCachesReady(updated, j.heard.of(name), load, j.alone())
		}
		if telling = known && j.worthTelling(shard, load); telling {
			load.SetOnShard(updated)
		}
	}
	if err := j.commit(ctx, shard, updated); err != nil {
		if apierrors.IsNotFound(err) {
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("saying in Shard %s how the shard is: %w", name, err)
	}
	if telling {
		j.told[name] = j.now()
	}
	j.metrics.note(updated)
	return reconcile.Result{}, nil
}

// worthTelling reports whether a load is worth a write. What is not now may be at the next
// heartbeat.
func (j *judge) worthTelling(shard *corev1alpha1.Shard, load shardload.Load) bool {
	told, known := shardload.OfShard(shard)
	if !known || told.FullOf() != load.FullOf() || told.NearlyFull() != load.NearlyFull() {
		return true // it decides who takes workspaces
	}
	return differ(told, load) && j.now().Sub(j.told[shard.Name]) >= tellEvery
}
