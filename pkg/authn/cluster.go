package authn

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"github.com/shardplane/shardplane/pkg/authn/serviceaccount"
	"github.com/shardplane/shardplane/pkg/request"
)

// WithTokenCluster sends requests without a logical cluster to that of the service account of their token,
// because programs in a cluster are configured with only a host and a token. The token is not verified here:
// it is valid only in the logical cluster that it claims.
func WithTokenCluster(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token, ok := BearerToken(r.Header); ok && hasTenantPath(r.URL.Path) {
			if cluster, ok := serviceaccount.ClaimedCluster(token); ok {
				prefix := request.ClusterPath(cluster.String())
				r = r.Clone(r.Context())
				r.URL.Path = prefix + r.URL.Path
				if r.URL.RawPath != "" {
					r.URL.RawPath = prefix + r.URL.RawPath
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// hasTenantPath reports whether only logical clusters serve the path.
func hasTenantPath(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return slices.Contains([]string{"api", "apis", "openapi", "version"}, first)
}

// BearerToken returns the bearer token of a request without verifying it.
func BearerToken(header http.Header) (string, bool) {
	authorization := strings.TrimSpace(header.Get("Authorization"))
	if authorization == "" {
		return webSocketToken(header)
	}
	scheme, token, ok := strings.Cut(authorization, " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return "", false
	}
	// As in upstream's authenticator, a token cannot start with a space.
	return token, token != "" && !strings.HasPrefix(token, " ")
}

const (
	// protocolHeader contains the WebSocket subprotocols that a client offers. One of them may be a bearer token, because
	// browsers cannot set other headers of such a request.
	protocolHeader = "Sec-Websocket-Protocol"
	tokenProtocol  = "base64url.bearer.authorization.k8s.io."
)

// webSocketToken returns the bearer token among the subprotocols of a WebSocket request.
func webSocketToken(header http.Header) (string, bool) {
	for _, protocol := range protocols(header) {
		if encoded, ok := strings.CutPrefix(protocol, tokenProtocol); ok {
			token, err := base64.RawURLEncoding.DecodeString(encoded)
			return string(token), err == nil && len(token) > 0
		}
	}
	return "", false
}

// DropWebSocketTokens removes bearer tokens from the WebSocket subprotocols, so that the next server does not
// receive them.
func DropWebSocketTokens(header http.Header) {
	all := protocols(header)
	header.Del(protocolHeader)
	for _, protocol := range all {
		if !strings.HasPrefix(protocol, tokenProtocol) {
			header.Add(protocolHeader, protocol)
		}
	}
}

func protocols(header http.Header) []string {
	var all []string
	for _, value := range header.Values(protocolHeader) {
		for protocol := range strings.SplitSeq(value, ",") {
			if protocol = strings.TrimSpace(protocol); protocol != "" {
				all = append(all, protocol)
			}
		}
	}
	return all
}
