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

// makerOf lets user-1 make workspaces in a new one, which it returns as that user.
func makerOf(t *testing.T, e *kit.Env, name string) kit.WorkspaceClient {
	t.Helper()
	parent := kit.NewWorkspaceClient(e, name).ForTest(t)
	parent.Create(kit.RBACPath+"clusterrolebindings", `{"metadata":{"name":"owner"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	maker := parent.As("user-1-token")
	maker.Config = kit.WithToken(e.Proxy(), "user-1-token")
	maker.Eventually("the user may make workspaces", func() bool {
		code, _ := maker.TryDo(http.MethodGet, kit.TenancyPath+"workspaces", "")
		return code == http.StatusOK
	})
	return maker
}

// strict returns a client that repeats nothing.
func strict(t *testing.T, config *rest.Config) *client.Factory {
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
	return kit.NewFactory(t, config)
}

// TestCreateThenUse: who creates a workspace uses it at once, whatever the system has still
// to do, and others learn as little of it as ever.
func TestCreateThenUse(t *testing.T) {
	t.Parallel()
	maker := makerOf(t, kit.Shared(t), "makers")
	maker.RunParallel("owner", func(t *testing.T, _ *kit.Env) { testUseAtOnce(t, maker.ForTest(t)) })
	maker.RunParallel("initializer", func(t *testing.T, _ *kit.Env) { testUseInitializing(t, maker.ForTest(t)) })
	maker.RunParallel("never ready", func(t *testing.T, _ *kit.Env) { testUseNever(t, maker.ForTest(t)) })
}

// TestCreateThenUseOfReplicas: nor does it matter which replica of a shard answers.
func TestCreateThenUseOfReplicas(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: starts a cluster with replicas")
	}
	t.Parallel()
	// A cluster of its own, because shards have replicas.
	testUseAtOnce(t, makerOf(t, kit.Start(t, harness.Options{Shards: 2, Replicas: 2, DevTokens: true, ExtraArgs: map[string][]string{"front-proxy": {"--index-timeout=2s"}}}), "makers"))
}

func testUseAtOnce(t *testing.T, maker kit.WorkspaceClient) {
	owner, stranger := strict(t, maker.Config), kit.WithToken(maker.Config, "user-2-token")
	for n := range 6 {
		name := fmt.Sprintf("at-once-%d", n)
		shard := []string{"root", "shard-1"}[n%2]
		_, err := kinds.Workspaces.In(owner.Cluster(kit.Path("root:makers"))).Create(t.Context(), &tenancyv1alpha1.Workspace{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       tenancyv1alpha1.WorkspaceSpec{Location: &tenancyv1alpha1.WorkspaceLocation{Selector: &metav1.LabelSelector{MatchLabels: labels.Set{"name": shard}}}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		if n%3 == 0 {
			got := kit.RequireStatus(t, stranger, kit.Request{Path: "/clusters/root:makers:" + name + "/api/v1/configmaps"}, http.StatusForbidden)
			unknown := kit.RequireStatus(t, stranger, kit.Request{Path: "/clusters/root:makers:no-such/api/v1/configmaps"}, http.StatusForbidden)
			require.Equal(t, unknown, got)
		}
		in := kinds.ConfigMaps.InNamespace(owner.Cluster(kit.Path("root:makers:"+name)), "default")
		_, err = in.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "first"}}, metav1.CreateOptions{})
		require.NoError(t, err, "number %d", n)
		_, err = in.Get(t.Context(), "first", metav1.GetOptions{})
		require.NoError(t, err)
	}
}

// testUseInitializing: while somebody else initializes a workspace, its owner waits, at the
// front-proxy and at the shard.
func testUseInitializing(t *testing.T, maker kit.WorkspaceClient) {
	admin := maker.As("admin-token")
	admin.Create(kit.TenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"apps"},"spec":{"extend":{"with":[{"name":"universal","path":"root"}]},"initializer":true}}`)
	inCharge := maker
	inCharge.Config = kit.WithToken(maker.Shard(0), "user-1-token")
	made := inCharge.CreateWorkspaceOfType("slow", "apps", 0)
	got := kit.RequireStatus(t, kit.WithToken(made.Config, "user-2-token"), kit.Request{Path: "/clusters/" + made.ClusterName + "/api/v1/configmaps"}, http.StatusForbidden)
	require.Contains(t, got.Message, "workspace access not permitted")
	code, says := made.As("admin-token").TryDo(http.MethodGet, kit.ConfigMapsPath, "")
	require.Equal(t, http.StatusOK, code, "administrators enter before: %s", says)

	forwarded := forwardedConfig(made, "user-1")
	soon := kit.Request{Path: "/clusters/" + made.ClusterName + kit.ConfigMapsPath, Header: http.Header{"X-Kcp-Internal-Ready-Timeout": {"10ms"}}}
	made.Eventually("the shard has seen the logical cluster", func() bool {
		code, _ := kit.Do(t, forwarded, soon)
		return code == http.StatusServiceUnavailable
	})
	status := kit.RequireStatus(t, forwarded, soon, http.StatusServiceUnavailable)
	require.EqualValues(t, 1, status.Details.RetryAfterSeconds)

	answers, sent := make(chan int, 2), make(chan struct{}, 10)
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { sent <- struct{}{} }})
	for _, c := range []struct {
		config *rest.Config
		path   string
	}{{maker.Config, "root:makers:slow"}, {made.Config, made.ClusterName}} {
		go func() {
			code, _, err := kit.Send(ctx, kit.WithToken(c.config, "user-1-token"), kit.Request{
				Method: http.MethodPost, Path: "/clusters/" + c.path + kit.ConfigMapsPath, Body: `{"metadata":{"generateName":"x-"}}`,
				// Nobody but front-proxies says for how long.
				Header: http.Header{"Content-Type": {"application/json"}, "X-Kcp-Internal-Ready-Timeout": {"10ms"}},
			})
			if err != nil {
				code = -1
			}
			answers <- code
		}()
	}
	<-sent
	<-sent
	// One that comes after them waits for as long as it likes to.
	kit.RequireStatus(t, forwarded, kit.Request{Path: soon.Path, Header: http.Header{"X-Kcp-Internal-Ready-Timeout": {"1s"}}}, http.StatusServiceUnavailable)
	select {
	case code := <-answers:
		t.Fatalf("answered with %d while the workspace is initialized", code)
	default:
	}
	at := made.As("admin-token")
	at.Do(http.StatusOK, http.MethodPatch, kit.LogicalClusterPath+"/status", `{"status":{"initializers":[]}}`)
	require.Equal(t, []int{http.StatusCreated, http.StatusCreated}, []int{<-answers, <-answers})
}

// forwarded is a front-proxy that forwards requests of a user to the server of k.
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

// testUseNever: a workspace that fits nowhere has its owner come again.
func testUseNever(t *testing.T, maker kit.WorkspaceClient) {
	maker.Create(kit.TenancyPath+"workspaces", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"nowhere"},"spec":{"location":{"selector":{"matchLabels":{"name":"no-such-shard"}}}}}`)
	start := time.Now()
	status := kit.RequireStatus(t, maker.Config, kit.Request{Path: "/clusters/root:makers:nowhere" + kit.ConfigMapsPath}, http.StatusServiceUnavailable)
	require.EqualValues(t, 1, status.Details.RetryAfterSeconds)
	require.Contains(t, status.Message, "not ready")
	require.GreaterOrEqual(t, time.Since(start), 9*time.Second)
	kit.RequireStatus(t, kit.WithToken(maker.Config, "user-2-token"), kit.Request{Path: "/clusters/root:makers:nowhere" + kit.ConfigMapsPath}, http.StatusForbidden)
	maker.Do(http.StatusOK, http.MethodDelete, kit.TenancyPath+"workspaces/nowhere", "")
}
