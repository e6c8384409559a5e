package neighbours

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// overdue: writes of the attacker that compute long after it has disconnected keep their seats, and the
// attacker gets 429 until they end.
func overdue(t *testing.T, w *world) {
	group := w.mark + ".overdue.example"
	crd := things(group, "v1")
	text := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["text"]
	text.Pattern = "(a?){30}c$" // within the limits: each character is compared with some 100 states, and 0.8 s are needed
	crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["text"] = text
	w.attacker.define(t, crd)
	w.quiet.define(t, things(group, "v1"))
	robot := w.robot(t, "overdue")

	const sent = 12
	computing := func() float64 { return counters(t, "shardplane_watchdog_overdue_requests", nil) }
	throttled := counters(t, "shardplane_watchdog_throttled_requests_total", nil)
	slow := thing(group, "v1", "slow", strings.Repeat("a", 1_200_000))
	// Again and again, because some may have to wait for a seat until the attacker disconnects.
	require.Eventually(t, func() bool {
		var pending sync.WaitGroup
		for range sent {
			pending.Go(func() {
				ctx, disconnect := context.WithTimeout(t.Context(), time.Second)
				defer disconnect()
				_, _, _ = robot.call(ctx, http.MethodPost, "/apis/"+group+"/v1/things", slow)
			})
		}
		pending.Wait()
		for range 100 {
			code, body, err := robot.call(t.Context(), http.MethodGet, configMaps, "")
			if err == nil && code == http.StatusTooManyRequests && strings.Contains(string(body), "still being executed") {
				return true
			}
		}
		return false
	}, testTimeout, tick)
	w.quiet.must(t, http.MethodPost, "/apis/"+group+"/v1/things", thing(group, "v1", "mine", ""))
	w.quiet.must(t, http.MethodGet, configMaps, "")
	require.True(t, seen(func() bool { return counters(t, "shardplane_watchdog_throttled_requests_total", nil) > throttled }))
	require.Eventually(t, func() bool { return seen(func() bool { return computing() == 0 }) }, testTimeout, tick)
	robot.mayRead(t)
}
