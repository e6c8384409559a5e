package noisyneighbors

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// overdue checks that writes which compute after the attacker has disconnected keep their seats,
// and that the attacker gets 429 until they end.
func overdue(t *testing.T, w *world) {
	group := w.id + ".overdue.example"
	crd := things(group, "v1")
	text := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["text"]
	text.Pattern = "(a?){30}c$" // allowed: each character is compared with about 100 states, which takes 0.8 s
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["text"] = text
	w.attacker.define(t, crd)
	w.quiet.define(t, things(group, "v1"))
	account := w.serviceAccount(t, "overdue")

	const sent = 12
	computing := func() float64 { return w.metric(t, "shardplane_watchdog_overdue_requests") }
	throttled := w.metric(t, "shardplane_watchdog_throttled_requests_total")
	slow := thing(group, "v1", "slow", strings.Repeat("a", 1_200_000))
	// Repeat this, because some may wait for a seat until the attacker disconnects.
	require.Eventually(t, func() bool {
		var pending sync.WaitGroup
		for range sent {
			pending.Go(func() {
				ctx, disconnect := context.WithTimeout(t.Context(), time.Second)
				defer disconnect()
				_, _, _ = account.call(ctx, http.MethodPost, "/apis/"+group+"/v1/things", slow)
			})
		}
		pending.Wait()
		for range 100 {
			code, body, err := account.call(t.Context(), http.MethodGet, configMaps, "")
			if err == nil && code == http.StatusTooManyRequests && strings.Contains(string(body), "still being executed") {
				return true
			}
		}
		return false
	}, testTimeout, tick)
	w.quiet.must(t, http.MethodPost, "/apis/"+group+"/v1/things", thing(group, "v1", "mine", ""))
	w.quiet.must(t, http.MethodGet, configMaps, "")
	require.Greater(t, w.metric(t, "shardplane_watchdog_throttled_requests_total"), throttled)
	require.Eventually(t, func() bool { return computing() == 0 }, testTimeout, tick)
	account.waitUntilAuthorized(t)
}
