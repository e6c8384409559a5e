package usage

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// member is an etcd member with any size.
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
		size, inUse   int64
		filling, full bool
	}{
		{749, 749, false, false},
		{800, 750, true, false},
		{899, 899, true, false},
		{905, 899, true, false}, // what is free is used again
		{905, 900, true, true},
		{950, 890, true, false}, // compacted
		{960, 100, false, true}, // the file does not shrink by itself
		{100, 100, false, false},
	} {
		m.size, m.inUse = step.size, step.inUse
		require.NoError(t, q.check(t.Context(), client))
		require.Equal(t, []bool{step.filling, step.full}, []bool{q.filling.Load(), q.full.Load()}, "%+v", step)
		require.Equal(t, []int64{step.inUse, 1000}, []int64{q.inUse.Load(), q.limit.Load()})
	}
	m.size, m.inUse = 999, 999
	require.NoError(t, q.check(t.Context(), client))
	m.err = errors.New("no leader")
	require.ErrorIs(t, q.check(t.Context(), client), m.err)
	require.True(t, q.full.Load(), "the last state must be kept after an error")
	m.err, m.quota = nil, 0
	require.NoError(t, q.check(t.Context(), client))
	require.False(t, q.full.Load(), "an etcd that reports no quota must not be full")
}

// TestQuotaCheck verifies a check after a hundredth of the quota was written, and that history may use two hundredths.
func TestQuotaCheck(t *testing.T) {
	client := clientv3.NewCtxClient(t.Context())
	client.Maintenance = &member{quota: 1000}
	q := newQuota()
	q.wrote(1 << 20)
	require.Empty(t, q.trigger, "no check must be requested before the quota has been read")
	require.NoError(t, q.check(t.Context(), client))
	q.written.Store(0)
	q.wrote(9)
	require.Empty(t, q.trigger)
	q.wrote(1)
	q.wrote(1000)
	require.Len(t, q.trigger, 1)
	q.full.Store(true)
	q.history.superseded.Store(20)
	require.True(t, (&Counter{quota: q}).HistoryFull())
	q.history.compacted.Store(1)
	require.False(t, (&Counter{quota: q}).HistoryFull())
}

// TestEmbedded checks an in-process etcd.
func TestEmbedded(t *testing.T) {
	server := startServer(t, 100<<20)
	q := newQuota()
	require.NoError(t, q.check(t.Context(), server.Client().Client))
	require.False(t, q.full.Load())
	require.EqualValues(t, 1<<20, q.enough.Load())
}

// TestAlarm verifies that an etcd with an alarm is full until it is disarmed.
func TestAlarm(t *testing.T) {
	client := startServer(t, 8<<20).Client().Client
	var err error
	for n := 0; err == nil; n++ {
		require.Less(t, n, 100, "etcd does not enforce its quota")
		_, err = client.Put(t.Context(), "key", strings.Repeat("x", 1<<20))
	}
	require.ErrorIs(t, err, rpctypes.ErrNoSpace)
	// The file is much smaller than the quota here.
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
