package frontproxy

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/util/keyutil"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/request"
)

// TestHomesOfServiceAccounts holds which accounts get in by their tokens, and as
// whom, by the logical clusters that the tokens claim.
func TestHomesOfServiceAccounts(t *testing.T) {
	w := newWorld(t, "root")
	w.cluster(t, "root", "one")
	w.cluster(t, "root", "two")
	_, keyFile := w.clientCA.issue(t, w.dir, "accounts")
	w.options.Authentication.ServiceAccounts.KeyFiles = []string{keyFile}
	shard := w.shards["root"]
	shard.handle(func(rw http.ResponseWriter, r *http.Request) {
		cluster, account, asked := strings.Cut(r.URL.Path, "/api/v1/namespaces/ns/serviceaccounts/")
		rw.Header().Set("Content-Type", "application/json")
		switch {
		case !asked:
			shard.echo(rw, r)
		case cluster == "/clusters/one" && account == "robot":
			_, _ = io.WriteString(rw, `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"robot","namespace":"ns","uid":"robot-uid"}}`)
		default:
			rw.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(rw, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"NotFound","code":404}`)
		}
	})
	w.ready(t)
	w.knows(t, "one", "root")
	w.knows(t, "two", "root")
	private, err := keyutil.PrivateKeyFromFile(keyFile)
	require.NoError(t, err)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: private}, nil)
	require.NoError(t, err)
	token := func(bound, legacy string) string {
		claims := map[string]any{
			"iss": authn.DefaultServiceAccountIssuer, "aud": authn.DefaultServiceAccountIssuer,
			"sub": "system:serviceaccount:ns:robot", "exp": time.Now().Add(time.Hour).Unix(),
			"kubernetes.io": map[string]any{"clusterName": bound, "namespace": "ns", "serviceaccount": map[string]any{"name": "robot", "uid": "robot-uid"}},
			"kubernetes.io/serviceaccount/clusterName": legacy,
		}
		text, err := jwt.Signed(signer).Claims(claims).CompactSerialize()
		require.NoError(t, err)
		return text
	}
	for name, tc := range map[string]struct {
		bound, legacy string
		want          int
	}{
		"no claim":                 {want: http.StatusUnauthorized},
		"one":                      {bound: "one", want: http.StatusOK},
		"the same twice":           {bound: "one", legacy: "one", want: http.StatusOK},
		"several":                  {bound: "one", legacy: "two", want: http.StatusUnauthorized},
		"several, the other first": {bound: "two", legacy: "one", want: http.StatusUnauthorized},
		"foreign":                  {bound: "two", want: http.StatusUnauthorized},
		"unknown":                  {bound: "three", want: http.StatusUnauthorized},
		"a path":                   {bound: "root:one", want: http.StatusUnauthorized},
		"of the system":            {bound: "system:admin", want: http.StatusUnauthorized},
		"only in the other place":  {legacy: "one", want: http.StatusUnauthorized},
	} {
		robot := w.withCerts(t)
		robot.token = token(tc.bound, tc.legacy)
		for _, path := range []string{"/clusters/one/api", "/clusters/two/api"} {
			res, body := robot.get(t, path, "X-Remote-Extra-Authentication.kcp.io%2Fcluster-Name", "two")
			require.Equal(t, tc.want, res.StatusCode, "%s at %s: %s", name, path, body)
			if tc.want == http.StatusOK {
				require.Equal(t, []string{"one"}, robot.echoed(t, path).Header.Values("X-Remote-Extra-Authentication.kcp.io%2fcluster-Name"), "%s at %s", name, path)
			}
		}
	}
}

// TestProcessIsNotForTheScoped holds that a group counts where its member is in
// scope: the process is in no logical cluster.
func TestProcessIsNotForTheScoped(t *testing.T) {
	scoped := map[string][]string{request.ExtraScopes: {"cluster:root"}}
	for _, group := range []string{user.SystemPrivilegedGroup, request.GroupAdmin} {
		require.True(t, mayReadProcess(t.Context(), &user.DefaultInfo{Name: "u", Groups: []string{group}}))
		require.False(t, mayReadProcess(t.Context(), &user.DefaultInfo{Name: "u", Groups: []string{group}, Extra: scoped}))
		require.False(t, mayReadProcess(t.Context(), &user.DefaultInfo{Name: "system:serviceaccount:ns:bot", Groups: []string{group}}))
	}
}
