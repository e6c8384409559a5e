package ring_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/client/ring"
)

const testTimeout = time.Minute

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

func newServer(t testing.TB) (*clienttest.Server, *client.Factory) {
	t.Helper()
	server := clienttest.New(t, kinds.Scheme)
	factory, err := client.NewFactory(server.ClientConfig())
	require.NoError(t, err)
	t.Cleanup(factory.CloseIdleConnections)
	return server, factory
}

// quick is the configuration of a ring with short timeouts. Busy machines may miss renewals, which these tests
// tolerate.
func quick(factory *client.Factory) ring.Config {
	return ring.Config{
		Name: "exporters", ID: "replica", Leases: factory.Cluster(logicalcluster.NewPath("root")), Namespace: "default", Key: client.ByCluster,
		LeaseDuration: 3 * time.Second, RenewDeadline: 1800 * time.Millisecond, RenewInterval: 300 * time.Millisecond,
		GracePeriod: 500 * time.Millisecond, RebalanceDelay: 50 * time.Millisecond,
	}
}

// patient is like quick, but with the default LeaseDuration, which busy machines can renew. Gate tests that run members
// use it, and must not require that a Lease expires.
func patient(factory *client.Factory) ring.Config {
	config := quick(factory)
	config.LeaseDuration, config.RenewDeadline = 0, 0
	return config
}

// expiring skips tests in which Leases expire in real time in short mode, because busy machines may expire them too
// early.
func expiring(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("nightly: Leases expire in real time; TestModel checks the same rules with a simulated clock")
	}
	t.Parallel()
}

type member struct {
	*ring.Ring
	stop  context.CancelFunc
	ended chan error
}

