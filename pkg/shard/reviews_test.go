package shard

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/peers"
)

// TestReviews checks that denials of other shards are cached for some time, and permissions are not.
func TestReviews(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		review := &authorizationv1.SubjectAccessReview{}
		if r.URL.Path != "/clusters/provider/apis/authorization.k8s.io/v1/subjectaccessreviews" || r.Header.Get("X-Kcp-Internal-Deep-SubjectAccessReview") != "true" ||
			json.NewDecoder(r.Body).Decode(review) != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		review.Status.Allowed = review.Spec.User == "alice" && review.Spec.ResourceAttributes.Name == "e" && review.Spec.ResourceAttributes.Verb == "bind"
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	there := peers.NewPeer("there", clientsOf(t, &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}))
	r := newReviews(nil, nil, nil)
	may := func(name, export string) bool {
		allowed, err := r.remote(t.Context(), there, &user.DefaultInfo{Name: name}, accessReview{cluster: "provider", verb: "bind", name: export})
		require.NoError(t, err)
		return allowed
	}
	for range 2 {
		require.True(t, may("alice", "e"))
		require.False(t, may("alice", "other"))
		require.False(t, may("bob", "e"))
	}
	require.EqualValues(t, 4, requests.Load())

	server.Close()
	_, err := r.remote(t.Context(), there, &user.DefaultInfo{Name: "alice"}, accessReview{cluster: "provider", verb: "bind", name: "e"})
	require.ErrorIs(t, err, peers.ErrUnreachable)
}
