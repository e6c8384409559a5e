// Package shardhealth runs on the root shard and sets the readiness and load of Shards from their heartbeats.
//
// It does not compare clocks of different machines and does not measure time. Heartbeats of a shard are missing if the
// root shard has stored and observed several of its own heartbeats since the last one of the shard. Therefore, other
// shards are not affected if the root shard is suspended or cannot store heartbeats.
//
//	Leases in root ─► observed heartbeats ─► Shard: condition Ready, annotations, capacity
package shardhealth

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

// Name is the name of the controller.
const Name = "shardhealth"

// loadInterval is the minimum interval between two writes of a load that does not affect scheduling.
const loadInterval = 30 * time.Second

// Config configures the controller.
type Config struct {
	// ShardName is the name of the root shard.
	ShardName string
	// Local reaches the root shard as system:masters, and Objects is its storage.
	Local   *client.Factory
	Objects reconcile.Objects
	// Shards are the registered shards. Leases contains their heartbeats and is the result of NewInformer.
	Shards *client.Informer[*corev1alpha1.Shard]
	Leases *client.Informer[*coordinationv1.Lease]
	// Metrics may be nil.
	Metrics prometheus.Registerer
}

// NewInformer returns an informer for heartbeats.
func NewInformer(local *client.Factory) *client.Informer[*coordinationv1.Lease] {
	return kinds.Leases.Informer(local.Cluster(core.RootCluster.Path()), client.InformerOptions[*coordinationv1.Lease]{
		Name: "heartbeats", Namespace: shardload.LeaseNamespace, LabelSelector: shardload.LeaseLabel,
	})
}

// NewShardHealthController returns the controller.
func NewShardHealthController(config Config) *reconcile.Controller[string] {
	shards := config.Shards.Lister().Cluster(core.RootCluster)
	leases := config.Leases.Lister().Cluster(core.RootCluster)
	j := &healthReconciler{
		now: time.Now, observed: newHeartbeats(config.ShardName),
		shard: func(name string) (*corev1alpha1.Shard, error) { return shards.Get("", name) },
		lease: func(name string) (*coordinationv1.Lease, error) {
			return leases.Get(shardload.LeaseNamespace, shardload.LeaseName(name))
		},
		commit: func(ctx context.Context, old, updated *corev1alpha1.Shard) error {
			client := kinds.Shards.In(config.Local.Cluster(core.RootCluster.Path()))
			_, err := reconcile.CommitStored(ctx, config.Objects, corev1alpha1.Resource("shards"), client, old, updated)
			return err
		},
		single:   func() bool { return len(shards.List(nil)) < 2 },
		reported: map[string]time.Time{}, metrics: newMetrics(config.Metrics),
	}
	all := func(queue reconcile.Queue[string]) {
		for _, shard := range shards.List(nil) {
			queue.Add(shard.Name)
		}
	}
	return reconcile.New(reconcile.Config[string]{
		Name: Name, Reconcile: j.reconcile, Workers: 1,
		Sources: []reconcile.Source[string]{
			func(_ context.Context, queue reconcile.Queue[string]) (func(), error) {
				stop := config.Leases.AddEventHandler(j.observed.handler(queue, all)).Remove
				return func() {
					stop()
					j.metrics.ready.Reset() // the next leader sets them
					j.metrics.used.Reset()
				}, nil
			},
			reconcile.FromInformer(config.Shards, func(shard *corev1alpha1.Shard) []string { return []string{shard.Name} }),
		},
	})
}

// healthReconciler sets the status of Shards. Its methods must not be called concurrently.
type healthReconciler struct {
	now      func() time.Time
	observed *heartbeats
	shard    func(name string) (*corev1alpha1.Shard, error)
	lease    func(name string) (*coordinationv1.Lease, error)
	commit   func(ctx context.Context, old, updated *corev1alpha1.Shard) error
	single   func() bool          // whether there is only one shard
	reported map[string]time.Time // of the last write of the load
	metrics  metrics
}

