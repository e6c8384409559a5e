package authn

import (
	"net/http"
	"strings"

	"github.com/shardplane/shardplane/pkg/authn/serviceaccount"
	"github.com/shardplane/shardplane/pkg/request"
)

// WithTokenCluster sends requests that name no logical cluster to that of the
// service account whose token they carry. Programs that run in a cluster know
// the server's host and a token, and nothing of logical clusters. The token is
// not checked here: it is for the logical cluster that it says, or refused.
func WithTokenCluster(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !hasTenantPath(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		token, ok := BearerToken(r.Header)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		cluster, ok := serviceaccount.ClaimedCluster(token)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		prefix := request.ClusterPath(cluster.String())
		moved := r.Clone(r.Context())
		moved.URL.Path = prefix + r.URL.Path
		if r.URL.RawPath != "" {
			moved.URL.RawPath = prefix + r.URL.RawPath
		}
		next.ServeHTTP(w, moved)
	})
}

// hasTenantPath reports whether path is one that only logical clusters serve.
func hasTenantPath(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch first {
	case "api", "apis", "openapi", "version":
		return true
	default:
		return false
	}
}

// BearerToken returns the bearer token of a request, which has not been verified.
func BearerToken(header http.Header) (string, bool) {
	authorization := strings.TrimSpace(header.Get("Authorization"))
	if authorization == "" {
		return webSocketToken(header)
	}
	scheme, token, ok := strings.Cut(authorization, " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return "", false
	}
	// A token that starts with a space is none, as it is to authentication.
	return token, token != "" && !strings.HasPrefix(token, " ")
}
