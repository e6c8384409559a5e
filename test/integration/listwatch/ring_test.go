package listwatch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/client/ring"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// wire is a network that can be cut.
type wire struct {
	mu          sync.Mutex
	cut         bool
	connections []net.Conn
}

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		return nil, errors.New("the wire is cut")
	}
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		w.connections = append(w.connections, c)
	}
	return c, err
}

func (w *wire) set(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut = cut; cut {
		for _, c := range w.connections {
			_ = c.Close()
		}
		w.connections = nil
	}
}

// worked notes who works on each of 256 hashes, and since when nobody has.
type worked struct {
	t     *testing.T
	mu    sync.Mutex
	by    [256]string
	last  [256]string
	ended [256]time.Time
	idle  []time.Duration
}

func (w *worked) begin(slot int, who string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by[slot] != "" {
		w.t.Errorf("hash %d: %s begins while %s works", slot, who, w.by[slot])
	}
	if w.last[slot] != "" && w.last[slot] != who {
		w.idle = append(w.idle, time.Since(w.ended[slot]))
	}
	w.by[slot], w.last[slot] = who, who
}

func (w *worked) end(slot int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.by[slot], w.ended[slot] = "", time.Now()
}

// idled waits until each hash is worked on, and returns for how long those had nobody that
// have moved since the last call: half of them, and the longest.
func (w *worked) idled() (moved int, median, longest time.Duration) {
	since := time.Now()
	require.Eventually(w.t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return !slices.ContainsFunc(w.ended[:], func(t time.Time) bool { return t.Before(since) })
	}, kit.Timeout, time.Millisecond, "each hash is worked on")
	w.mu.Lock()
	defer w.mu.Unlock()
	idle := w.idle
	w.idle = nil
	slices.Sort(idle)
	if len(idle) == 0 {
		return 0, 0, 0
	}
	return len(idle), idle[len(idle)/2], idle[len(idle)-1]
}

// ringMember works on all hashes that its ring gives it, over a wire of its own.
type ringMember struct {
	*ring.Ring
	*wire
	stop  context.CancelFunc
	ended chan error
}

func startMember(t *testing.T, config *rest.Config, name string, w *worked) *ringMember {
	t.Helper()
	m := &ringMember{wire: &wire{}, ended: make(chan error, 1)}
	config = rest.CopyConfig(config)
	config.Dial = m.dial
	f := kit.NewFactory(t, config)
	r, err := ring.New(ring.Config{
		Name: "drill", ID: name, Leases: f.Cluster(kit.Path("root")), Namespace: "default", Key: client.ByCluster,
		LeaseDuration: 6 * time.Second, RenewDeadline: 3500 * time.Millisecond, RenewInterval: time.Second, GracePeriod: time.Second, RebalanceDelay: 100 * time.Millisecond,
	})
	require.NoError(t, err)
	m.Ring = r
	ctx, cancel := context.WithCancel(t.Context())
	m.stop = cancel
	var running sync.WaitGroup
	running.Go(func() { m.ended <- r.Run(ctx) })
	working, stop := context.WithCancel(t.Context())
	running.Go(func() {
		for working.Err() == nil {
			for slot := range 256 {
				if _, end, ok := r.Begin(working, uint64(slot)<<56); ok { //nolint:gosec // 0 to 255
					w.begin(slot, name)
					w.end(slot)
					end()
				}
			}
			<-time.After(time.Millisecond)
		}
	})
	t.Cleanup(func() {
		cancel()
		stop()
		running.Wait()
	})
	return m
}

// divided waits until these members have all, each its part.
func divided(t *testing.T, what string, members ...*ringMember) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, m := range members {
			s := m.Status()
			i := slices.IndexFunc(s.Members, func(o ring.Member) bool { return o.ID == s.ID })
			if i < 0 || len(s.Members) != len(members) || s.Waits != "" || s.Members[i].Share < 1/float64(len(members))-1./256 {
				return false
			}
		}
		return true
	}, 2*kit.Timeout, 10*time.Millisecond, what)
}