func (j *healthReconciler) reconcile(ctx context.Context, name string) (reconcile.Result, error) {
	shard, err := j.shard(name)
	if err != nil {
		delete(j.reported, name)
		j.metrics.delete(name)
		return reconcile.Result{}, nil //nolint:nilerr // deleted
	}
	lease, err := j.lease(name)
	updated, writeLoad := shard.DeepCopy(), false
	if err != nil {
		shardload.ClearOnShard(updated)
	} else {
		load, known := shardload.OfLease(lease)
		setReady(updated, j.observed.of(name), load)
		if known {
			setCachesReady(updated, j.observed.of(name), load, j.single())
		}
		if writeLoad = known && j.mustWriteLoad(shard, load); writeLoad {
			load.SetOnShard(updated)
		}
	}
	if err := j.commit(ctx, shard, updated); err != nil {
		return reconcile.Result{}, reconcile.IgnoreNotFound(fmt.Errorf("updating the status of Shard %s: %w", name, err))
	}
	if writeLoad {
		j.reported[name] = j.now()
	}
	j.metrics.note(updated)
	return reconcile.Result{}, nil
}

// mustWriteLoad reports whether a load must be written. Otherwise it may be written with a later heartbeat.
func (j *healthReconciler) mustWriteLoad(shard *corev1alpha1.Shard, load shardload.Load) bool {
	reported, known := shardload.OfShard(shard)
	if !known || reported.FullOf() != load.FullOf() || reported.NearlyFull() != load.NearlyFull() {
		return true // it affects scheduling
	}
	return differ(reported, load) && j.now().Sub(j.reported[shard.Name]) >= loadInterval
}

type metrics struct{ ready, used *prometheus.GaugeVec }

func newMetrics(registerer prometheus.Registerer) metrics {
	return metrics{
		ready: instruments.NewGaugeVec(registerer, "shardplane_shard_ready",
			"1 if the shard is ready, otherwise 0, by its name. Only on the leader of the root shard, and for shards with heartbeats.", "name"),
		used: instruments.NewGaugeVec(registerer, "shardplane_shard_used_percent",
			"Utilization in percent of the most exhausted limit of a shard, by its name. Only on the leader of the root shard.", "name"),
	}
}

func (m metrics) note(shard *corev1alpha1.Shard) {
	if !conditions.Has(shard, conditionsv1alpha1.ReadyCondition) {
		m.delete(shard.Name)
		return
	}
	value := 0.0
	if shardload.Unready(shard) == "" {
		value = 1
	}
	m.ready.WithLabelValues(shard.Name).Set(value)
	if load, known := shardload.OfShard(shard); known {
		m.used.WithLabelValues(shard.Name).Set(float64(load.Percent()))
	}
}

func (m metrics) delete(shard string) {
	m.ready.Delete(map[string]string{"name": shard})
	m.used.Delete(map[string]string{"name": shard})
}

func setReady(shard *corev1alpha1.Shard, observed health, load shardload.Load) {
	switch {
	case observed == unknown:
	case observed == missing:
		conditions.MarkFalse(shard, conditionsv1alpha1.ReadyCondition, shardload.ReasonHeartbeatMissing, conditionsv1alpha1.ConditionSeverityError,
			"no heartbeat has been received for %s: check that the shard is running and can reach the root shard. Until then, no new workspaces are scheduled to it", shardload.Missed*shardload.Interval)
	case load.Full:
		conditions.MarkFalse(shard, conditionsv1alpha1.ReadyCondition, shardload.ReasonStorageFull, conditionsv1alpha1.ConditionSeverityWarning,
			"its etcd is nearly full: delete objects, compact and defragment it, or raise its quota. Until then, no new workspaces are scheduled to it")
	default:
		conditions.MarkTrue(shard, conditionsv1alpha1.ReadyCondition)
	}
}

