package listwatch

import (
	"maps"
	"net/http"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestShardsOfAnyShard checks that every shard and the front-proxy serve all Shards to administrators, and to no other user.
func TestShardsOfAnyShard(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	ctx := t.Context()
	servers := maps.Clone(e.ShardClients)
	servers["front-proxy"] = e.ProxyClient
	for name, f := range servers {
		in := kinds.Shards.In(f.Admin())
		var list *corev1alpha1.ShardList
		e.Eventually(name+" serves both Shards", func() bool {
			var err error
			list, err = in.List(ctx, metav1.ListOptions{})
			return err == nil && len(list.Items) == 2
		})
		require.Equal(t, []string{"root", "shard-1"}, []string{list.Items[0].Name, list.Items[1].Name})
		one := harness.Get(t, in, "shard-1")
		require.NotEmpty(t, one.Spec.BaseURL)
		_, err := in.Get(ctx, "none", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), err)
		require.Len(t, harness.List(t, in, metav1.ListOptions{LabelSelector: "name=shard-1"}).Items, 1)
		require.Len(t, harness.List(t, in, metav1.ListOptions{FieldSelector: "metadata.name=root"}).Items, 1)

		_, err = in.Create(ctx, one, metav1.CreateOptions{})
		require.True(t, apierrors.IsMethodNotSupported(err), err)
		require.True(t, apierrors.IsMethodNotSupported(in.Delete(ctx, "shard-1", metav1.DeleteOptions{})), "read only")
		_, err = kinds.Workspaces.In(f.Admin()).List(ctx, metav1.ListOptions{})
		require.True(t, apierrors.IsNotFound(err), err)
		resources, err := f.Admin().Resources(ctx, corev1alpha1.SchemeGroupVersion)
		require.NoError(t, err)
		require.NotEmpty(t, resources.APIResources)
		for _, other := range resources.APIResources {
			require.Contains(t, other.Name, "shards")
		}

		// If the URL has no logical cluster, the path must not specify one.
		for path, want := range map[string]int{"/healthz": 404, "/metrics": 501, "/clusters/root/api/v1/namespaces": 404, "/api/v1/namespaces": 404, "/apis/core.kcp.io/v1alpha1/shards/root/status": 404} {
			require.Equal(t, want, getStatus(e, f, f.Admin().Config(), path), path)
		}
	}
	watchesShards(e, e.ShardClients["shard-1"])
	watchesShards(e, e.ProxyClient)

	for _, tc := range []struct {
		as   rest.ImpersonationConfig
		want int
	}{
		{rest.ImpersonationConfig{UserName: "x", Groups: []string{"system:kcp:admin"}}, http.StatusOK},
		{rest.ImpersonationConfig{UserName: "x", Groups: []string{"system:kcp:admin"}, Extra: map[string][]string{"authentication.kcp.io/scopes": {"cluster:elsewhere"}}}, http.StatusForbidden},
		{rest.ImpersonationConfig{UserName: "x", Groups: []string{"team"}}, http.StatusForbidden},
		{rest.ImpersonationConfig{UserName: "system:anonymous"}, http.StatusForbidden},
	} {
		config := e.Shard(1)
		config.Impersonate = tc.as
		as := harness.NewFactory(t, config)
		require.Equal(t, tc.want, getStatus(e, as, as.Admin().Config(), "/apis/core.kcp.io/v1alpha1/shards"), tc.as)
		require.Equal(t, tc.want, getStatus(e, as, as.Admin().Config(), "/apis"), tc.as)
	}
	for _, path := range []string{"", "/apis", "/healthz", "/version", "/openapi/v3"} {
		for _, config := range []*rest.Config{e.Shard(1), e.Proxy()} {
			anonymous := harness.NewFactory(t, rest.AnonymousClientConfig(config))
			require.Contains(t, []int{http.StatusUnauthorized, http.StatusForbidden}, getStatus(e, anonymous, anonymous.Admin().Config(), path), path)
		}
	}
}

// getStatus returns the status code of a GET.
func getStatus(e *kit.Env, f *client.Factory, config *rest.Config, path string) int {
	e.T.Helper()
	r, err := http.NewRequestWithContext(e.T.Context(), http.MethodGet, config.Host+path, http.NoBody)
	require.NoError(e.T, err)
	response, err := f.HTTPClient().Do(r)
	require.NoError(e.T, err)
	require.NoError(e.T, response.Body.Close())
	return response.StatusCode
}

// watchesShards watches the Shards on a server, from a version and with initial events, while one changes in root.
func watchesShards(e *kit.Env, f *client.Factory) {
	e.T.Helper()
	ctx := e.T.Context()
	in := kinds.Shards.In(f.Admin())
	var list *corev1alpha1.ShardList
	var err error
	e.Eventually("an earlier change is reverted", func() bool {
		list, err = in.List(ctx, metav1.ListOptions{LabelSelector: "!changed-by-test"})
		return err == nil && len(list.Items) == 2
	})
	_, err = in.Watch(ctx, metav1.ListOptions{ResourceVersion: "1"})
	require.True(e.T, apierrors.IsResourceExpired(err), err)
	everything := true
	from, err := in.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	require.NoError(e.T, err)
	defer from.Stop()
	initial, err := in.Watch(ctx, metav1.ListOptions{
		SendInitialEvents: &everything, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, LabelSelector: "!changed-by-test",
	})
	require.NoError(e.T, err)
	defer initial.Stop()
	for _, want := range []watch.EventType{watch.Added, watch.Added, watch.Bookmark} {
		require.Equal(e.T, want, (<-initial.ResultChan()).Type)
	}
	untyped, err := e.ShardClients["root"].Cluster(kit.Path("root")).Dynamic()
	require.NoError(e.T, err)
	change := func(patch string) *unstructured.Unstructured {
		obj, err := untyped.Resource(kinds.Shards.GroupVersionResource).Patch(ctx, "shard-1", kit.MergePatch, []byte(patch), metav1.PatchOptions{})
		require.NoError(e.T, err)
		return obj
	}
	defer change(`{"metadata":{"labels":{"changed-by-test":null}}}`)
	change(`{"metadata":{"labels":{"changed-by-test":"yes"}}}`)
	for event := range from.ResultChan() {
		obj, ok := event.Object.(*corev1alpha1.Shard)
		require.True(e.T, ok, event)
		require.Equal(e.T, watch.Modified, event.Type)
		if obj.Labels["changed-by-test"] == "yes" {
			break
		}
	}
	for event := range initial.ResultChan() {
		if event.Type == watch.Deleted { // not selected any more
			break
		}
	}
}
