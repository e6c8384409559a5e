package noisyneighbors

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
)

// tokens sends many tokens of an issuer with a slow claim mapping. The front-proxy evaluates it
// before authentication, and must respond to requests of others meanwhile.
func tokens(t *testing.T, w *world) {
	const sent = maxAnonymousConnections - 10
	issuer, sign := harness.Issuer(t)
	token := func(subject string) string {
		return sign(map[string]any{"iss": issuer.URL, "aud": "x", "sub": subject, "exp": time.Now().Add(time.Hour).Unix()})
	}
	ca, err := json.Marshal(string(harness.CABundle(issuer)))
	require.NoError(t, err)
	// Allowed: about 1,800 instructions for each of 10,000 characters, which take more than 0.1 s.
	w.attacker.create(t, authenticationPath, fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceAuthenticationConfiguration","metadata":{"name":%q},"spec":{"jwt":[{"issuer":{"url":%q,"audiences":["x"],"audienceMatchPolicy":"MatchAny","certificateAuthority":%s},
		"claimMappings":{"username":{"expression":"claims.sub.matches('(a?){600}c$') ? 'x' : 'y'"},"groups":{"expression":"[]"}}}]}}`, w.id, issuer.URL, ca))
	w.attacker.create(t, "/apis/tenancy.kcp.io/v1alpha1/workspacetypes", fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":%[1]q},"spec":{"extend":{"with":[{"name":"universal","path":"root"}]},"authenticationConfigurations":[{"name":%[1]q}]}}`, w.id))
	w.attacker.create(t, workspacesPath, fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":%[1]q},"spec":{"type":{"name":%[1]q,"path":"root:attacker"}}}`, w.id))
	require.Eventually(t, func() bool {
		return strings.Contains(string(w.attacker.must(t, http.MethodGet, workspacesPath+"/"+w.id, "")), `"phase":"Ready"`)
	}, testTimeout, tick)

	minPaused := rest.CopyConfig(w.attacker.config)
	minPaused.Host += ":" + w.id
	reviewer := newTenant(t, minPaused)
	reviewer.untilResponse(t, http.MethodPost, "/apis/authentication.k8s.io/v1/tokenreviews", fmt.Sprintf(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":%q}}`, token("aaaa")), http.StatusCreated, `"authenticated":true`, "the issuer is not effective")
	config := rest.AnonymousClientConfig(minPaused)
	config.BearerToken = token(strings.Repeat("a", 10_000))
	user := newTenant(t, config)
	var pending sync.WaitGroup
	codes := make(chan int, sent)
	for range sent {
		pending.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			code, _, err := user.call(ctx, http.MethodGet, configMaps, "")
			if err != nil {
				t.Errorf("request with a token failed: %v", err)
			}
			codes <- code
		})
	}
	for len(codes) < sent/2 {
		w.quiet.must(t, http.MethodGet, configMaps, "")
	}
	pending.Wait()
	close(codes)
	for code := range codes {
		require.Contains(t, []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests}, code)
	}
	w.quiet.must(t, http.MethodGet, configMaps, "")
}
