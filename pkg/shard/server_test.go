package shard_test

import (
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/pkg/shard"
	"github.com/shardplane/shardplane/test/background"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/lifecycletest"
	"github.com/shardplane/shardplane/test/logs"
)

func options(t *testing.T) *shard.Options {
	t.Helper()
	dir := t.TempDir()
	store := pki.NewStore(dir, time.Now)
	ca, err := store.Authority("ca")
	require.NoError(t, err)
	server, err := store.Certificate("server", ca, pki.Spec{CommonName: "server", DNSNames: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	require.NoError(t, err)
	admin, err := store.Certificate("admin", ca, pki.Client("admin", "system:masters"))
	require.NoError(t, err)
	o := shard.NewOptions()
	o.Etcd.DataDir = t.TempDir()
	o.Etcd.UnsafeNoFsync = true
	o.Serving.SecurePort = 0
	o.Serving.TLSCertFile, o.Serving.TLSPrivateKeyFile = server.CertFile, server.KeyFile
	o.Authentication.ClientCAFile = ca.CertFile
	o.ShardClientCertFile, o.ShardClientKeyFile, o.ShardCAFile = admin.CertFile, admin.KeyFile, ca.CertFile
	return o
}

func start(t *testing.T, o *shard.Options) *rest.Config {
	t.Helper()
	completed := o.Complete()
	s, err := shard.NewShard(t.Context(), completed)
	require.NoError(t, err)
	t.Cleanup(func() { require.Equal(t, completed, s.Completed(), "completed options must not change") })
	background.Run(t.Context(), t, s.Run)
	return &rest.Config{Host: s.Loopback().Host, QPS: -1, TLSClientConfig: rest.TLSClientConfig{
		CAFile: o.ShardCAFile, CertFile: o.ShardClientCertFile, KeyFile: o.ShardClientKeyFile,
	}}
}

// TestShutdownOrder checks that the informers with which requests are decided run until the last response is sent.
// Otherwise an acknowledged write could have no effect on the next request.
func TestShutdownOrder(t *testing.T) {
	s, err := shard.NewShard(t.Context(), options(t).Complete())
	require.NoError(t, err)
	logger, logged := logs.New(t, ktesting.Verbosity(2))
	stop := background.Run(klog.NewContext(t.Context(), logger), t, s.Run)
	ready := func() bool { return read(t, s.Loopback(), "/readyz") == nil }
	require.Eventually(t, ready, time.Minute, 20*time.Millisecond)
	stop()

	var stopped []string
	for _, entry := range logged.Data() {
		if entry.Message == "Stopped" && entry.ParameterKVList[0] == "part" {
			stopped = append(stopped, fmt.Sprint(entry.ParameterKVList[1]))
		}
	}
	require.Equal(t, []string{
		"controllers", "controllers of every replica", "api", "custom resources", "peers", "subtrees", "replicas", "bindings",
		"replica snapshot", "informers", "admission", "encryption", "authentication", "usage", "etcd",
	}, stopped)
}

// TestFailedStart checks that a shard that fails to start reports the reason and releases its port and data.
func TestFailedStart(t *testing.T) {
	base := options(t)
	like := func(port int) *shard.Options {
		o := *base
		o.Serving.SecurePort = port
		return &o
	}
	start := func(o *shard.Options) (lifecycletest.Server, error) { return shard.NewShard(t.Context(), o.Complete()) }
	lifecycletest.HalfStarted(t, like, start, map[string]lifecycletest.Mistake[shard.Options]{
		"no certificate":              {Make: func(o *shard.Options, _ string) { o.Serving.TLSCertFile = "/nowhere" }, Want: "--tls-cert-file"},
		"data dir is a file":          {Make: func(o *shard.Options, garbage string) { o.Etcd.DataDir = garbage }, Want: "--data-dir"},
		"garbage encryption":          {Make: func(o *shard.Options, garbage string) { o.Encryption.ConfigFile = garbage }, Want: "--encryption-provider-config"},
		"garbage CA of shards":        {Make: func(o *shard.Options, garbage string) { o.ShardCAFile = garbage }, Want: "--shard-ca-file"},
		"garbage CA of clients":       {Make: func(o *shard.Options, garbage string) { o.Authentication.ClientCAFile = garbage }, Want: "--client-ca-file"},
		"garbage CA of front-proxies": {Make: func(o *shard.Options, garbage string) { o.RootCAFile = garbage }, Want: "--root-ca-file"},
	})
}

// read returns the error of a request for a path.
func read(t *testing.T, cfg *rest.Config, path string) error {
	t.Helper()
	_, err := harness.Clientset(t, cfg, "").Discovery().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
	return err
}

// TestShardWithoutOtherServers starts a shard without any other server, and uses it.
func TestShardWithoutOtherServers(t *testing.T) {
	t.Parallel()
	o := options(t)
	store := pki.NewStore(t.TempDir(), time.Now)
	ca, err := store.Authority("proxies")
	require.NoError(t, err)
	proxy, err := store.Certificate("proxy", ca, pki.Client("proxy"))
	require.NoError(t, err)
	o.Authentication.RequestHeaderCAFile = ca.CertFile
	cfg := start(t, o)
	cfg.Host += "/clusters/root"
	c := harness.Clientset(t, cfg, "")
	require.Eventually(t, func() bool {
		_, err := c.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceDefault, metav1.GetOptions{})
		return err == nil
	}, testTimeout, 20*time.Millisecond)
	harness.Create(t, c.CoreV1().Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
	homesOfServiceAccounts(t, cfg, c, proxy)
	served, err := c.Discovery().ServerPreferredResources()
	require.NoError(t, err)
	var names []string
	for _, list := range served {
		for _, r := range list.APIResources {
			names = append(names, list.GroupVersion+" "+r.Name)
		}
	}
	require.Subset(t, names, []string{"v1 configmaps", "apiextensions.k8s.io/v1 customresourcedefinitions", "tenancy.kcp.io/v1alpha1 workspaces"})
}

// homesOfServiceAccounts checks the permissions of service accounts of other logical clusters, which differ from those
// of root's own.
func homesOfServiceAccounts(t *testing.T, cfg *rest.Config, c kubernetes.Interface, proxy *pki.Pair) {
	t.Helper()
	const bot = "system:serviceaccount:default:bot"
	harness.Create(t, c.RbacV1().ClusterRoleBindings(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "bot"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "bot"}},
	})
	extraOf := func(claims []string) map[string]authorizationv1.ExtraValue {
		return map[string]authorizationv1.ExtraValue{"authentication.kcp.io/cluster-name": claims}
	}
	allowed := func(extra map[string]authorizationv1.ExtraValue) bool {
		review := harness.Create(t, c.AuthorizationV1().SubjectAccessReviews(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: bot, Groups: []string{"system:authenticated"}, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "configmaps", Namespace: "default"},
		}})
		return review.Status.Allowed
	}
	require.Eventually(t, func() bool { return allowed(extraOf([]string{"root"})) }, testTimeout, 20*time.Millisecond, "timeout waiting for the initial roles")
	for name, tc := range map[string]struct {
		claims []string
		want   bool
	}{
		"no claim":        {want: true},
		"root":            {claims: []string{"root"}, want: true},
		"several":         {claims: []string{"root", "other"}},
		"the same twice":  {claims: []string{"root", "root"}},
		"foreign":         {claims: []string{"other"}},
		"system":          {claims: []string{"system:admin"}},
		"empty":           {claims: []string{""}},
		"all":             {claims: []string{"*"}},
		"several, in one": {claims: []string{"root,other"}},
	} {
		require.Equal(t, tc.want, allowed(extraOf(tc.claims)), name)

		// The same for requests of a front-proxy.
		extra := map[string][]string{"authentication.kcp.io/cluster-name": tc.claims}
		speaking := rest.CopyConfig(cfg)
		speaking.CertFile, speaking.KeyFile = proxy.CertFile, proxy.KeyFile
		speaking.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return transport.NewAuthProxyRoundTripper(bot, "", []string{"system:authenticated"}, extra, next)
		})
		account := harness.Clientset(t, speaking, "")
		_, err := account.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		require.Equal(t, !tc.want, apierrors.IsForbidden(err), "%s: %v", name, err)
		if name == "root" {
			switchedOff(t, c, account)
		}
	}
}

// switchedOff checks that either annotation denies access to a logical cluster.
func switchedOff(t *testing.T, administrator, account kubernetes.Interface) {
	t.Helper()
	for _, annotation := range []string{"core.kcp.io/inactive", "internal.kcp.io/inactive"} {
		for _, value := range []string{`"true"`, "null"} {
			require.NoError(t, administrator.Discovery().RESTClient().Patch(types.MergePatchType).
				AbsPath("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster").
				Body([]byte(`{"metadata":{"annotations":{"`+annotation+`":`+value+`}}}`)).Do(t.Context()).Error())
			require.Eventually(t, func() bool {
				_, err := account.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
				return apierrors.IsForbidden(err) == (value != "null")
			}, testTimeout, 20*time.Millisecond, "%s: %s", annotation, value)
		}
	}
}
