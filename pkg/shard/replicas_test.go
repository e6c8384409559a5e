package shard_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/shard"
	"github.com/shardplane/shardplane/test/harness"
)

// testTimeout is how long a test waits for what must come.
const testTimeout = 60 * time.Second

// replica is one of several processes of a shard.
type replica struct {
	t      *testing.T
	config *rest.Config
	stop   func()
}

func startReplica(t *testing.T, etcd string) *replica {
	t.Helper()
	o := options(t)
	o.Etcd.Servers = []string{etcd}
	s, err := shard.New(t.Context(), o.Complete())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	r := &replica{t: t, config: s.Loopback(), stop: sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})}
	t.Cleanup(r.stop)
	r.await("the replica is ready", func(ctx context.Context) error {
		c, err := kubernetes.NewForConfig(r.config)
		if err != nil {
			return err
		}
		return c.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	return r
}

func (r *replica) await(what string, check func(ctx context.Context) error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), testTimeout)
	defer cancel()
	for err := check(ctx); err != nil; err = check(ctx) {
		select {
		case <-ctx.Done():
			require.FailNow(r.t, "waited in vain: "+what, err.Error())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (r *replica) workspaces() *client.Client[*tenancyv1alpha1.Workspace, *tenancyv1alpha1.WorkspaceList] {
	r.t.Helper()
	factory, err := client.NewFactory(r.config)
	require.NoError(r.t, err)
	r.t.Cleanup(factory.CloseIdleConnections)
	return client.Workspaces.In(factory.Cluster(logicalcluster.NewPath("root")))
}

// serves has a replica create a workspace, for which some replica must lead.
func (r *replica) serves(name string) {
	r.t.Helper()
	workspaces := r.workspaces()
	_, err := workspaces.Create(r.t.Context(), &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(r.t, err)
	r.await("workspace "+name+" is Ready", func(ctx context.Context) error {
		ws, err := workspaces.Get(ctx, name, metav1.GetOptions{})
		if err == nil && ws.Status.Phase != corev1alpha1.LogicalClusterPhaseReady {
			err = fmt.Errorf("phase %q", ws.Status.Phase)
		}
		return err
	})
}

// cluster reaches a logical cluster.
func (r *replica) cluster(name string) *kubernetes.Clientset {
	r.t.Helper()
	config := rest.CopyConfig(r.config)
	config.Host += "/clusters/" + name
	c, err := kubernetes.NewForConfig(config)
	require.NoError(r.t, err)
	return c
}

func (r *replica) leader() string {
	r.t.Helper()
	lease, err := r.cluster("system:admin").CoordinationV1().Leases("default").Get(r.t.Context(), "shard-controllers", metav1.GetOptions{})
	require.NoError(r.t, err)
	require.NotNil(r.t, lease.Spec.HolderIdentity)
	return *lease.Spec.HolderIdentity
}

// TestReplicas runs two processes on one etcd: both serve, one of them leads,
// and whichever stops, the other goes on where it was.
func TestReplicas(t *testing.T) {
	etcd := harness.Etcd(t, transport.TLSInfo{})
	one := startReplica(t, etcd)
	one.serves("before")
	first := one.leader()
	two := startReplica(t, etcd)
	two.serves("with-two")
	require.Equal(t, first, two.leader(), "the second does not take over from the first")

	inOne, inTwo := one.cluster("root").CoreV1().ConfigMaps("default"), two.cluster("root").CoreV1().ConfigMaps("default")
	for n := range 5 {
		_, err := inOne.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", n)}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	page, err := inOne.List(t.Context(), metav1.ListOptions{Limit: 2})
	require.NoError(t, err)
	rest, err := inTwo.List(t.Context(), metav1.ListOptions{Limit: 500, Continue: page.Continue})
	require.NoError(t, err)
	require.Equal(t, page.ResourceVersion, rest.ResourceVersion)
	require.Len(t, rest.Items, 3, "a token of one replica is good at the other")

	one.stop()
	two.serves("after")
	require.NotEqual(t, first, two.leader())
	require.NoError(t, inTwo.Delete(t.Context(), "c0", metav1.DeleteOptions{}))
	w, err := inTwo.Watch(t.Context(), metav1.ListOptions{ResourceVersion: page.ResourceVersion})
	require.NoError(t, err)
	defer w.Stop()
	event := <-w.ResultChan()
	require.Equal(t, "DELETED", string(event.Type), "a watch that one replica has ended goes on at the other")
}
