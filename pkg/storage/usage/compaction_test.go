package usage

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/shardplane/shardplane/pkg/etcd"
)

// updates are updates of one object that do not increase its size.
type updates struct {
	t       *testing.T
	server  *etcd.Server
	client  *clientv3.Client
	counter *Counter
	watch   clientv3.WatchChan
	now     time.Time
}

func startServer(t *testing.T, quota int64) *etcd.Server {
	t.Helper()
	server, err := etcd.Start(t.Context(), etcd.Config{DataDir: t.TempDir(), UnsafeNoFsync: true, QuotaBytes: quota})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	return server
}

func newUpdates(t *testing.T) *updates {
	t.Helper()
	server := startServer(t, 0)
	u := &updates{t: t, server: server, client: server.Client().Client, now: time.Now()}
	u.count()
	return u
}

// count starts another counter.
func (u *updates) count() {
	u.t.Helper()
	u.counter = NewUsageMeter(u.client, "/prefix", "/events")
	u.counter.CompactEarly()
	require.NoError(u.t, u.counter.quota.check(u.t.Context(), u.client))
	revision, err := u.counter.scan(u.t.Context())
	require.NoError(u.t, err)
	u.watch = u.client.Watch(u.t.Context(), u.counter.root, clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithRev(revision+1))
}

// write writes once, makes the counter check etcd, and returns the revision.
func (u *updates) write(size int) int64 {
	u.t.Helper()
	put, err := u.client.Put(u.t.Context(), "/prefix/core/configmaps/one/default/object", strings.Repeat("x", size))
	require.NoError(u.t, err)
	for counted := int64(0); counted < put.Header.Revision; {
		response := <-u.watch
		require.NoError(u.t, response.Err())
		require.NoError(u.t, u.counter.apply(&response))
		counted = response.Header.Revision
	}
	u.check()
	return put.Header.Revision
}

// check makes the counter check etcd, historyTime later.
func (u *updates) check() {
	u.t.Helper()
	// A snapshot makes etcd commit, after which the size in use is current.
	snapshot, err := u.server.Snapshot(u.t.Context())
	require.NoError(u.t, err)
	require.NoError(u.t, snapshot.Close())
	u.now = u.now.Add(historyTime)
	require.NoError(u.t, u.counter.quota.check(u.t.Context(), u.client))
	require.NoError(u.t, u.counter.quota.compact(u.t.Context(), u.client, u.now))
}

// has reports whether the history includes a revision.
func (u *updates) has(revision int64) bool {
	u.t.Helper()
	_, err := u.client.Get(u.t.Context(), "key", clientv3.WithRev(revision))
	if err != nil {
		require.ErrorIs(u.t, err, rpctypes.ErrCompacted)
	}
	return err == nil
}

// withQuota is an etcd that reports another quota, and no free space in its file.
type withQuota struct {
	clientv3.Maintenance
	quota int64
}

func (m withQuota) Status(ctx context.Context, endpoint string) (*clientv3.StatusResponse, error) {
	status, err := m.Maintenance.Status(ctx, endpoint)
	if err == nil {
		status.DbSize, status.DbSizeQuota = status.DbSizeInUse, m.quota
	}
	return status, err
}

// TestUpdatesDoNotFillEtcd updates an object with four times as many bytes as the quota.
func TestUpdatesDoNotFillEtcd(t *testing.T) {
	const quota, size = 16 << 20, 256 << 10
	u := newUpdates(t)
	u.client.Maintenance = withQuota{u.client.Maintenance, quota}
	first := u.write(size)
	for range 4 * quota / size {
		u.write(size)
		require.Less(t, u.counter.quota.inUse.Load(), int64(quota))
		require.Eventually(t, func() bool {
			u.check()
			return !u.counter.Full()
		}, time.Minute, time.Millisecond, "etcd must have free space after compaction")
	}
	require.False(t, u.has(first))
}

// TestCompactsEarly verifies that history is compacted early if it releases enough bytes, also after compactions by
// other servers, and that watch caches are notified.
func TestCompactsEarly(t *testing.T) {
	const size, enough = 1 << 10, 3 << 10
	u := newUpdates(t)
	u.write(size)
	for range 2 { // servers one after the other
		u.count()
		history := &u.counter.quota.history
		history.compacted.Store(history.superseded.Load()) // it need not compact what was before it
		for range 2 {
			compacted, revisions := history.compacted.Load(), []int64(nil)
			for history.compacted.Load() == compacted {
				revisions = append(revisions, u.write(size))
				require.True(t, u.has(revisions[0]))
				require.NoError(t, history.run(t.Context(), u.client, enough))
			}
			require.InDelta(t, enough+size/2, history.compacted.Load()-compacted, size/2)
			require.NoError(t, history.run(t.Context(), u.client, enough))
			require.Equal(t, revisions[len(revisions)-2], history.before.revision)
			require.True(t, u.has(history.before.revision), "the latest history must be kept")
			require.False(t, u.has(history.before.revision-1))
			recorded, err := u.client.Get(t.Context(), compactedKey)
			require.NoError(t, err)
			require.Len(t, recorded.Kvs, 1)
			require.Equal(t, strconv.FormatInt(history.before.revision, 10), string(recorded.Kvs[0].Value))
		}
	}
}

// TestHistoryIsKept verifies that history is kept if early compaction is disabled, and for historyTime.
func TestHistoryIsKept(t *testing.T) {
	c, now := compaction{}, time.Now()
	for _, at := range []struct {
		revision int64
		after    time.Duration
		before   moment
	}{
		{10, 0, moment{}},
		{11, historyTime - 1, moment{}},
		{12, historyTime, moment{10, 1}},
		{13, 3 * historyTime / 2, moment{10, 1}},
	} {
		c.superseded.Add(1)
		c.record(at.revision, now.Add(at.after))
		require.Equal(t, at.before, c.before)
	}
	require.NoError(t, c.run(t.Context(), nil, 0))
}
