package access

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// decider is a webhook that reviews tokens and requests.
type decider struct {
	*httptest.Server

	mu sync.Mutex
	// open is the logical cluster in which alice may list ConfigMaps.
	open string
}

// newDecider accepts the token of alice, authorizes her to list ConfigMaps in one logical cluster, and denies any user to delete
// Secrets named kept.
func newDecider(t *testing.T) *decider {
	t.Helper()
	d := &decider{}
	mux := http.NewServeMux()
	mux.HandleFunc("/tokens", reviewHandler(func(review *authenticationv1.TokenReview) {
		if review.Spec.Token == "alice-token" {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "alice", Groups: []string{"devs", "system:masters"}}}
		}
	}))
	mux.HandleFunc("/requests", reviewHandler(func(review *authorizationv1.SubjectAccessReview) {
		a := review.Spec.ResourceAttributes
		if a == nil {
			return
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		in := review.Spec.Extra["authorization.kcp.io/cluster-name"]
		review.Status.Allowed = review.Spec.User == "alice" && a.Verb == "list" && a.Resource == "configmaps" && len(in) == 1 && in[0] == d.open
		if a.Verb == "delete" && a.Resource == "secrets" && a.Name == "kept" {
			review.Status.Denied, review.Status.Reason = true, "secrets are kept"
		}
	}))
	d.Server = httptest.NewServer(mux)
	t.Cleanup(d.Close)
	return d
}

// reviewHandler serves reviews that complete fills in.
func reviewHandler[T any](complete func(review *T)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		review := new(T)
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		complete(review)
		_ = json.NewEncoder(w).Encode(review)
	}
}

func (d *decider) kubeconfig(t *testing.T, path string) string {
	t.Helper()
	return kit.WriteFile(t, t.TempDir(), "decider.yaml", `{"apiVersion":"v1","kind":"Config","current-context":"d",
"clusters":[{"name":"d","cluster":{"server":"`+d.URL+path+`"}}],"contexts":[{"name":"d","context":{"cluster":"d"}}]}`)
}

// options returns the flags with which servers review tokens, and shards review requests before they evaluate RBAC.
func (d *decider) options(t *testing.T) map[string][]string {
	t.Helper()
	tokens := []string{"--authentication-token-webhook-config-file", d.kubeconfig(t, "/tokens")}
	return map[string][]string{
		"front-proxy": tokens,
		"shard": append(tokens, "--authorization-webhook-config-file", d.kubeconfig(t, "/requests"),
			"--authorization-order", "AlwaysAllowPaths,AlwaysAllowGroups,Webhook,RBAC"),
	}
}

// testExternalDeciders checks that front-proxy and shard call the webhooks. TestWebhook of pkg/authn and of pkg/authz, and
// TestOrder there, cover the use of the responses.
func testExternalDeciders(t *testing.T, p kit.People, d *decider) {
	t.Helper()
	one, two := p.Workspace("root", "one").Spec.Cluster, p.Workspace("root", "two").Spec.Cluster
	d.mu.Lock()
	d.open = one
	d.mu.Unlock()
	for _, server := range []*rest.Config{p.Proxy(), p.Shard(0)} {
		alice := kit.WithToken(server, "alice-token")
		user := kit.WhoAmI(t, alice, "root")
		require.Equal(t, "alice", user.Username)
		require.ElementsMatch(t, []string{"devs", "system:authenticated"}, user.Groups, "a webhook cannot grant system:masters")
		require.Equal(t, http.StatusOK, codeOf(t, alice, "/clusters/"+one+kit.ConfigMapsPath), "the webhook allows the request")
		require.Equal(t, http.StatusForbidden, codeOf(t, alice, "/clusters/"+two+kit.ConfigMapsPath), "the webhook allows the request in the other logical cluster only")
	}
	// The webhook precedes RBAC, so it denies requests that rules allow, but not those of system:masters.
	in := p.Admin("root:two").CoreV1().Secrets("default")
	_, err := in.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{})
	require.NoError(t, err, "RBAC decides if the webhook has no opinion")
	err = in.Delete(t.Context(), "kept", metav1.DeleteOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, "secrets are kept")
	require.NoError(t, p.With(p.Shard(0), two).CoreV1().Secrets("default").Delete(t.Context(), "kept", metav1.DeleteOptions{}))
}
