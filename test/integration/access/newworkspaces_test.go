package access

import (
	"fmt"
	"net/http"
	"net/http/httptrace"
	"path/filepath"
	"testing"
	"time"

	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// makerOf returns a client of user-1 for a new workspace, in which it may create workspaces.
func makerOf(t *testing.T, e *kit.Env, name string) kit.WorkspaceClient {
	t.Helper()
	maker := kit.NewWorkspaceClient(e, name).ForTest(t).BindAdmin("user-1")
	maker.Config = kit.WithToken(e.Proxy(), "user-1-token")
	maker.UntilCode(http.StatusOK, http.MethodGet, kit.TenancyPath+"workspaces", "")
	return maker
}

// withoutRetries returns a client that does not retry.
func withoutRetries(t *testing.T, config *rest.Config) *client.Factory {
	t.Helper()
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			res, err := next.RoundTrip(r)
			if err == nil {
				res.Header.Del("Retry-After")
			}
			return res, err
		})
	})
	return harness.NewFactory(t, config)
}

// TestCreateThenUse checks that the creator of a workspace can use it immediately, and that other users get no information about it.
func TestCreateThenUse(t *testing.T) {
	t.Parallel()
	maker := makerOf(t, kit.Shared(t), "makers")
	maker.RunParallel("owner", func(t *testing.T, _ *kit.Env) { testUseAtOnce(t, maker.ForTest(t)) })
	maker.RunParallel("initializer", func(t *testing.T, _ *kit.Env) { testUseInitializing(t, maker.ForTest(t)) })
	maker.RunParallel("never ready", func(t *testing.T, _ *kit.Env) { testUseUnschedulable(t, maker.ForTest(t)) })
}

// TestCreateThenUseOfReplicas is TestCreateThenUse with requests that are handled by different replicas of a shard.
func TestCreateThenUseOfReplicas(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: starts a cluster with replicas")
	}
	t.Parallel()
	// A private cluster, because shards have replicas.
	testUseAtOnce(t, makerOf(t, kit.Start(t, harness.Options{Shards: 2, Replicas: 2, DevTokens: true, ExtraArgs: map[string][]string{"front-proxy": {"--index-timeout=2s"}}}), "makers"))
}

func testUseAtOnce(t *testing.T, maker kit.WorkspaceClient) {
	owner, stranger := withoutRetries(t, maker.Config), kit.WithToken(maker.Config, "user-2-token")
	for n := range 6 {
		name := fmt.Sprintf("at-once-%d", n)
		shard := []string{"root", "shard-1"}[n%2]
		harness.Create(t, kinds.Workspaces.In(owner.Cluster(kit.Path("root:makers"))), &tenancyv1alpha1.Workspace{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       tenancyv1alpha1.WorkspaceSpec{Location: &tenancyv1alpha1.WorkspaceLocation{Selector: &metav1.LabelSelector{MatchLabels: labels.Set{"name": shard}}}},
		})
		if n%3 == 0 {
			got := kit.RequireStatus(t, stranger, kit.Request{Path: "/clusters/root:makers:" + name + "/api/v1/configmaps"}, http.StatusForbidden)
			unknown := kit.RequireStatus(t, stranger, kit.Request{Path: "/clusters/root:makers:no-such/api/v1/configmaps"}, http.StatusForbidden)
			require.Equal(t, unknown, got)
		}
		in := kinds.ConfigMaps.InNamespace(owner.Cluster(kit.Path("root:makers:"+name)), "default")
		_, err := in.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "first"}}, metav1.CreateOptions{})
		require.NoError(t, err, "number %d", n)
		harness.Get(t, in, "first")
	}
}

