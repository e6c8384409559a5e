package integration

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
)

const (
	mergePatch = types.MergePatchType

	// testTimeout is how long a test waits for what must come.
	testTimeout = time.Minute
)

// env is a running cluster with clients of all its parts.
type env struct {
	*harness.Cluster

	t      *testing.T
	proxy  *client.Factory
	cache  *client.Factory
	shards map[string]*client.Factory
}

func newEnv(t *testing.T, c *harness.Cluster) *env {
	t.Helper()
	e := &env{Cluster: c, t: t, proxy: factory(t, c.Proxy()), cache: factory(t, c.Cache()), shards: map[string]*client.Factory{}}
	list, err := kinds.Shards.In(e.proxy.Cluster(path("root"))).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, s := range list.Items {
		n := 0
		if s.Name != "root" {
			n = int(s.Name[len("shard-")] - '0')
		}
		e.shards[s.Name] = factory(t, c.Shard(n))
	}
	return e
}

func factory(t *testing.T, config *rest.Config) *client.Factory {
	t.Helper()
	f, err := client.NewFactory(config)
	require.NoError(t, err)
	t.Cleanup(f.CloseIdleConnections)
	return f
}

// two is the cluster of tests that need no flags of their own, and stop nothing.
// Each has workspaces with names of its own.
var two = harness.Shared{Options: harness.Options{Shards: 2, DevTokens: true}}

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

func start(t *testing.T, o harness.Options) *env {
	t.Helper()
	return newEnv(t, harness.Start(t, o))
}

func path(p string) logicalcluster.Path { return logicalcluster.NewPath(p) }

func (e *env) eventually(what string, condition func() bool) {
	e.t.Helper()
	// On the test's own goroutine, which a condition may fail.
	err := wait.PollUntilContextTimeout(e.t.Context(), 10*time.Millisecond, testTimeout, true, func(context.Context) (bool, error) { return condition(), nil })
	require.NoError(e.t, err, what)
}

// workspace creates a workspace below parent, on any shard, and waits until it
// is Ready and the front-proxy knows it.
func (e *env) workspace(parent, name string) *tenancyv1alpha1.Workspace {
	e.t.Helper()
	return e.workspaceOn(parent, name, "")
}

// workspaceOn is workspace on the named shard.
func (e *env) workspaceOn(parent, name, shard string) *tenancyv1alpha1.Workspace {
	e.t.Helper()
	e.newWorkspace(parent, name, shard)
	in := kinds.Workspaces.In(e.proxy.Cluster(path(parent)))
	var ws *tenancyv1alpha1.Workspace
	e.eventually("workspace "+parent+":"+name+" becomes Ready", func() bool {
		var err error
		ws, err = in.Get(e.t.Context(), name, metav1.GetOptions{})
		require.NoError(e.t, err)
		return ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
	})
	return ws
}

// newWorkspace creates a workspace below parent, for the named shard or for any.
func (e *env) newWorkspace(parent, name, shard string) {
	e.t.Helper()
	ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if shard != "" {
		ws.Spec.Location = &tenancyv1alpha1.WorkspaceLocation{Selector: &metav1.LabelSelector{MatchLabels: labels.Set{"name": shard}}}
	}
	in := kinds.Workspaces.In(e.proxy.Cluster(path(parent)))
	if e.External {
		e.deleteWorkspace(e.t.Context(), parent, name) // of a run that was interrupted
		e.t.Cleanup(func() { e.deleteWorkspace(context.WithoutCancel(e.t.Context()), parent, name) })
	}
	_, err := in.Create(e.t.Context(), ws, metav1.CreateOptions{})
	require.NoError(e.t, err)
}

// deleteWorkspace deletes a workspace, if there is one, and waits until it is gone.
func (e *env) deleteWorkspace(ctx context.Context, parent, name string) {
	e.t.Helper()
	in := kinds.Workspaces.In(e.proxy.Cluster(path(parent)))
	if err := in.Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		require.NoError(e.t, err)
	}
	require.NoError(e.t, wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, testTimeout, true, func(ctx context.Context) (bool, error) {
		_, err := in.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	}), "workspace %s:%s is deleted", parent, name)
}

// placement returns the name of the shard that holds a logical cluster.
func (e *env) placement(cluster string) string {
	e.t.Helper()
	for name, f := range e.shards {
		_, err := kinds.LogicalClusters.In(f.Cluster(path(cluster))).Get(e.t.Context(), corev1alpha1.LogicalClusterName, metav1.GetOptions{})
		if err == nil {
			return name
		}
	}
	e.t.Fatalf("no shard has logical cluster %s", cluster)
	return ""
}

// shardOf returns the clients of the shard that holds a logical cluster.
func (e *env) shardOf(cluster string) *client.Factory {
	e.t.Helper()
	return e.shards[e.placement(cluster)]
}
