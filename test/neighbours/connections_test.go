package neighbours

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

// addresses are those of all servers, by name.
func (w *world) addresses(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, name := range []string{"root", "front-proxy", "cache-server"} {
		at, err := url.Parse(w.Component(name).URL)
		require.NoError(t, err)
		found[name] = at.Host
	}
	return found
}

// dial opens a connection that nobody authenticates on; without a protocol it ends
// before TLS.
func dial(t *testing.T, address, protocol string) net.Conn {
	t.Helper()
	opened, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = opened.Close() })
	if protocol == "" {
		return opened
	}
	secured := tls.Client(opened, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}) //nolint:gosec // an attacker does not care
	require.NoError(t, secured.HandshakeContext(t.Context()))
	return secured
}

// closed reports whether the server has closed a connection, as far as that shows within a tick.
func closed(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(tick))
	for {
		if _, err := c.Read(make([]byte, 1<<10)); err != nil { // HTTP/2 begins with settings
			return !errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
}

// connections: connections of the attacker, anonymous ones and those of one user, take
// no places of others.
func connections(t *testing.T, w *world) {
	for name, address := range w.addresses(t) {
		quiet := newTenant(t, w.quiet.config)
		quiet.must(t, http.MethodGet, "/api/v1/namespaces/default/configmaps", "")
		var mine []net.Conn
		for i := range 2 * maxAnonymous {
			mine = append(mine, dial(t, address, []string{"", "http/1.1", "h2"}[i%3]))
		}
		// Those that came before are closed when the next one is accepted.
		last := dial(t, address, "http/1.1")
		left := slices.Concat(mine, []net.Conn{last})
		for deadline := time.Now().Add(testTimeout); len(left) > maxAnonymous && time.Now().Before(deadline); {
			left = slices.DeleteFunc(left, closed)
		}
		require.LessOrEqual(t, len(left), maxAnonymous, "anonymous connections to the %s", name)
		require.NotEmpty(t, left, "the newest ones to the %s", name)
		for _, u := range []*tenant{quiet, newTenant(t, w.quiet.config)} {
			u.must(t, http.MethodGet, "/api/v1/namespaces/default/configmaps", "")
		}
	}

	robot := w.robot(t, "connecting")
	codes := map[int]int{}
	before := w.counted(t, `shardplane_limits_rejected_total{limit="connections-per-user"}`)
	for range maxOfUser + 5 {
		// Each with a connection of its own, which stays open.
		config := rest.CopyConfig(robot.config)
		config.Dial = (&net.Dialer{}).DialContext
		code, body, err := newTenant(t, config).call(t.Context(), http.MethodGet, "/api/v1/namespaces/default/configmaps", "")
		require.NoError(t, err)
		codes[code]++
		if code == http.StatusTooManyRequests {
			require.Contains(t, string(body), "--limit connections-per-user=")
		}
	}
	require.Positive(t, codes[http.StatusTooManyRequests])
	require.Positive(t, codes[http.StatusOK])
	require.LessOrEqual(t, codes[http.StatusOK], maxOfUser, "%v", codes)
	require.True(t, seen(func() bool {
		return w.counted(t, `shardplane_limits_rejected_total{limit="connections-per-user"}`)-before == float64(codes[http.StatusTooManyRequests])
	}), "%v", codes)
	newTenant(t, w.quiet.config).must(t, http.MethodGet, "/api/v1/namespaces/default/configmaps", "")
	robot.must(t, http.MethodGet, "/api/v1/namespaces/default/configmaps", "")
}
