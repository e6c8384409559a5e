package cacheserver_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// claiming adds claims of logical clusters to requests, as a front-proxy does.
type claiming struct {
	next   http.RoundTripper
	claims []string
}

func (c claiming) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Remote-User", "system:serviceaccount:default:robot")
	r.Header.Set("X-Remote-Group", "system:masters")
	for _, claim := range c.claims {
		r.Header.Add("X-Remote-Extra-Authentication.kcp.io%2Fcluster-Name", claim)
	}
	return c.next.RoundTrip(r)
}

func testAccess(t *testing.T, cache *cacheServer) {
	t.Helper()
	other := newPKI(t)
	foreign := other.master(t, cache.url)
	foreign.CAData = cache.pki.caPEM
	master := httpClient(t, cache.pki.master(t, cache.url))
	strangers := map[string]*http.Client{
		"anonymous":              httpClient(t, cache.pki.anonymous(cache.url)),
		"a user":                 httpClient(t, cache.pki.user(t, cache.url, "alice")),
		"an administrator":       httpClient(t, cache.pki.user(t, cache.url, "admin", "system:kcp:admin")),
		"a master of another CA": httpClient(t, foreign),
		"the shard's own name":   httpClient(t, cache.pki.user(t, cache.url, "amber", "system:authenticated")),
	}
	// The cache server has no service accounts, so any claim is rejected.
	for name, claims := range map[string][]string{"no": nil, "one": {"root"}, "several": {"root", "other"}, "a foreign": {"other"}} {
		account := cache.pki.user(t, cache.url, "system:serviceaccount:default:robot", "system:masters")
		account.Wrap(func(next http.RoundTripper) http.RoundTripper { return claiming{next, claims} })
		strangers["an account that claims "+name+" logical cluster"] = httpClient(t, account)
	}
	scoped := cache.pki.master(t, cache.url)
	scoped.Impersonate = rest.ImpersonationConfig{
		UserName: "admin", Groups: []string{"system:kcp:admin"}, Extra: map[string][]string{"authentication.kcp.io/scopes": {"cluster:root"}},
	}
	strangers["an administrator of one logical cluster"] = httpClient(t, scoped)
	const base = "/services/cache/shards/amber/clusters/root"
	for _, path := range []string{"/livez", "/readyz", "/healthz", "/livez/ping"} {
		for name, stranger := range strangers {
			status, body := get(t, stranger, cache.url+path)
			require.Equal(t, http.StatusOK, status, "%s as %s: %s", path, name, body)
		}
	}
	for _, path := range []string{
		"/metrics", "/version", base + "/apis", base + "/version", base + "/apis/core.kcp.io/v1alpha1/shards",
		"/services/cache/shards/*/clusters/*/apis/core.kcp.io/v1alpha1/shards",
	} {
		for name, stranger := range strangers {
			status, body := get(t, stranger, cache.url+path)
			require.Equal(t, http.StatusForbidden, status, "%s as %s: %s", path, name, body)
		}
		status, body := get(t, master, cache.url+path)
		require.Equal(t, http.StatusOK, status, "%s: %s", path, body)
	}
	const profile = "/debug/pprof/goroutine?debug=1"
	for name, stranger := range strangers {
		want := http.StatusForbidden
		if name == "an administrator" {
			want = http.StatusOK
		}
		status, body := get(t, stranger, cache.url+profile)
		require.Equal(t, want, status, "as %s: %s", name, body)
		status, body = do(t, stranger, http.MethodPost, cache.url+"/debug/pprof/symbol", "")
		require.Equal(t, http.StatusForbidden, status, "as %s: %s", name, body)
	}
	status, body := get(t, master, cache.url+profile)
	require.Equal(t, http.StatusOK, status, body)
	for path, want := range map[string]int{
		"/":                            http.StatusBadRequest,
		"/apis":                        http.StatusBadRequest,
		"/clusters/root/apis":          http.StatusBadRequest,
		"/services/cache/shards//apis": http.StatusBadRequest,
		"/services/cache/shards/NO/clusters/root/apis":                   http.StatusBadRequest,
		"/services/cache/shards/amber/clusters/a:b/apis":                 http.StatusBadRequest,
		"/services/cache/shards/amber/metrics":                           http.StatusNotImplemented,
		base + "/metrics":                                                http.StatusNotImplemented,
		base + "/clusters/other/apis/core.kcp.io/v1alpha1/shards":        http.StatusNotFound,
		base + "/apis/core.kcp.io/v1alpha1/nothings":                     http.StatusNotFound,
		base + "/apis/core.kcp.io/v1/shards":                             http.StatusNotFound,
		base + "/api/v1/configmaps":                                      http.StatusNotFound,
		base + "/apis/apiextensions.k8s.io/v1/customresourcedefinitions": http.StatusNotFound,
	} {
		status, body := get(t, master, cache.url+path)
		require.Equal(t, want, status, "%s: %s", path, body)
	}
}

