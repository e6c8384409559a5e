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

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// decider is a service that reviews tokens and requests.
type decider struct {
	*httptest.Server

	mu    sync.Mutex
	asked []authorizationv1.SubjectAccessReviewSpec
}

// newDecider knows the token of alice, lets her list config maps in the logical
// cluster that open returns, and lets nobody delete secrets.
func newDecider(t *testing.T, open func() string) *decider {
	t.Helper()
	d := &decider{}
	mux := http.NewServeMux()
	mux.HandleFunc("/tokens", func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if review.Spec.Token == "alice-token" {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "alice", Groups: []string{"devs", "system:masters"}}}
		}
		_ = json.NewEncoder(w).Encode(review)
	})
	mux.HandleFunc("/requests", func(w http.ResponseWriter, r *http.Request) {
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		d.mu.Lock()
		d.asked = append(d.asked, review.Spec)
		d.mu.Unlock()
		if a := review.Spec.ResourceAttributes; a != nil {
			in := review.Spec.Extra["authorization.kcp.io/cluster-name"]
			review.Status.Allowed = review.Spec.User == "alice" && a.Verb == "list" && a.Resource == "configmaps" && len(in) == 1 && in[0] == open()
			if a.Verb == "delete" && a.Resource == "secrets" {
				review.Status.Denied, review.Status.Reason = true, "secrets are kept"
			}
		}
		_ = json.NewEncoder(w).Encode(review)
	})
	d.Server = httptest.NewServer(mux)
	t.Cleanup(d.Close)
	return d
}

func (d *decider) kubeconfig(t *testing.T, path string) string {
	t.Helper()
	return kit.WriteFile(t, t.TempDir(), "decider.yaml", `{"apiVersion":"v1","kind":"Config","current-context":"d",
"clusters":[{"name":"d","cluster":{"server":"`+d.URL+path+`"}}],"contexts":[{"name":"d","context":{"cluster":"d"}}]}`)
}

// TestExternalDeciders holds that the webhooks for tokens and requests are asked
// where flags name them: users are the same at front-proxy and shard, and
// decisions are one logical cluster's.
func TestExternalDeciders(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	cluster := "none yet"
	d := newDecider(t, func() string {
		mu.Lock()
		defer mu.Unlock()
		return cluster
	})
	tokens := []string{"--authentication-token-webhook-config-file", d.kubeconfig(t, "/tokens")}
	// A cluster of its own, because its webhooks decide on every request.
	e := kit.People{Env: kit.Start(t, harness.Options{ExtraArgs: map[string][]string{
		"front-proxy": tokens,
		"shard": append(tokens, "--authorization-webhook-config-file", d.kubeconfig(t, "/requests"),
			"--authorization-order", "AlwaysAllowPaths,AlwaysAllowGroups,Webhook,RBAC"),
	}})}
	one, two := e.Workspace("root", "one").Spec.Cluster, e.Workspace("root", "two").Spec.Cluster
	mu.Lock()
	cluster = one
	mu.Unlock()
	alice := []*rest.Config{kit.WithToken(e.Proxy(), "alice-token"), kit.WithToken(e.Shard(0), "alice-token")}
	for _, config := range alice {
		who := kit.WhoAmI(t, config, "root")
		require.Equal(t, "alice", who.Username)
		require.ElementsMatch(t, []string{"devs", "system:authenticated"}, who.Groups, "a service from outside makes nobody system:masters")
		_, err := kit.ClusterClientset(t, config, one).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err, "the webhook allows it")
		_, err = kit.ClusterClientset(t, config, two).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		require.True(t, apierrors.IsForbidden(err), "in this logical cluster only: %v", err)
		_, err = kit.ClusterClientset(t, kit.WithToken(config, "mallory-token"), one).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
		require.True(t, apierrors.IsUnauthorized(err), "%v", err)
	}
	// The webhook comes first, so it denies what rules allow, but not to members
	// of system:masters.
	in := e.Admin("root:two").CoreV1().Secrets("default")
	_, err := in.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{})
	require.NoError(t, err, "where it has no opinion, rules decide")
	err = in.Delete(t.Context(), "kept", metav1.DeleteOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, "secrets are kept")
	require.NoError(t, e.With(e.Shard(0), two).CoreV1().Secrets("default").Delete(t.Context(), "kept", metav1.DeleteOptions{}))
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, spec := range d.asked {
		require.NotContains(t, spec.Groups, "system:masters", "they are not asked about")
	}
}