func start(t *testing.T, config ring.Config) *member {
	t.Helper()
	r, err := ring.New(config)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	m := &member{r, cancel, make(chan error, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.ended <- r.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return m
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, testTimeout, 5*time.Millisecond, "timeout, expected: "+what)
}

func own(members ...*member) bool {
	parts := 0.0
	for _, m := range members {
		s := m.Status()
		if len(s.Members) != len(members) || len(s.Moves) > 0 || s.Waits != "" {
			return false
		}
		i := slices.IndexFunc(s.Members, func(o ring.Member) bool { return o.ID == s.ID })
		if i < 0 {
			return false
		}
		parts += s.Members[i].Share
		if part := 1 / float64(len(members)); s.Members[i].Share < part-1./256 || s.Members[i].Share > part+1./256 {
			return false
		}
		if owned, coming := m.Ranges(); owned.Empty() || !coming.Empty() || !m.LoadedRanges().Ranges().Equal(owned) {
			return false
		}
	}
	return parts == 1
}

// TestRing runs members that join, leave and crash.
func TestRing(t *testing.T) {
	expiring(t)
	_, factory := newServer(t)
	registry := prometheus.NewPedanticRegistry()
	config := quick(factory)
	config.Metrics = registry
	one := start(t, config)
	eventually(t, "one member has all hashes", func() bool { return own(one) })
	eventually(t, "the share metric is 1", func() bool { return metric(t, registry, "shardplane_ring_share") == 1 })
	require.InDelta(t, 1, metric(t, registry, "shardplane_ring_members"), 0)

	two := start(t, quick(factory))
	eventually(t, "two members share all hashes", func() bool { return own(one, two) })
	eventually(t, "the share metric is 0.5", func() bool { return metric(t, registry, "shardplane_ring_share") == 0.5 })

	// The contexts of work end when its hash moves away.
	begun := make(chan context.Context, 1)
	eventually(t, "work begins", func() bool {
		owned, _ := two.Ranges()
		if owned.Empty() {
			return false
		}
		hash, err := strconv.ParseUint(strings.Split(owned.String(), "'")[1], 0, 64)
		require.NoError(t, err)
		work, _, ok := two.Begin(t.Context(), hash) // it does not end
		if ok {
			begun <- work
		}
		return ok
	})
	work := <-begun
	three := start(t, quick(factory))
	eventually(t, "three members share all hashes", func() bool { return len(three.Status().Members) == 3 })

	two.stop()
	select {
	case <-work.Done():
	case <-time.After(testTimeout):
		t.Fatal("work continues")
	}
	require.ErrorIs(t, context.Cause(work), client.ErrNotOwned)
	err := <-two.ended
	require.ErrorIs(t, err, ring.ErrOverrun, "work that does not call end must fail the member")
	eventually(t, "the other members take over", func() bool { return own(one, three) })

	three.stop()
	require.NoError(t, <-three.ended)
	eventually(t, "one member has all hashes again", func() bool { return own(one) })
	_, _, ok := three.Begin(t.Context(), 0)
	require.False(t, ok)
	list, err := kinds.Leases.InNamespace(config.Leases, "default").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	eventually(t, "the Leases of removed members are deleted", func() bool {
		list, err = kinds.Leases.InNamespace(config.Leases, "default").List(t.Context(), metav1.ListOptions{})
		return err == nil && len(list.Items) == 2
	})
	one.stop()
	require.NoError(t, <-one.ended)
	require.Error(t, one.Run(t.Context()), "once")
}

// TestPartFailure: if a part fails, the member leaves and the other parts end. With ErrOverrun Run does not wait for them.
func TestPartFailure(t *testing.T) {
	t.Parallel()
	_, factory := newServer(t)
	fails, err := ring.New(patient(factory))
	require.NoError(t, err)
	broken, ended := errors.New("broken"), false
	require.ErrorIs(t, fails.Run(t.Context(), func(context.Context) error { return broken }, func(ctx context.Context) error {
		<-ctx.Done()
		ended = true
		return nil
	}), broken)
	require.True(t, ended)

	hangs, err := ring.New(patient(factory))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	hung, result := make(chan struct{}), make(chan error, 1)
	defer close(hung)
	go func() {
		result <- hangs.Run(ctx, func(context.Context) error {
			<-hung
			return nil
		})
	}()
	eventually(t, "work begins", func() bool {
		_, _, ok := hangs.Begin(t.Context(), 1) // it does not end
		return ok
	})
	stop()
	require.ErrorIs(t, <-result, ring.ErrOverrun)
}

func metric(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// TestIsolation: a member that cannot renew stops, and resumes with the same slots. With ContinueIfIsolated it does not stop.
func TestIsolation(t *testing.T) {
	expiring(t)
	for _, continues := range []bool{false, true} {
		t.Run(fmt.Sprint(continues), func(t *testing.T) {
			t.Parallel()
			server, factory := newServer(t)
			config := quick(factory)
			config.ContinueIfIsolated = continues
			one := start(t, config)
			eventually(t, "one member has all hashes", func() bool { return own(one) })
			gained := make(chan client.Ranges, 10)
			defer one.OnGain(func(r client.Ranges) { gained <- r })()
			all := <-gained
			server.Fail(http.StatusInternalServerError)
			// There is one request at a time, so with this error no other one is pending.
			eventually(t, "the member is isolated", func() bool {
				s := one.Status()
				return s.Isolated && s.LastError != nil && strings.Contains(s.LastError.Error(), "injected failure")
			})
			_, end, ok := one.Begin(t.Context(), 1)
			end()
			require.Equal(t, continues, ok)
			eventually(t, "the ranges are updated after the gate was closed", func() bool {
				owned, coming := one.Ranges()
				return coming.Empty() == continues && owned.Empty() != continues
			})
			require.True(t, one.LoadedRanges().Ranges().Equal(all), "informers must keep their loaded ranges")
			require.Contains(t, one.Status().Waits, "cannot renew")
			server.Fail(0)
			eventually(t, "the member resumes", func() bool { return own(one) })
			if !continues {
				require.True(t, all.Equal(<-gained))
			}
		})
	}
}

// TestOtherConfiguration: a member with a different configuration is rejected.
func TestOtherConfiguration(t *testing.T) {
	expiring(t)
	_, factory := newServer(t)
	one := start(t, quick(factory))
	eventually(t, "one member has all hashes", func() bool { return own(one) })
	config := quick(factory)
	config.Key = client.ByUID
	err := <-start(t, config).ended
	require.ErrorContains(t, err, `the table has "1 object.metadata.cluster lease=3s deadline=1.8s grace=500ms", but this member has "1 object.metadata.uid lease`)
	one.stop()
	require.NoError(t, <-one.ended)
	other := start(t, config)
	eventually(t, "members with the former configuration are removed", func() bool { return own(other) })
}

// TestMissingPermissions: the error for missing permissions lists them.
func TestMissingPermissions(t *testing.T) {
	t.Parallel()
	server, factory := newServer(t)
	server.Fail(http.StatusForbidden)
	err := <-start(t, quick(factory)).ended
	require.ErrorContains(t, err, `must be allowed to get, list, watch, create, update and delete leases.coordination.k8s.io in namespace "default" of logical cluster "root", but may not`)
	server.Fail(http.StatusNotFound)
	err = <-start(t, quick(factory)).ended
	require.ErrorContains(t, err, `namespace "default" of logical cluster "root", for the Leases of ring "exporters", does not exist: create it`)
}

// TestUnreadableTable: an invalid table assigns nothing.
func TestUnreadableTable(t *testing.T) {
	t.Parallel()
	server, factory := newServer(t)
	server.Put(t, kinds.Leases.GroupVersionResource, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: "exporters", Namespace: "default", Annotations: map[string]string{logicalcluster.AnnotationKey: "root", "ring.shardplane.io/table": "{}"},
	}})
	one := start(t, patient(factory))
	eventually(t, "the error is reported", func() bool { return one.Status().LastError != nil })
	require.ErrorContains(t, one.Status().LastError, "delete the Lease")
	require.NoError(t, kinds.Leases.InNamespace(quick(factory).Leases, "default").Delete(t.Context(), "exporters", metav1.DeleteOptions{}))
	eventually(t, "the member has all hashes", func() bool { return own(one) })
}

