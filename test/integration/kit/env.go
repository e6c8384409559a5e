package kit

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
)

// Timeout is how long a test waits for a state.
const Timeout = time.Minute

// Env is a running cluster with clients of all its parts.
type Env struct {
	*harness.Cluster

	// T is the test that uses the cluster.
	T            *testing.T
	ProxyClient  *client.Factory
	CacheClient  *client.Factory
	ShardClients map[string]*client.Factory
}

// NewEnv returns an Env of a running cluster.
func NewEnv(t *testing.T, c *harness.Cluster) *Env {
	t.Helper()
	e := &Env{Cluster: c, T: t, ProxyClient: harness.NewFactory(t, c.Proxy()), CacheClient: harness.NewFactory(t, c.Cache()), ShardClients: map[string]*client.Factory{}}
	shards, err := filepath.Glob(filepath.Join(c.Dir, ".kcp-[0-9]", "admin.kubeconfig"))
	require.NoError(t, err)
	for n := range shards {
		e.ShardClients[harness.ShardName(n)] = harness.NewFactory(t, c.Shard(n))
	}
	return e
}

// sharedCluster is shared by the tests of a package.
var sharedCluster = harness.Shared{Options: harness.Options{Shards: 2, DevTokens: true, ExtraArgs: map[string][]string{
	// On a busy machine a watch may lag by more than the default of the front-proxy.
	"front-proxy": {"--index-timeout=2s"},
}}}

// Shared returns the cluster that the tests of a package share. Each test creates its own workspaces, and must not stop servers.
func Shared(t *testing.T) *Env {
	t.Helper()
	configureShared(t)
	return NewEnv(t, sharedCluster.Get(t))
}

// SharedUnchanged is Shared for a test that leaves objects in root or in home workspaces. The test is skipped in an
// external cluster, because it would find the objects of the previous run.
func SharedUnchanged(t *testing.T) *Env {
	t.Helper()
	e := Shared(t)
	if e.External {
		t.Skip("the test leaves objects in root or in home workspaces: run it without CLUSTER")
	}
	return e
}

// ForTest returns an Env with methods that fail t if an error occurs.
func (e *Env) ForTest(t *testing.T) *Env {
	t.Helper()
	same := *e
	same.T = t
	return &same
}

// RunParallel runs a subtest in parallel with the other subtests.
func (e *Env) RunParallel(name string, f func(t *testing.T, e *Env)) {
	e.T.Run(name, func(t *testing.T) {
		t.Parallel()
		f(t, e.ForTest(t))
	})
}

// Start starts a cluster for one test.
func Start(t *testing.T, o harness.Options) *Env {
	t.Helper()
	return NewEnv(t, harness.Start(t, o))
}

// Path parses a workspace path.
func Path(p string) logicalcluster.Path { return logicalcluster.NewPath(p) }

// Eventually waits until condition returns true. The condition runs on the goroutine of the test and may fail it.
func (e *Env) Eventually(what string, condition func() bool) {
	e.T.Helper()
	require.NoError(e.T, e.poll(condition), "timeout, expected: "+what)
}

func (e *Env) poll(condition func() bool) error {
	return wait.PollUntilContextTimeout(e.T.Context(), 10*time.Millisecond, Timeout, true, func(context.Context) (bool, error) { return condition(), nil })
}

// EventuallyEqual waits until get returns want, and fails the test with the difference otherwise. The function runs on the
// goroutine of the test and may fail it.
func EventuallyEqual[T any](e *Env, want T, get func() T, format string, args ...any) {
	e.T.Helper()
	var got T
	if e.poll(func() bool { got = get(); return assert.ObjectsAreEqual(want, got) }) != nil {
		require.Equal(e.T, want, got, append([]any{format}, args...)...)
	}
}

// Workspace creates a workspace below parent, on any shard, and waits until it is Ready.
func (e *Env) Workspace(parent, name string) *tenancyv1alpha1.Workspace {
	e.T.Helper()
	return e.WorkspaceOn(parent, name, "")
}

