package shardhealth

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
	"github.com/shardplane/shardplane/test/documented"
)

// world is root with two shards and their heartbeats.
type world struct {
	t                *testing.T
	now              time.Time
	shards           map[string]*corev1alpha1.Shard
	leases           map[string]*coordinationv1.Lease
	writes           int
	fail             error
	queued           []string
	healthReconciler *healthReconciler
	handler          client.Handler[*coordinationv1.Lease]
}

var _ reconcile.Queue[string] = &world{}

func (w *world) Add(key string)                       { w.queued = append(w.queued, key) }
func (w *world) AddAfter(key string, _ time.Duration) { w.Add(key) }

func (w *world) Drop(string) {}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, now: time.Unix(1000, 0), leases: map[string]*coordinationv1.Lease{}, shards: map[string]*corev1alpha1.Shard{}}
	for _, name := range []string{"root", "b"} {
		w.shards[name] = &corev1alpha1.Shard{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	w.start()
	return w
}

func (w *world) start() {
	w.healthReconciler = &healthReconciler{
		now: func() time.Time { return w.now }, observed: newHeartbeats("root"), reported: map[string]time.Time{}, metrics: newMetrics(nil),
		shard: func(name string) (*corev1alpha1.Shard, error) {
			if shard := w.shards[name]; shard != nil {
				return shard, nil
			}
			return nil, apierrors.NewNotFound(corev1alpha1.Resource("shards"), name)
		},
		lease: func(name string) (*coordinationv1.Lease, error) {
			if lease := w.leases[name]; lease != nil {
				return lease, nil
			}
			return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), name)
		},
		single: func() bool { return len(w.shards) == 1 },
		commit: func(_ context.Context, old, updated *corev1alpha1.Shard) error {
			if w.fail != nil {
				return w.fail
			}
			if !equality.Semantic.DeepEqual(old, updated) {
				w.writes++
				w.shards[old.Name] = updated
			}
			return nil
		},
	}
	w.handler = w.healthReconciler.observed.handler(w, func(reconcile.Queue[string]) { w.queued = append(w.queued, "all") })
	for _, lease := range w.leases {
		w.handler.OnAdd(lease, true)
	}
	w.work()
}

// beat is a heartbeat of a shard with a wrong clock.
func (w *world) beat(shard string, load shardload.Load) {
	w.t.Helper()
	old := w.leases[shard]
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{shardload.LeaseLabel: shard}}}
	at := time.Unix(5, 0)
	if old != nil {
		at = old.Spec.RenewTime.Add(-time.Second)
	}
	lease.Spec.RenewTime = &metav1.MicroTime{Time: at}
	require.NoError(w.t, shardload.SetOnLease(lease, &load))
	w.leases[shard] = lease
	if old == nil {
		w.handler.OnAdd(lease, false)
	} else {
		w.handler.OnUpdate(old, lease)
	}
	w.work()
}

func (w *world) work() {
	w.t.Helper()
	queued := w.queued
	w.queued = nil
	if slices.Contains(queued, "all") {
		queued = []string{"root", "b", "unregistered"}
	}
	for _, name := range queued {
		_, err := w.healthReconciler.reconcile(w.t.Context(), name)
		require.ErrorIs(w.t, err, w.fail)
	}
}

func (w *world) readyOf(shard string) string {
	ready := conditions.Get(w.shards[shard], conditionsv1alpha1.ReadyCondition)
	if ready == nil {
		return "nothing"
	}
	return string(ready.Status) + ready.Reason
}

// TestHealth: a shard without several heartbeats is not ready until the next one.
func TestHealth(t *testing.T) {
	w, none := newWorld(t), shardload.Load{}
	pass := func(beats int) {
		for range beats {
			w.beat("root", none)
		}
	}
	pass(10)
	require.Equal(t, "True", w.readyOf("root"))
	require.Equal(t, "nothing", w.readyOf("b"), "a shard that has just registered has not sent a heartbeat")

	w.beat("b", none)
	require.Equal(t, "nothing", w.readyOf("b"), "the first observed heartbeat may be old")
	w.beat("b", none)
	require.Equal(t, "True", w.readyOf("b"))
	pass(shardload.Missed - 1)
	require.Equal(t, "True", w.readyOf("b"))
	writes := w.writes
	pass(1)
	require.Equal(t, "FalseHeartbeatMissing", w.readyOf("b"))
	require.Contains(t, conditions.GetMessage(w.shards["b"], conditionsv1alpha1.ReadyCondition), "for 40s: check that the shard is running")
	pass(10)
	require.Equal(t, writes+1, w.writes)
	require.Equal(t, "True", w.readyOf("root"))

	w.start()
	require.Equal(t, "FalseHeartbeatMissing", w.readyOf("b"), "a restart must not reset the condition")
	pass(shardload.Missed - 1)
	w.beat("b", none)
	require.Equal(t, "True", w.readyOf("b"))
	w.start()
	pass(shardload.Missed)
	require.Equal(t, "FalseHeartbeatMissing", w.readyOf("b"), "heartbeats that are missing since a restart must be detected")

	// The Lease of the shard is deleted, and the shard sends no heartbeats.
	last := w.leases["b"]
	delete(w.leases, "b")
	w.handler.OnDelete(last, false)
	w.work()
	require.Equal(t, "nothing", w.readyOf("b"))
	pass(10)
	require.Equal(t, "nothing", w.readyOf("b"))
}