func TestConfig(t *testing.T) {
	t.Parallel()
	_, factory := newServer(t)
	for want, change := range map[string]func(*ring.Config){
		"Name is required":                          func(c *ring.Config) { c.Name = "" },
		"Name must be valid as the name of a Lease": func(c *ring.Config) { c.Name = "A b" },
		`ID "A" is part of the name of a Lease`:     func(c *ring.Config) { c.ID = "A" },
		"Leases is required":                        func(c *ring.Config) { c.Leases = client.Scope{} },
		"Leases must not be all logical clusters":   func(c *ring.Config) { c.Leases = factory.Wildcard() },
		"Namespace is required":                     func(c *ring.Config) { c.Namespace = "" },
		"Weight is -1: must be 1 to 1000":           func(c *ring.Config) { c.Weight = -1 },
		"Weight is 1001":                            func(c *ring.Config) { c.Weight = 1001 },
		"GracePeriod is -1ns: must be positive":     func(c *ring.Config) { c.GracePeriod = -1 },
		"RebalanceDelay is -1s":                     func(c *ring.Config) { c.RebalanceDelay = -time.Second },
		"RenewDeadline must be lower":               func(c *ring.Config) { c.RenewDeadline = c.LeaseDuration },
		"must be at least 3.5s":                     func(c *ring.Config) { c.GracePeriod = time.Second },
		"at most half of RenewDeadline, which is ":  func(c *ring.Config) { c.RenewInterval = time.Second },
	} {
		config := quick(factory)
		change(&config)
		_, err := ring.New(config)
		require.ErrorContains(t, err, want)
	}
	defaults := ring.Config{Name: "defaults", Leases: factory.Cluster(logicalcluster.NewPath("root")), Namespace: "default"}
	_, err := ring.New(defaults)
	require.NoError(t, err)
	defaults.LeaseDuration = 5 * time.Second // the defaults of other times depend on it
	_, err = ring.New(defaults)
	require.NoError(t, err)
}
