package access

import (
	"context"
	"encoding/base64"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

func createServiceAccount(t *testing.T, e *kit.Env, c kubernetes.Interface, name string) *corev1.ServiceAccount {
	t.Helper()
	var account *corev1.ServiceAccount
	e.Eventually("service account "+name+" is created", func() bool {
		var err error
		account, err = c.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err == nil
	})
	return account
}

// tokenOf requests a token of a service account in namespace default.
func tokenOf(t *testing.T, c kubernetes.Interface, name string, spec authenticationv1.TokenRequestSpec) string {
	t.Helper()
	request, err := c.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), name, &authenticationv1.TokenRequest{Spec: spec}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, request.Status.Token)
	return request.Status.Token
}

func bindClusterAdmin(t *testing.T, c kubernetes.Interface, name string, subject rbacv1.Subject) {
	t.Helper()
	harness.Create(t, c.RbacV1().ClusterRoleBindings(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: []rbacv1.Subject{subject},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	})
}

func codeOf(t *testing.T, config *rest.Config, path string) int {
	t.Helper()
	code, _ := kit.Do(t, config, kit.Request{Path: path})
	return code
}

// webSocket opens a WebSocket with a token, as browsers do, and returns the status code and the selected subprotocol.
func webSocket(t *testing.T, config *rest.Config, path, token string) (code int, protocol string) {
	t.Helper()
	transport, err := rest.TransportFor(config)
	require.NoError(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+path, http.NoBody)
	require.NoError(t, err)
	for name, value := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Origin": "https://localhost",
		"Sec-WebSocket-Protocol": "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(token)) + ", base64.binary.k8s.io",
	} {
		r.Header.Set(name, value)
	}
	response, err := transport.RoundTrip(r)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return response.StatusCode, response.Header.Get("Sec-Websocket-Protocol")
}