// WorkspaceOn is Workspace on the named shard.
func (e *Env) WorkspaceOn(parent, name, shard string) *tenancyv1alpha1.Workspace {
	e.T.Helper()
	e.NewWorkspace(parent, name, shard)
	in := kinds.Workspaces.In(e.ProxyClient.Cluster(Path(parent)))
	var ws *tenancyv1alpha1.Workspace
	e.Eventually("workspace "+parent+":"+name+" becomes Ready", func() bool {
		ws = harness.Get(e.T, in, name)
		return ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
	})
	return ws
}

// NewWorkspace creates a workspace below parent, on the named shard or, if shard is "", on any. It does not wait.
func (e *Env) NewWorkspace(parent, name, shard string) {
	e.T.Helper()
	ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if shard != "" {
		ws.Spec.Location = &tenancyv1alpha1.WorkspaceLocation{Selector: &metav1.LabelSelector{MatchLabels: labels.Set{"name": shard}}}
	}
	if e.External && parent == "root" { // others are deleted with their parents
		e.deleteWorkspace(e.T.Context(), name) // created by an interrupted run
		e.T.Cleanup(func() { e.deleteWorkspace(context.WithoutCancel(e.T.Context()), name) })
	}
	harness.Create(e.T, kinds.Workspaces.In(e.ProxyClient.Cluster(Path(parent))), ws)
}

// deleteWorkspace deletes a workspace below root, if it exists, and waits for the end of the deletion.
func (e *Env) deleteWorkspace(ctx context.Context, name string) {
	e.T.Helper()
	in := kinds.Workspaces.In(harness.NewFactory(e.T, e.Proxy()).Cluster(Path("root")))
	if err := in.Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
		require.NoError(e.T, err)
	}
	config := rest.CopyConfig(e.Proxy())
	config.Host += "/clusters/root:" + name
	require.NoError(e.T, wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, Timeout, true, func(ctx context.Context) (bool, error) {
		_, err := in.Get(ctx, name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			removeFinalizers(ctx, config)
		}
		return apierrors.IsNotFound(err), nil
	}), "the workspace root:%s was not deleted", name)
}

// removeFinalizers removes the finalizers of tests, which start with "example.", from objects that are being deleted. It
// ignores errors, because the caller retries.
func removeFinalizers(ctx context.Context, config *rest.Config) {
	kinds, _ := discovery.NewDiscoveryClientForConfigOrDie(config).ServerPreferredResources()
	clients := dynamic.NewForConfigOrDie(config)
	for _, kind := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "patch"}}, kinds) {
		version, _ := schema.ParseGroupVersion(kind.GroupVersion)
		for i := range kind.APIResources {
			of := clients.Resource(version.WithResource(kind.APIResources[i].Name))
			all, err := of.List(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			for _, item := range all.Items {
				if finalizers := item.GetFinalizers(); item.GetDeletionTimestamp() != nil && len(finalizers) > 0 && strings.HasPrefix(finalizers[0], "example.") {
					_, _ = of.Namespace(item.GetNamespace()).Patch(ctx, item.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				}
			}
		}
	}
}

// Placement returns the name of the shard of a logical cluster.
func (e *Env) Placement(cluster string) string {
	e.T.Helper()
	for name, f := range e.ShardClients {
		if _, err := kinds.LogicalClusters.In(f.Cluster(Path(cluster))).Get(e.T.Context(), corev1alpha1.LogicalClusterName, metav1.GetOptions{}); err == nil {
			return name
		}
	}
	e.T.Fatalf("no shard has logical cluster %s", cluster)
	return ""
}

// DynamicClient returns a dynamic client of one logical cluster.
func DynamicClient(t *testing.T, f *client.Factory, cluster string) dynamic.Interface {
	t.Helper()
	d, err := f.Cluster(logicalcluster.NewPath(cluster)).Dynamic()
	require.NoError(t, err)
	return d
}