// testShardsWriteTheirReplicas: shards read everything, and write below their own names.
func testShardsWriteTheirReplicas(t *testing.T, cache *cacheServer) {
	t.Helper()
	amber := httpClient(t, cache.pki.user(t, cache.url, "system:shard:amber", "system:kcp:shards"))
	unprefixed := httpClient(t, cache.pki.user(t, cache.url, "amber", "system:kcp:shards"))
	at := func(shard string) string {
		return cache.url + "/services/cache/shards/" + shard + "/clusters/root/apis/core.kcp.io/v1alpha1/shards"
	}
	const one = `{"apiVersion":"core.kcp.io/v1alpha1","kind":"Shard","metadata":{"name":"one"}}`
	for _, tt := range []struct {
		client            *http.Client
		method, url, body string
		want              int
	}{
		{amber, http.MethodPost, at("amber"), one, http.StatusCreated},
		{amber, http.MethodPost, at("blue"), one, http.StatusForbidden},
		{amber, http.MethodDelete, at("blue") + "/one", "", http.StatusForbidden},
		{unprefixed, http.MethodPost, at("amber"), one, http.StatusForbidden},
		{unprefixed, http.MethodGet, at("amber") + "/one", "", http.StatusOK},
		{amber, http.MethodGet, cache.url + "/services/cache/shards/*/clusters/*/apis/core.kcp.io/v1alpha1/shards", "", http.StatusOK},
		{amber, http.MethodGet, cache.url + "/metrics", "", http.StatusForbidden},
		{amber, http.MethodDelete, at("amber") + "/one", "", http.StatusOK},
	} {
		status, body := do(t, tt.client, tt.method, tt.url, tt.body)
		require.Equal(t, tt.want, status, "%s %s: %s", tt.method, tt.url, body)
	}
}

// testReaders: readers read everything, and write nothing.
func testReaders(t *testing.T, cache *cacheServer) {
	t.Helper()
	create(t, in(t, cache.f.Shard("read"), "readers", shardsGVR), object(shardsGVR, "Shard", "one", nil))
	config := cache.pki.user(t, cache.url, "us", "shardplane:cache:readers")
	reader := factory(t, config)
	list := mustList(t, in(t, reader.Shard("*"), "readers", shardsGVR), metav1.ListOptions{})
	require.Len(t, list.Items, 1)
	status, body := get(t, reader.HTTPClient(), cache.url+"/services/cache/shards/read/digests")
	require.Equal(t, http.StatusOK, status, body)
	one := in(t, reader.Shard("read"), "readers", shardsGVR)
	_, err := one.Create(t.Context(), object(shardsGVR, "Shard", "two", nil), metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	_, err = one.Update(t.Context(), &list.Items[0], metav1.UpdateOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.True(t, apierrors.IsForbidden(one.Delete(t.Context(), "one", metav1.DeleteOptions{})))
	status, _ = get(t, reader.HTTPClient(), cache.url+"/metrics")
	require.Equal(t, http.StatusForbidden, status)

	forged := rest.AnonymousClientConfig(config)
	forged.BearerToken = "system:shardplane:relay"
	status, _ = get(t, factory(t, forged).HTTPClient(), cache.url+"/services/cache/shards/read/digests")
	require.Contains(t, []int{http.StatusForbidden, http.StatusUnauthorized}, status)
}
