package operations

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestFullEtcd fills an etcd as a tenant and deletes objects. Writes of the tenant must be rejected before etcd rejects all. Then it fills
// etcd with a client that bypasses the shard.
func TestFullEtcd(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: fills a database")
	}
	t.Parallel()
	f := newFilling(t, "--etcd-compaction-interval=0")
	p, direct := f.people, f.etcd
	made := f.fill()
	require.False(t, f.alarmed(), "the tenant's writes must be rejected before etcd is full")
	_, err := f.tenant.CoreV1().ConfigMaps("default").Update(t.Context(), f.configMap(0), metav1.UpdateOptions{})
	require.NoError(t, err, "updates that need no space must succeed")
	_, err = f.tenant.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "small"}}, metav1.CreateOptions{})
	requireFull(t, err)
	_, err = p.With(p.Shard(0), f.cluster).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "of-the-masters"}}, metav1.CreateOptions{})
	require.NoError(t, err, "writes of system:masters must succeed")
	f.empty(0, made)
	requireFull(t, f.create(made), "deleted objects take space until they are compacted")
	f.compact()
	p.Eventually("writes succeed again", func() bool { return f.create(made) == nil })

	var more int64
	for err == nil {
		more++
		require.Less(t, more, int64(200), "etcd has no quota")
		_, err = direct.Put(t.Context(), fmt.Sprint("/other/", more), strings.Repeat("x", 1<<20))
	}
	require.True(t, f.alarmed(), "%v", err)
	p.Eventually("the tenant's writes are rejected", func() bool { return isFull(f.create(made + 1)) })
	f.empty(made, made+1)
	_, err = direct.Delete(t.Context(), "/other/", clientv3.WithPrefix())
	require.NoError(t, err)
	f.compact()
	requireFull(t, f.create(made+1), "etcd refuses writes until its alarm is disarmed")
	_, err = direct.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	require.NoError(t, err)
	p.Eventually("writes succeed again", func() bool { return f.create(made) == nil })
}

// TestFullEtcdCompacts fills an etcd as a tenant that then deletes objects. History must be compacted within seconds, before the regular
// compaction.
func TestFullEtcdCompacts(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: fills a database")
	}
	t.Parallel()
	f := newFilling(t)
	before, err := f.etcd.Get(t.Context(), "/none")
	require.NoError(t, err)
	f.empty(0, f.fill()/2)
	f.people.Eventually("history is compacted", func() bool {
		_, err := f.etcd.Get(t.Context(), "/none", clientv3.WithRev(before.Header.Revision))
		return errors.Is(err, rpctypes.ErrCompacted)
	})
}

// TestFillingEtcd fills an etcd as a tenant. Its writes must be rejected before those of others.
func TestFillingEtcd(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: fills a database")
	}
	t.Parallel()
	f := newFilling(t)
	f.people.Workspace("root", "small")
	f.people.BindUser("root:small", "user-2", "cluster-admin", 2)
	small := f.people.As(2, "root:small").CoreV1().ConfigMaps("default")
	var err error
	for n := 0; err == nil; n++ {
		require.Less(t, n, 1600, "no write was rejected")
		err = f.create(n)
	}
	require.True(t, isFull(err), "%v", err)
	require.ErrorContains(t, err, "root:full with all workspaces below it stores more")
	_, err = small.Create(t.Context(), f.configMap(0), metav1.CreateOptions{})
	require.NoError(t, err, "writes of small workspaces must succeed")
	f.people.Workspace("root", "after")
}

// filling is a tenant of a shard that has an etcd with a small quota.
type filling struct {
	t       *testing.T
	people  kit.People
	etcd    *clientv3.Client
	address string
	cluster string
	tenant  kubernetes.Interface
}

// newFilling starts a shard and its etcd.
func newFilling(t *testing.T, args ...string) *filling {
	t.Helper()
	const quota = 128 << 20 // 4% of it exceed a single write of etcd
	f := &filling{t: t, address: harness.SmallEtcd(t, quota)}
	args = append([]string{"--etcd-servers", f.address, "--logical-cluster-total-bytes-limit=0"}, args...)
	f.people = kit.People{Env: kit.Start(t, harness.Options{DevTokens: true, ExtraArgs: map[string][]string{"shard": args}})}
	f.cluster = f.people.Workspace("root", "full").Spec.Cluster
	f.people.BindUser("root:full", "user-1", "cluster-admin", 1)
	var err error
	f.etcd, err = clientv3.New(clientv3.Config{Endpoints: []string{f.address}, DialTimeout: harness.StartTimeout, Context: t.Context()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.etcd.Close() })
	f.tenant = f.people.As(1, "root:full")
	return f
}

// configMap returns an object that is small enough for a slow etcd, which reports its size late, to stay below its quota.
func (f *filling) configMap(n int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c-", n)}, Data: map[string]string{"text": strings.Repeat("x", 96<<10)}}
}

func (f *filling) create(n int) error {
	_, err := f.tenant.CoreV1().ConfigMaps("default").Create(f.t.Context(), f.configMap(n), metav1.CreateOptions{})
	return err
}

// fill creates objects until a write is rejected, and returns their number.
func (f *filling) fill() int {
	f.t.Helper()
	for n := range 1600 {
		if err := f.create(n); err != nil {
			requireFull(f.t, err)
			return n
		}
	}
	f.t.Fatal("no write was rejected")
	return 0
}

// empty deletes objects, which is always possible.
func (f *filling) empty(from, to int) {
	f.t.Helper()
	for n := from; n < to; n++ {
		require.NoError(f.t, f.tenant.CoreV1().ConfigMaps("default").Delete(f.t.Context(), f.configMap(n).Name, metav1.DeleteOptions{}))
	}
}

// compact compacts and defragments etcd, as an administrator would.
func (f *filling) compact() {
	f.t.Helper()
	now, err := f.etcd.Get(f.t.Context(), "/none")
	require.NoError(f.t, err)
	_, err = f.etcd.Compact(f.t.Context(), now.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(f.t, err)
	_, err = f.etcd.Defragment(f.t.Context(), f.address)
	require.NoError(f.t, err)
}

func (f *filling) alarmed() bool {
	f.t.Helper()
	list, err := f.etcd.AlarmList(f.t.Context())
	require.NoError(f.t, err)
	return len(list.Alarms) > 0
}

func isFull(err error) bool {
	status, ok := err.(apierrors.APIStatus)
	return ok && status.Status().Code == http.StatusInsufficientStorage
}

func requireFull(t *testing.T, err error, what ...any) {
	t.Helper()
	require.True(t, isFull(err), "%v: %v", what, err)
	require.ErrorContains(t, err, "the shard is nearly full")
}