// setCachesReady sets the condition CachesReady from the report of the shard. A single shard needs no cache server.
func setCachesReady(shard *corev1alpha1.Shard, observed health, load shardload.Load, single bool) {
	var wrong, reasons []string
	for _, name := range slices.Sorted(maps.Keys(load.Caches)) {
		if reason := load.Caches[name]; reason != "" {
			wrong, reasons = append(wrong, fmt.Sprintf("%s (%s)", name, reason)), append(reasons, reason)
		}
	}
	switch {
	case observed != alive || load.Caches == nil:
	case len(load.Caches) == 0 && single:
		conditions.Delete(shard, shardload.CachesReady)
	case len(load.Caches) == 0:
		conditions.MarkFalse(shard, shardload.CachesReady, shardload.ReasonNoCache, conditionsv1alpha1.ConditionSeverityError,
			"the shard has no --cache-kubeconfig: it cannot use exports, workspace types and permissions of other shards, and vice versa")
	case len(wrong) > 0:
		conditions.MarkFalse(shard, shardload.CachesReady, reasons[0], conditionsv1alpha1.ConditionSeverityError,
			"unusable cache servers: %s. The log of the shard contains the reasons and solutions", strings.Join(wrong, ", "))
	default:
		conditions.MarkTrue(shard, shardload.CachesReady)
	}
}

// The load is written if it has changed by a percentage, but at least by these amounts.
const (
	part       = 100
	minObjects = 100
	minBytes   = 16 << 20
)

func differ(reported, now shardload.Load) bool {
	moved := func(a, b shardload.Amount, few int64) bool {
		return a.Limit != b.Limit || max(a.Used-b.Used, b.Used-a.Used) > max(few, a.Used/part)
	}
	return moved(reported.Workspaces, now.Workspaces, 0) || moved(reported.Objects, now.Objects, minObjects) || moved(reported.Storage, now.Storage, minBytes)
}

// heartbeats contains the last heartbeat of each shard. Time is measured in heartbeats of the root shard.
type heartbeats struct {
	self string

	mu    sync.Mutex
	beats uint64 // observed heartbeats of the root shard
	by    map[string]lastHeartbeat
}

type lastHeartbeat struct {
	renewed metav1.MicroTime
	beats   uint64
	renewal bool // false for the initial state, which may be old
}

func newHeartbeats(self string) *heartbeats {
	return &heartbeats{self: self, by: map[string]lastHeartbeat{}}
}

type health int

const (
	unknown health = iota // no heartbeat has been observed, and none is missing
	alive
	missing
)

func (h *heartbeats) of(shard string) health {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, ok := h.by[shard]
	switch {
	case !ok:
		return unknown
	case h.beats-s.beats >= shardload.Missed:
		return missing
	case s.renewal:
		return alive
	default:
		return unknown
	}
}

// observe records a heartbeat, and reports whether it is a new one of the root shard, which affects the state of all shards.
func (h *heartbeats) observe(shard string, lease *coordinationv1.Lease) (isRenewalOfRoot bool) {
	if lease.Spec.RenewTime == nil {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	last, ok := h.by[shard]
	if ok && last.renewed.Equal(lease.Spec.RenewTime) {
		return false
	}
	own := ok && shard == h.self
	if own {
		h.beats++
	}
	h.by[shard] = lastHeartbeat{renewed: *lease.Spec.RenewTime, beats: h.beats, renewal: ok}
	return own
}

func (h *heartbeats) forget(shard string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.by, shard)
}

// handler records heartbeats and enqueues the affected shards; all enqueues all shards.
func (h *heartbeats) handler(queue reconcile.Queue[string], all func(reconcile.Queue[string])) client.Handler[*coordinationv1.Lease] {
	observed := func(lease *coordinationv1.Lease) {
		shard := lease.Labels[shardload.LeaseLabel]
		if h.observe(shard, lease) {
			all(queue)
		}
		queue.Add(shard)
	}
	return client.Handler[*coordinationv1.Lease]{
		OnAdd:    func(lease *coordinationv1.Lease, _ bool) { observed(lease) },
		OnUpdate: func(_, lease *coordinationv1.Lease) { observed(lease) },
		OnDelete: func(last *coordinationv1.Lease, _ bool) {
			shard := last.Labels[shardload.LeaseLabel]
			h.forget(shard)
			queue.Add(shard)
		},
	}
}
