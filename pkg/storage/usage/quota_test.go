package usage

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/shardplane/shardplane/pkg/etcd"
)

// member answers for an etcd of any size.
type member struct {
	clientv3.Maintenance

	size, inUse, quota int64
	err                error
}

func (m *member) Status(context.Context, string) (*clientv3.StatusResponse, error) {
	return &clientv3.StatusResponse{DbSize: m.size, DbSizeInUse: m.inUse, DbSizeQuota: m.quota}, m.err
}

func TestFull(t *testing.T) {
	m := &member{quota: 1000}
	client := clientv3.NewCtxClient(t.Context())
	client.Maintenance = m
	q := newQuota()
	for _, step := range []struct {
		size, inUse int64
		full        bool
	}{
		{899, 899, false},
		{905, 899, false}, // what is free is used again
		{905, 900, true},
		{950, 890, false}, // compacted
		{960, 100, true},  // the file does not shrink by itself
		{100, 100, false},
	} {
		m.size, m.inUse = step.size, step.inUse
		require.NoError(t, q.check(t.Context(), client))
		require.Equal(t, step.full, q.full.Load(), "%+v", step)
		require.Equal(t, []int64{step.inUse, 1000}, []int64{q.inUse.Load(), q.limit.Load()})
	}
	m.size, m.inUse = 999, 999
	require.NoError(t, q.check(t.Context(), client))
	m.err = errors.New("no leader")
	require.ErrorIs(t, q.check(t.Context(), client), m.err)
	require.True(t, q.full.Load(), "what was known stays")
	m.err, m.quota = nil, 0
	require.NoError(t, q.check(t.Context(), client))
	require.False(t, q.full.Load(), "an etcd that does not say its quota")
}

// TestLook has somebody look at the etcd after a hundredth of the quota was written.
func TestLook(t *testing.T) {
	client := clientv3.NewCtxClient(t.Context())
	client.Maintenance = &member{quota: 1000}
	q := newQuota()
	q.wrote(1 << 20)
	require.Empty(t, q.look, "the quota is not known")
	require.NoError(t, q.check(t.Context(), client))
	q.written.Store(0)
	q.wrote(9)
	require.Empty(t, q.look)
	q.wrote(1)
	q.wrote(1000)
	require.Len(t, q.look, 1)
}

// TestEmbedded asks an etcd in this process.
func TestEmbedded(t *testing.T) {
	server, err := etcd.Start(t.Context(), etcd.Config{DataDir: t.TempDir(), UnsafeNoFsync: true, QuotaBytes: 100 << 20})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	q := newQuota()
	require.NoError(t, q.check(t.Context(), server.Client().Client))
	require.False(t, q.full.Load())
	require.EqualValues(t, 1<<20, q.enough.Load())
}

// TestAlarm holds that an etcd which has raised its alarm is full until that is
// disarmed, however much room there is.
func TestAlarm(t *testing.T) {
	server, err := etcd.Start(t.Context(), etcd.Config{DataDir: t.TempDir(), UnsafeNoFsync: true, QuotaBytes: 8 << 20})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	client := server.Client().Client
	for n := 0; err == nil; n++ {
		require.Less(t, n, 100, "it has no quota")
		_, err = client.Put(t.Context(), "key", strings.Repeat("x", 1<<20))
	}
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
	// The file stays as it is, but is much less than what is asked for here.
	now, err := client.Get(t.Context(), "key")
	require.NoError(t, err)
	_, err = client.Compact(t.Context(), now.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	larger := clientv3.NewCtxClient(t.Context())
	larger.Maintenance = withQuota{client.Maintenance, 8 << 30}
	q := newQuota()
	require.NoError(t, q.check(t.Context(), larger))
	require.True(t, q.full.Load())
	_, err = client.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	require.NoError(t, err)
	require.NoError(t, q.check(t.Context(), larger))
	require.False(t, q.full.Load())
}

// TestCompactsEarly changes one object over and over, up to twice as many bytes as an etcd has room for: history goes
// before that is full.
func TestCompactsEarly(t *testing.T) {
	const quota, size, writes = 12 << 20, 512 << 10, 48
	server, err := etcd.Start(t.Context(), etcd.Config{DataDir: t.TempDir(), UnsafeNoFsync: true, QuotaBytes: quota})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	client := server.Client().Client
	c := New(client, "/prefix", "/events")
	c.CompactEarly()
	q, now, first, full := c.quota, time.Now(), int64(0), 0
	for n := range writes {
		put, err := client.Put(t.Context(), "key", strings.Repeat("x", size))
		require.NoError(t, err, "after %d writes", n)
		if n == 0 {
			first = put.Header.Revision
		}
		// etcd knows what is in use once it has committed it.
		before := q.inUse.Load()
		require.Eventually(t, func() bool {
			require.NoError(t, q.check(t.Context(), client))
			return q.inUse.Load() != before
		}, time.Minute, time.Millisecond)
		now = now.Add(historyTime)
		q.history.saw(q.revision, now)
		if q.full.Load() {
			full++
			require.NoError(t, q.history.run(t.Context(), client))
			require.NoError(t, q.history.run(t.Context(), client), "what is done already")
		}
	}
	require.Positive(t, full)
	require.Less(t, full, writes/4, "there is room again")
	_, err = client.Get(t.Context(), "key", clientv3.WithRev(first))
	require.ErrorIs(t, err, rpctypes.ErrCompacted)
	told, err := client.Get(t.Context(), "compact_rev_key")
	require.NoError(t, err)
	require.Len(t, told.Kvs, 1, "watch caches are told")
	_, err = client.Get(t.Context(), "key", clientv3.WithRev(q.history.before))
	require.NoError(t, err, "what is not old stays")
}

// TestHistoryStays holds that history is compacted early only where the operator has it compacted, and only what is
// older than a moment.
func TestHistoryStays(t *testing.T) {
	c, now := compaction{}, time.Now()
	c.saw(10, now)
	require.Zero(t, c.before)
	c.saw(11, now.Add(historyTime-1))
	require.Zero(t, c.before)
	c.saw(12, now.Add(historyTime))
	require.EqualValues(t, 10, c.before)
	require.NoError(t, c.run(t.Context(), nil))
}

// withQuota is an etcd whose operator has given it another quota.
type withQuota struct {
	clientv3.Maintenance

	quota int64
}

func (m withQuota) Status(ctx context.Context, endpoint string) (*clientv3.StatusResponse, error) {
	status, err := m.Maintenance.Status(ctx, endpoint)
	if err == nil {
		status.DbSizeQuota = m.quota
	}
	return status, err
}
