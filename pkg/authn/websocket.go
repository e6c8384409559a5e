package authn

import (
	"encoding/base64"
	"net/http"
	"strings"
)

const (
	// protocolHeader contains the subprotocols of a WebSocket that a client offers. Browsers
	// cannot set other headers of such a request, so that one of them may be a bearer token.
	protocolHeader = "Sec-Websocket-Protocol"
	// tokenProtocol is the prefix of a subprotocol that is a token.
	tokenProtocol = "base64url.bearer.authorization.k8s.io."
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

// DropWebSocketTokens removes bearer tokens from the subprotocols of a WebSocket request, so that
// the next server does not receive them.
func DropWebSocketTokens(header http.Header) {
	all := protocols(header)
	header.Del(protocolHeader)
	for _, protocol := range all {
		if !strings.HasPrefix(protocol, tokenProtocol) {
			header.Add(protocolHeader, protocol)
		}
	}
}

// protocols returns the subprotocols that a request offers.
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