// TestSuspendedRootShard: while the heartbeat of the root shard cannot be stored, no other one is considered missing.
func TestSuspendedRootShard(t *testing.T) {
	w, none := newWorld(t), shardload.Load{}
	for range 2 {
		w.beat("root", none)
		w.beat("b", none)
	}
	w.now = w.now.Add(time.Hour)
	w.handler.OnUpdate(w.leases["root"], w.leases["root"]) // no renewal
	w.work()
	w.beat("root", none)
	require.Equal(t, "True", w.readyOf("b"))
}

// TestLoad: a load that affects scheduling is written immediately, and other changes at a limited rate.
func TestLoad(t *testing.T) {
	w := newWorld(t)
	reported := func() shardload.Load {
		load, known := shardload.OfShard(w.shards["b"])
		require.True(t, known)
		return load
	}
	load := shardload.Load{Workspaces: shardload.Amount{Used: 3, Limit: 100}, Objects: shardload.Amount{Used: 1000}, Storage: shardload.Amount{Used: 1 << 30, Limit: 8 << 30}}
	w.beat("b", load)
	require.Equal(t, load, reported())
	changeLoad := func(change func(), after time.Duration, want bool) {
		t.Helper()
		change()
		w.now = w.now.Add(after)
		w.beat("b", load)
		require.Equal(t, want, equality.Semantic.DeepEqual(reported(), load), "%+v", load)
	}
	changeLoad(func() { load.Workspaces.Used = 4 }, time.Second, false)
	changeLoad(func() {}, loadInterval, true)
	changeLoad(func() { load.Objects.Used += 99 }, loadInterval, false)
	changeLoad(func() { load.Objects.Used += 2 }, loadInterval, true)
	changeLoad(func() { load.Storage.Used += 1 << 20 }, loadInterval, false)
	changeLoad(func() { load.Workspaces.Used = 90 }, time.Second, true)
	changeLoad(func() { load.Workspaces.Used = 100 }, time.Second, true)
	changeLoad(func() { load.Workspaces.Used = 99 }, time.Second, true)
	writes := w.writes
	changeLoad(func() {}, time.Hour, true)
	require.Equal(t, writes, w.writes, "an idle shard must not cause writes")

	load.Full = true
	w.beat("b", load)
	require.Equal(t, "FalseStorageFull", w.readyOf("b"))
	load.Full = false
	w.fail = errors.New("etcd is unreachable")
	w.beat("b", load)
	w.fail = nil
	w.beat("b", load)
	require.Equal(t, "True", w.readyOf("b"))
}

// TestCachesReady: Shards report unusable cache servers.
func TestCachesReady(t *testing.T) {
	w := newWorld(t)
	ready := func(caches map[string]string) *conditionsv1alpha1.Condition {
		for range 2 {
			w.beat("root", shardload.Load{Caches: caches})
		}
		return conditions.Get(w.shards["root"], shardload.CachesReady)
	}
	require.Nil(t, ready(nil), "the shard has not checked its cache servers yet")
	require.EqualValues(t, "True", ready(map[string]string{"a": "", "b": ""}).Status)
	refused := ready(map[string]string{"a": "", "b": "Refused", "c": "NotACacheServer"})
	require.EqualValues(t, "False", refused.Status)
	require.Equal(t, "Refused", refused.Reason)
	require.Contains(t, refused.Message, "b (Refused), c (NotACacheServer)")
	require.Equal(t, "True", w.readyOf("root"), "unusable cache servers must not affect the readiness")
	none := ready(map[string]string{})
	require.EqualValues(t, "False", none.Status)
	require.Equal(t, "NoCache", none.Reason)
	delete(w.shards, "b")
	require.Nil(t, ready(map[string]string{}), "a single shard needs no cache server")
}

// TestDocumented: the documentation contains all reasons of the conditions, except those of the cache servers.
func TestDocumented(t *testing.T) {
	shards := []*corev1alpha1.Shard{{}, {}, {}}
	setReady(shards[0], missing, shardload.Load{})
	setReady(shards[1], alive, shardload.Load{Full: true})
	setCachesReady(shards[2], alive, shardload.Load{Caches: map[string]string{}}, false)
	require.ElementsMatch(t, documented.Conditions(t, "Shard"), slices.Concat(
		documented.Reported(shards[0]), documented.Reported(shards[1]), documented.Reported(shards[2])))
}
