package client_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/documents"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

func TestKeys(t *testing.T) {
	for text, want := range map[string]client.Key{
		"root|name":                {Cluster: "root", Name: "name"},
		"root|ns/name":             {Cluster: "root", Namespace: "ns", Name: "name"},
		"shard|root|ns/name":       {Shard: "shard", Cluster: "root", Namespace: "ns", Name: "name"},
		"system:admin|system:node": {Cluster: "system:admin", Name: "system:node"},
	} {
		got, err := client.SplitKey(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
		require.Equal(t, text, got.String())
	}
	for _, text := range []string{"", "name", "ns/name", "|name", "root|", "root|/name", "root|ns/", "root|a/b/c", "|root|name", "a|b|c|d"} {
		_, err := client.SplitKey(text)
		require.ErrorContains(t, err, "want [shard|]cluster|[namespace/]name", text)
	}
}

func TestURLs(t *testing.T) {
	requests := make(chan *http.Request, 1)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- r
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":404}`))
	}))
	t.Cleanup(server.Close)
	factory := newFactory(t, &rest.Config{Host: server.URL + "/clusters/root:other", TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	require.Equal(t, server.URL, factory.Host())
	for want, call := range map[string]func(context.Context){
		"/clusters/root:a/apis/tenancy.kcp.io/v1alpha1/workspaces/x": func(ctx context.Context) {
			_, _ = kinds.Workspaces.In(factory.Cluster(logicalcluster.NewPath("root:a"))).Get(ctx, "x", metav1.GetOptions{})
		},
		"/clusters/*/api/v1/configmaps": func(ctx context.Context) {
			_, _ = kinds.ConfigMaps.In(factory.Wildcard()).List(ctx, metav1.ListOptions{})
		},
		"/clusters/abc/api/v1/namespaces/ns/configmaps": func(ctx context.Context) {
			_, _ = kinds.ConfigMaps.InNamespace(factory.Cluster(logicalcluster.NewPath("abc")), "ns").List(ctx, metav1.ListOptions{})
		},
		"/services/cache/shards/*/clusters/*/apis/core.kcp.io/v1alpha1/shards": func(ctx context.Context) {
			_, _ = kinds.Shards.In(factory.Shard("*").Wildcard()).List(ctx, metav1.ListOptions{})
		},
		"/clusters/a%2F%2E%2E%2F%25%3Fb/apis/core.kcp.io/v1alpha1/shards/x": func(ctx context.Context) {
			_, _ = kinds.Shards.In(factory.Cluster(logicalcluster.NewPath("a/../%?b"))).Get(ctx, "x", metav1.GetOptions{})
		},
		"/clusters/%2A/api/v1/secrets": func(ctx context.Context) {
			_, _ = kinds.Secrets.In(factory.Cluster(logicalcluster.NewPath("*"))).List(ctx, metav1.ListOptions{})
		},
		"/clusters/%2E%2E/api/v1/secrets": func(ctx context.Context) {
			_, _ = kinds.Secrets.In(factory.Cluster(logicalcluster.NewPath(".."))).List(ctx, metav1.ListOptions{})
		},
		"/clusters/abc/apis/x.io/v1/things": func(ctx context.Context) {
			c, err := factory.Cluster(logicalcluster.NewPath("abc")).Dynamic()
			require.NoError(t, err)
			things := schema.GroupVersionResource{Group: "x.io", Version: "v1", Resource: "things"}
			_, _ = c.Resource(things).List(ctx, metav1.ListOptions{})
		},
		"/clusters/abc/apis/x.io/v1": func(ctx context.Context) {
			_, _ = factory.Cluster(logicalcluster.NewPath("abc")).Resources(ctx, schema.GroupVersion{Group: "x.io", Version: "v1"})
		},
		"/clusters/abc/api/v2": func(ctx context.Context) {
			_, _ = factory.Cluster(logicalcluster.NewPath("abc")).Resources(ctx, schema.GroupVersion{Version: "v2"})
		},
		"/clusters/abc/version": func(context.Context) {
			c, err := documents.Of(factory.Cluster(logicalcluster.NewPath("abc")))
			require.NoError(t, err)
			_, _ = c.ServerVersion()
		},
	} {
		call(t.Context())
		require.Equal(t, want, (<-requests).URL.Path)
	}
}

// TestURLsOfCaches: the server of a kubeconfig may be any URL of a cache server's API.
func TestURLsOfCaches(t *testing.T) {
	for _, server := range []string{
		"https://cache:8012", "https://cache:8012/", "https://cache:8012/services/cache", "https://cache:8012/services/cache/",
		"https://cache:8012/services/cache/shards/*", "https://cache:8012/services/cache/shards/*/clusters/*", "https://cache:8012/services/cache/shards/one/clusters/root",
	} {
		factory := newFactory(t, &rest.Config{Host: server})
		require.Equal(t, "https://cache:8012/services/cache/shards/two", factory.Shard("two").Host(), server)
	}
	factory := newFactory(t, &rest.Config{Host: "https://proxy/prefix/services/cache/shards/*/clusters/*"})
	require.Equal(t, "https://proxy/prefix/services/cache/shards/two", factory.Shard("two").Host())
}

func TestNewFactoryErrors(t *testing.T) {
	_, err := client.NewFactory(&rest.Config{Host: "https://%zz"})
	require.ErrorContains(t, err, "invalid server")
	_, err = client.NewFactory(&rest.Config{Host: "https://h", TLSClientConfig: rest.TLSClientConfig{CAFile: "/does/not/exist"}})
	require.ErrorContains(t, err, "check the certificates")
}

func TestSelectorsReachTheServer(t *testing.T) {
	queries := make(chan url.Values, 10)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case queries <- r.URL.Query():
		default:
		}
		http.Error(w, "unavailable", http.StatusServiceUnavailable)
	}))
	t.Cleanup(server.Close)
	factory := newFactory(t, &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	const half = "shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')"
	ranges, err := client.ParseRanges(half)
	require.NoError(t, err)
	for _, disable := range []bool{false, true} {
		informer := kinds.Workspaces.Informer(factory.Wildcard(), client.InformerOptions[*tenancyv1alpha1.Workspace]{
			LabelSelector: "a=b", FieldSelector: "metadata.name=x", Ranges: ranges, DisableWatchList: disable,
		})
		stop := run(t, informer)
		query := <-queries
		require.Equal(t, half, query.Get("shardSelector"))
		require.Equal(t, "a=b", query.Get("labelSelector"))
		require.Equal(t, "metadata.name=x", query.Get("fieldSelector"))
		if disable {
			require.Equal(t, "500", query.Get("limit"))
			require.Empty(t, query.Get("watch"))
		} else {
			require.Equal(t, "true", query.Get("sendInitialEvents"))
			require.Equal(t, "NotOlderThan", query.Get("resourceVersionMatch"))
			require.Equal(t, "true", query.Get("allowWatchBookmarks"))
		}
		require.False(t, informer.HasSynced())
		stop()
		for len(queries) > 0 {
			<-queries
		}
	}
}
