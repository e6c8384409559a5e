package usage

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
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
