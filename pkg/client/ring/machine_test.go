package ring

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
)

// TestRenewalCountsFromWhenItWasSent: other members count from the time at which they observe a renewal, which may be
// before its response.
func TestRenewalCountsFromWhenItWasSent(t *testing.T) {
	m := newMachine(newWorld(0).settings, func() string { return "a" })
	at := time.Minute
	for _, verb := range []verb{createOwn, readTable} {
		r := m.next(at, slots{})
		require.Equal(t, verb, r.verb)
		at += time.Second
		a := response{lease: r.lease}
		if verb == readTable {
			a.outcome = notFound
		}
		a.lease.version = "1"
		m.handle(at, r, a)
	}
	require.Equal(t, time.Minute+defaultRenewDeadline, m.until())
}

// TestReportsOfADeletedTable: what a member reports about moves must not be taken for reports about a new table.
func TestReportsOfADeletedTable(t *testing.T) {
	m := newMachine(newWorld(0).settings, func() string { return "a" })
	at := time.Minute
	send := func(read stored) *request {
		r := m.next(at, slots{})
		a := response{lease: r.lease, table: read}
		a.lease.version = "1"
		m.handle(at, r, a)
		return r
	}
	tableWith := func(epoch int64, uid types.UID) stored {
		next := &table{epoch: epoch, config: m.configDigest, members: []string{"a", "b"}}
		next.slots[0] = assignment{owner: "a", to: "b", since: epoch}
		return stored{next, uid, "1"}
	}
	send(stored{})
	send(tableWith(5, "first"))
	require.False(t, m.mine.outgoing.empty())

	at = m.until()
	m.closedUpTo = 5
	r := send(stored{})
	require.Equal(t, renewOwn, r.verb)
	require.Zero(t, r.lease.released, "the table may have been deleted since it was read")
	m.observeTable(at, tableWith(9, "second"))
	require.EqualValues(t, 5, m.epoch())
	m.handle(at, &request{verb: readTable, known: 5}, response{table: tableWith(5, "first")})
	r = send(stored{})
	require.EqualValues(t, 5, r.lease.released)

	o := &observed{lease: r.lease, since: at}
	require.False(t, m.joins(at, o))
	o.released = 0
	require.True(t, m.joins(at, o))
	o.loaded = 5
	require.False(t, m.joins(at, o))

	send(tableWith(9, "second"))
	require.Equal(t, stopping, m.phase, "its Lease reports moves of another table")
}

// TestRangesAfterAFreeze: a process that was frozen beyond its deadline owns nothing, even if its ring has not
// noticed.
func TestRangesAfterAFreeze(t *testing.T) {
	factory, err := client.NewFactory(&rest.Config{Host: "https://127.0.0.1:1"})
	require.NoError(t, err)
	for _, continues := range []bool{false, true} {
		r, err := New(Config{Name: "frozen", ID: "a", Key: client.ByCluster, Leases: factory.Plain(), Namespace: "default", ContinueIfIsolated: continues})
		require.NoError(t, err)
		m := r.machine
		m.phase, m.valid, m.validFrom = taking, true, r.now()
		m.mine.owned.add(0)
		m.mine.incoming.add(1)
		r.publish()
		first, second := m.mine.owned.ranges(client.ByCluster), m.mine.incoming.ranges(client.ByCluster)
		owned, coming := r.Ranges()
		require.True(t, owned.Equal(first) && coming.Equal(second), "%s, %s", owned, coming)
		registry := prometheus.NewRegistry()
		registry.MustRegister(r.metrics.all...)
		share := func(slots int) {
			require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(fmt.Sprintf(`
# HELP shardplane_ring_share Fraction of all hashes that this member may work on.
# TYPE shardplane_ring_share gauge
shardplane_ring_share{ring="frozen"} %v
`, float64(slots)/slotCount)), "shardplane_ring_share"))
		}
		share(1)

		r.start = r.start.Add(-time.Hour)
		owned, coming = r.Ranges()
		if continues {
			require.True(t, owned.Equal(first) && coming.Equal(second), "%s, %s", owned, coming)
			share(1)
			continue
		}
		share(0)
		both := m.mine.owned.or(m.mine.incoming)
		require.True(t, owned.Empty() && coming.Equal(both.ranges(client.ByCluster)), "%s, %s", owned, coming)
	}
}