// TestRing has members of a ring on a real shard join, leave, and lose the server.
func TestRing(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: waits for real leases to expire")
	}
	t.Parallel()
	e := kit.Shared(t)
	config := e.Shard(0)
	w := &worked{t: t}
	one := startMember(t, config, "one", w)
	divided(t, "one has all", one)
	second, third := startMember(t, config, "two", w), startMember(t, config, "three", w)
	divided(t, "three have a third each", one, second, third)
	moved, median, longest := w.idled()
	require.Positive(t, moved)
	t.Logf("joins: %d of 256 hashes have moved; idle for %s at the median, and %s at most", moved, median, longest)

	second.stop()
	require.NoError(t, <-second.ended)
	divided(t, "two have a half each", one, third)
	moved, median, longest = w.idled()
	require.Positive(t, moved)
	t.Logf("a leave: %d of 256 hashes have moved; idle for %s at the median, and %s at most", moved, median, longest)

	was := third.Status().ID
	third.set(true)
	divided(t, "one takes over from who is cut off", one)
	require.True(t, third.Status().Isolated)
	owned, _ := third.Ranges()
	require.True(t, owned.Empty())
	moved, median, longest = w.idled()
	require.Positive(t, moved)
	t.Logf("one cut off, with a LeaseDuration of 6 s: %d of 256 hashes have moved; idle for %s at the median, and %s at most", moved, median, longest)
	third.set(false)
	divided(t, "it comes back", one, third)
	require.NotEqual(t, was, third.Status().ID, "as another member")

	// Somebody deletes the Lease of a member.
	was = third.Status().ID
	leases := kinds.Leases.InNamespace(e.ShardClients["root"].Cluster(kit.Path("root")), "default")
	require.NoError(t, leases.Delete(t.Context(), "drill-"+was, metav1.DeleteOptions{}))
	e.Eventually("it joins anew", func() bool { return third.Status().ID != was })
	divided(t, "it has a half again", one, third)

	// The coordinator deletes the Leases of who is no member any more, after it has written the table.
	all := func() []coordinationv1.Lease {
		list, err := leases.List(t.Context(), metav1.ListOptions{LabelSelector: "ring.shardplane.io/ring=drill"})
		require.NoError(t, err)
		return list.Items
	}
	e.Eventually("the ring's Lease and two members' are left", func() bool { return len(all()) == 3 })
	one.stop()
	require.NoError(t, <-one.ended)
	e.Eventually("the ring's Lease and one member's are left", func() bool { return len(all()) == 2 })
	third.stop()
	require.NoError(t, <-third.ended)
	left := all()
	require.LessOrEqual(t, len(left), 2, "the ring's, and perhaps that of the last one")
	for i := range left {
		if err := leases.Delete(t.Context(), left[i].Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			require.NoError(t, err)
		}
	}
}

// TestRingNeedsRights: who may not write Leases is told what it needs, as is who names a namespace
// that does not exist.
func TestRingNeedsRights(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	admin := e.ShardClients["root"]
	run := func(f *client.Factory, namespace string) error {
		r, err := ring.New(ring.Config{Name: "rights", Leases: f.Cluster(kit.Path("root")), Namespace: namespace, Key: client.ByCluster})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), kit.Timeout)
		defer cancel()
		return r.Run(ctx)
	}
	err := run(admin, "nowhere")
	require.ErrorContains(t, err, `namespace "nowhere" of logical cluster "root", for the Leases of ring "rights", does not exist: create it`)
	nobody := rest.AnonymousClientConfig(e.Shard(0))
	err = run(kit.NewFactory(t, nobody), "default")
	require.ErrorContains(t, err, `in namespace "default" of logical cluster "root", and may not`, fmt.Sprint(err))
}