func TestServiceAccounts(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	proxy, first, second := e.Proxy(), e.Shard(0), e.Shard(1)
	one := e.WorkspaceOn("root", "accounts-one", "root").Spec.Cluster
	two := e.WorkspaceOn("root", "accounts-two", "shard-1").Spec.Cluster
	admin := harness.Clientset(t, proxy, two)
	robot := createServiceAccount(t, e, admin, "robot")
	bindClusterAdmin(t, admin, "robot", rbacv1.Subject{Kind: "ServiceAccount", Namespace: "default", Name: "robot"})
	token := tokenOf(t, admin, "robot", authenticationv1.TokenRequestSpec{})
	const namespaces = "/api/v1/namespaces"
	withRobot := kit.WithToken(proxy, token)
	e.Eventually("the token is accepted", func() bool { return codeOf(t, withRobot, "/clusters/"+two+namespaces) == http.StatusOK })

	t.Run("every namespace has a default account", func(t *testing.T) {
		for _, c := range []kubernetes.Interface{harness.Clientset(t, proxy, "root"), harness.Clientset(t, proxy, one), admin} {
			e.Eventually("the default account exists", func() bool {
				_, err := c.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
				return err == nil
			})
		}
		require.NoError(t, admin.CoreV1().ServiceAccounts("default").Delete(t.Context(), "default", metav1.DeleteOptions{}))
		e.Eventually("the default account is created again", func() bool {
			_, err := admin.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
			return err == nil
		})
	})

	t.Run("identity", func(t *testing.T) {
		for _, config := range []*rest.Config{withRobot, kit.WithToken(second, token)} {
			user := kit.WhoAmI(t, config, two)
			require.Equal(t, "system:serviceaccount:default:robot", user.Username)
			require.Equal(t, string(robot.UID), user.UID)
			require.ElementsMatch(t, []string{"system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"}, user.Groups)
			require.Equal(t, authenticationv1.ExtraValue{two}, user.Extra["authentication.kcp.io/cluster-name"])
			require.Len(t, user.Extra["authentication.kubernetes.io/credential-id"], 1)
		}
	})

	t.Run("other logical clusters", func(t *testing.T) {
		kit.RequireStatus(t, withRobot, kit.Request{Path: "/clusters/root" + namespaces}, http.StatusForbidden)
		for _, cluster := range []string{one, "nowhere", "root:nowhere"} {
			status := kit.RequireStatus(t, withRobot, kit.Request{Path: "/clusters/" + cluster + namespaces}, http.StatusForbidden)
			require.Contains(t, status.Message, kit.NotPermitted, cluster)
		}
		for _, cluster := range []string{one, "root", two, "nowhere"} {
			kit.RequireStatus(t, kit.WithToken(first, token), kit.Request{Path: "/clusters/" + cluster + namespaces}, http.StatusForbidden)
		}
		kit.RequireStatus(t, kit.WithToken(second, token), kit.Request{Path: "/clusters/*" + namespaces}, http.StatusForbidden)
		kit.RequireStatus(t, kit.WithToken(second, token), kit.Request{Path: "/clusters/system:admin" + namespaces}, http.StatusForbidden)
		require.NotEqual(t, http.StatusOK, codeOf(t, kit.WithToken(e.Cache(), token), "/services/cache/shards/*/clusters/*/apis/core.kcp.io/v1alpha1/shards"))

		namesake := harness.Clientset(t, proxy, one)
		createServiceAccount(t, e, namesake, "robot")
		bindClusterAdmin(t, namesake, "robot", rbacv1.Subject{Kind: "ServiceAccount", Namespace: "default", Name: "robot"})
		other := kit.WithToken(proxy, tokenOf(t, namesake, "robot", authenticationv1.TokenRequestSpec{}))
		e.Eventually("the token of the namesake is accepted", func() bool { return codeOf(t, other, "/clusters/"+one+namespaces) == http.StatusOK })
		kit.RequireStatus(t, withRobot, kit.Request{Path: "/clusters/" + one + namespaces}, http.StatusForbidden)
		kit.RequireStatus(t, other, kit.Request{Path: "/clusters/" + two + namespaces}, http.StatusForbidden)
	})

	t.Run("authorized by a rule", func(t *testing.T) {
		host := harness.Clientset(t, proxy, one)
		bindClusterAdmin(t, host, "guest", rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "User", Name: "system:kcp:serviceaccount:" + two + ":default:robot"})
		e.Eventually("the front-proxy authorizes the guest", func() bool { return codeOf(t, withRobot, "/clusters/"+one+namespaces) == http.StatusOK })
		e.Eventually("the shard authorizes it", func() bool {
			return codeOf(t, kit.WithToken(first, token), "/clusters/"+one+namespaces) == http.StatusOK
		})
		require.NoError(t, host.RbacV1().ClusterRoleBindings().Delete(t.Context(), "guest", metav1.DeleteOptions{}))
		e.Eventually("access is revoked", func() bool { return codeOf(t, withRobot, "/clusters/"+one+namespaces) == http.StatusForbidden })
	})

	t.Run("in-cluster configuration", func(t *testing.T) {
		for _, config := range []*rest.Config{withRobot, kit.WithToken(second, token)} {
			inCluster(t, e, config, admin)
		}
	})

	t.Run("WebSocket", func(t *testing.T) {
		for _, config := range []*rest.Config{proxy, second} {
			for path, want := range map[string]int{
				"/clusters/" + two + namespaces: http.StatusSwitchingProtocols,
				namespaces:                      http.StatusSwitchingProtocols, // the token contains the logical cluster
				"/clusters/" + one + namespaces: http.StatusForbidden,
			} {
				code, protocol := webSocket(t, kit.Anonymous(config), path+"?watch=true", token)
				require.Equal(t, want, code, path)
				if want == http.StatusSwitchingProtocols {
					require.Equal(t, "base64.binary.k8s.io", protocol)
				}
			}
			code, _ := webSocket(t, kit.Anonymous(config), "/clusters/"+two+namespaces+"?watch=true", token+"x")
			require.Equal(t, http.StatusUnauthorized, code)
		}
	})

	t.Run("invalid token requests", func(t *testing.T) { badTokenRequests(t, admin) })

	bindClusterAdmin(t, harness.Clientset(t, proxy, one), "guest", rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "User", Name: "system:kcp:serviceaccount:" + two + ":default:robot"})
	guest := kit.WithToken(first, token)
	e.Eventually("the other shard authorizes the guest", func() bool { return codeOf(t, guest, "/clusters/"+one+namespaces) == http.StatusOK })
	require.NoError(t, admin.CoreV1().ServiceAccounts("default").Delete(t.Context(), "robot", metav1.DeleteOptions{}))
	e.Eventually("the token is rejected after the deletion of its account", func() bool {
		return codeOf(t, kit.WithToken(second, token), "/clusters/"+two+namespaces) == http.StatusUnauthorized &&
			codeOf(t, withRobot, "/clusters/"+two+namespaces) == http.StatusUnauthorized
	})
	e.Eventually("the token of the guest is rejected", func() bool {
		return codeOf(t, guest, "/clusters/"+one+namespaces) == http.StatusUnauthorized &&
			codeOf(t, withRobot, "/clusters/"+one+namespaces) == http.StatusUnauthorized
	})
	createServiceAccount(t, e, admin, "robot")
	require.Equal(t, http.StatusUnauthorized, codeOf(t, kit.WithToken(second, token), "/clusters/"+two+namespaces), "the token is rejected although an account of this name exists")
}

