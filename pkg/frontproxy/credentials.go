package frontproxy

import (
	"context"
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
)

// identityHeaders start the names of headers that servers of an installation
// send each other, and that count for nothing from outside.
var identityHeaders = []string{"x-remote-", "x-kcp-internal-"}

// dropIdentity removes what only the front-proxy may say.
func dropIdentity(header http.Header) {
	for name := range header {
		for _, prefix := range identityHeaders {
			if len(name) >= len(prefix) && strings.EqualFold(strings.ReplaceAll(name[:len(prefix)], "_", "-"), prefix) {
				delete(header, name)
			}
		}
	}
}

type tokenKey struct{}

// withCredentials takes identity headers off requests from outside, and keeps
// the tokens of the development cluster, which authentication takes off: they
// are passed on to shards, which have to accept them themselves.
func withCredentials(next http.Handler, devTokens map[string]*user.DefaultInfo) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		dropIdentity(r.Header)
		if len(devTokens) > 0 {
			_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
			if devTokens[token] != nil {
				r = r.WithContext(context.WithValue(r.Context(), tokenKey{}, token))
			}
		}
		next.ServeHTTP(w, r)
	})
}

// passedOn returns the token that goes to the shard instead of the user; empty
// for users that are not known by a token of the development cluster.
func (s *Server) passedOn(ctx context.Context, who user.Info) string {
	token, _ := ctx.Value(tokenKey{}).(string)
	if known := s.devTokens[token]; known != nil && known.Name == who.GetName() && known.UID == who.GetUID() {
		return token
	}
	return ""
}