// testUseInitializing checks that requests of the owner wait while an initializer is running, in the front-proxy and in the shard.
func testUseInitializing(t *testing.T, maker kit.WorkspaceClient) {
	admin := maker.As("admin-token")
	admin.Create(kit.TenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"apps"},"spec":{"extend":{"with":[{"name":"universal","path":"root"}]},"initializer":true}}`)
	atShard := maker
	atShard.Config = kit.WithToken(maker.Shard(0), "user-1-token")
	made := atShard.CreateWorkspaceOfType("slow", "apps", 0)
	got := kit.RequireStatus(t, kit.WithToken(made.Config, "user-2-token"), kit.Request{Path: "/clusters/" + made.ClusterName + "/api/v1/configmaps"}, http.StatusForbidden)
	require.Contains(t, got.Message, "workspace access not permitted")
	made.As("admin-token").RequireCode(http.StatusOK, http.MethodGet, kit.ConfigMapsPath, "")

	forwarded := forwardedConfig(made, "user-1")
	soon := kit.Request{Path: "/clusters/" + made.ClusterName + kit.ConfigMapsPath, Header: http.Header{"X-Kcp-Internal-Ready-Timeout": {"10ms"}}}
	made.Eventually("the shard has observed the logical cluster", func() bool {
		code, _ := kit.Do(t, forwarded, soon)
		return code == http.StatusServiceUnavailable
	})
	status := kit.RequireStatus(t, forwarded, soon, http.StatusServiceUnavailable)
	require.EqualValues(t, 1, status.Details.RetryAfterSeconds)

	codes, sent := make(chan int, 2), make(chan struct{}, 10)
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { sent <- struct{}{} }})
	for _, c := range []struct {
		config *rest.Config
		path   string
	}{{maker.Config, "root:makers:slow"}, {made.Config, made.ClusterName}} {
		go func() {
			code, _, err := kit.Send(ctx, kit.WithToken(c.config, "user-1-token"), kit.Request{
				Method: http.MethodPost, Path: "/clusters/" + c.path + kit.ConfigMapsPath, Body: `{"metadata":{"generateName":"x-"}}`,
				// Only front-proxies may specify the timeout.
				Header: http.Header{"Content-Type": {"application/json"}, "X-Kcp-Internal-Ready-Timeout": {"10ms"}},
			})
			if err != nil {
				code = -1
			}
			codes <- code
		}()
	}
	<-sent
	<-sent
	// A later request does not delay them.
	kit.RequireStatus(t, forwarded, kit.Request{Path: soon.Path, Header: http.Header{"X-Kcp-Internal-Ready-Timeout": {"1s"}}}, http.StatusServiceUnavailable)
	select {
	case code := <-codes:
		t.Fatalf("the response is %d while the workspace is initialized", code)
	default:
	}
	at := made.As("admin-token")
	at.Patch(kit.LogicalClusterPath+"/status", `{"status":{"initializers":[]}}`)
	require.Equal(t, []int{http.StatusCreated, http.StatusCreated}, []int{<-codes, <-codes})
}

// forwardedConfig returns the credentials of a front-proxy that forwards requests of a user.
func forwardedConfig(k kit.WorkspaceClient, user string) *rest.Config {
	k.T.Helper()
	ca, err := pki.NewStore(filepath.Join(k.Dir, ".kcp"), time.Now).Authority("requestheader-ca")
	require.NoError(k.T, err)
	pair, err := pki.NewStore(k.T.TempDir(), time.Now).Certificate("front-proxy", ca, pki.Client("front-proxy"))
	require.NoError(k.T, err)
	config := kit.WithClientCert(k.Config, pair)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return transport.NewAuthProxyRoundTripper(user, "", []string{"system:authenticated"}, nil, next)
	})
	return config
}

// testUseUnschedulable checks that the owner of an unschedulable workspace gets an error that should be retried.
func testUseUnschedulable(t *testing.T, maker kit.WorkspaceClient) {
	maker.Create(kit.TenancyPath+"workspaces", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"nowhere"},"spec":{"location":{"selector":{"matchLabels":{"name":"no-such-shard"}}}}}`)
	start := time.Now()
	status := kit.RequireStatus(t, maker.Config, kit.Request{Path: "/clusters/root:makers:nowhere" + kit.ConfigMapsPath}, http.StatusServiceUnavailable)
	require.EqualValues(t, 1, status.Details.RetryAfterSeconds)
	require.Contains(t, status.Message, "not ready")
	require.GreaterOrEqual(t, time.Since(start), 9*time.Second)
	kit.RequireStatus(t, kit.WithToken(maker.Config, "user-2-token"), kit.Request{Path: "/clusters/root:makers:nowhere" + kit.ConfigMapsPath}, http.StatusForbidden)
	maker.Delete(kit.TenancyPath + "workspaces/nowhere")
}