// inCluster runs an informer with a configuration that contains no logical cluster, as returned by rest.InClusterConfig.
func inCluster(t *testing.T, e *kit.Env, config *rest.Config, admin kubernetes.Interface) {
	t.Helper()
	c := harness.Clientset(t, config, "")
	version, err := c.Discovery().ServerVersion()
	require.NoError(t, err)
	require.NotEmpty(t, version.Major)
	factory := informers.NewSharedInformerFactoryWithOptions(c, 0, informers.WithNamespace("default"))
	maps := factory.Core().V1().ConfigMaps()
	informer := maps.Informer()
	ctx, cancel := context.WithCancel(t.Context())
	defer factory.Shutdown()
	defer cancel()
	factory.Start(ctx.Done())
	require.True(t, cache.WaitForCacheSync(ctx.Done(), informer.HasSynced))

	created := harness.Create(t, c.CoreV1().ConfigMaps("default"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "made-"}})
	e.Eventually("the informer contains the ConfigMap", func() bool {
		_, err := maps.Lister().ConfigMaps("default").Get(created.Name)
		return err == nil
	})
	_, err = admin.CoreV1().ConfigMaps("default").Get(t.Context(), created.Name, metav1.GetOptions{})
	require.NoError(t, err, "the ConfigMap must be in the account's logical cluster")
}

func badTokenRequests(t *testing.T, c kubernetes.Interface) {
	t.Helper()
	seconds := func(n int64) *int64 { return &n }
	secret := harness.Create(t, c.CoreV1().Secrets("default"), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "mine"}})
	for what, tc := range map[string]struct {
		account string
		spec    authenticationv1.TokenRequestSpec
		is      func(error) bool
	}{
		"unknown account":           {account: "unknown", is: apierrors.IsNotFound},
		"too short":                 {spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(599)}, is: apierrors.IsInvalid},
		"too long":                  {spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(1<<32 + 1)}, is: apierrors.IsInvalid},
		"bound to a pod":            {spec: boundTo("Pod", "p", ""), is: apierrors.IsBadRequest},
		"bound to a missing secret": {spec: boundTo("Secret", "none", ""), is: apierrors.IsNotFound},
		"bound to a deleted secret": {spec: boundTo("Secret", "mine", "former"), is: apierrors.IsConflict},
	} {
		if tc.account == "" {
			tc.account = "robot"
		}
		_, err := c.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), tc.account, &authenticationv1.TokenRequest{Spec: tc.spec}, metav1.CreateOptions{})
		require.True(t, tc.is(err), "%s: %v", what, err)
	}
	request, err := c.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "robot",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: seconds(600), BoundObjectRef: boundTo("Secret", "mine", secret.UID).BoundObjectRef}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(10*time.Minute), request.Status.ExpirationTimestamp.Time, time.Minute)
}

func boundTo(kind, name string, uid types.UID) authenticationv1.TokenRequestSpec {
	return authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: kind, Name: name, UID: uid}}
}
