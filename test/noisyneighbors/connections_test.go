package noisyneighbors

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

// addresses returns the addresses of all servers by name.
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

// dial opens an unauthenticated connection, without TLS if protocol is empty.
func dial(t *testing.T, address, protocol string) net.Conn {
	t.Helper()
	opened, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = opened.Close() })
	if protocol == "" {
		return opened
	}
	secured := tls.Client(opened, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}) //nolint:gosec // attackers do not verify servers
	require.NoError(t, secured.HandshakeContext(t.Context()))
	return secured
}

// closed reports whether the server has closed a connection, waiting for one tick.
func closed(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(tick))
	for {
		if _, err := c.Read(make([]byte, 1<<10)); err != nil { // HTTP/2 starts with settings
			return !errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
}

// connections checks that anonymous connections and connections of one user use no slots of others.
func connections(t *testing.T, w *world) {
	for name, address := range w.addresses(t) {
		quiet := newTenant(t, w.quiet.config)
		quiet.must(t, http.MethodGet, configMaps, "")
		var mine []net.Conn
		for i := range 2 * maxAnonymousConnections {
			mine = append(mine, dial(t, address, []string{"", "http/1.1", "h2"}[i%3]))
		}
		// Older connections are closed when the next one is accepted.
		last := dial(t, address, "http/1.1")
		remaining := slices.Concat(mine, []net.Conn{last})
		for deadline := time.Now().Add(testTimeout); len(remaining) > maxAnonymousConnections && time.Now().Before(deadline); {
			remaining = slices.DeleteFunc(remaining, closed)
		}
		require.LessOrEqual(t, len(remaining), maxAnonymousConnections, "too many anonymous connections to the %s", name)
		require.NotEmpty(t, remaining, "no anonymous connection to the %s remains", name)
		for _, u := range []*tenant{quiet, newTenant(t, w.quiet.config)} {
			u.must(t, http.MethodGet, configMaps, "")
		}
	}

	account := w.serviceAccount(t, "connecting")
	codes := map[int]int{}
	before := w.metric(t, `shardplane_limits_rejected_total{limit="connections-per-user"}`)
	for range maxUserConnections + 5 {
		// Each with its own connection, which remains open.
		config := rest.CopyConfig(account.config)
		config.Dial = (&net.Dialer{}).DialContext
		code, body, err := newTenant(t, config).call(t.Context(), http.MethodGet, configMaps, "")
		require.NoError(t, err)
		codes[code]++
		if code == http.StatusTooManyRequests {
			require.Contains(t, string(body), "--limit connections-per-user=")
		}
	}
	require.Positive(t, codes[http.StatusTooManyRequests])
	require.Positive(t, codes[http.StatusOK])
	require.LessOrEqual(t, codes[http.StatusOK], maxUserConnections, "%v", codes)
	require.True(t, countersMatch(w.metric(t, `shardplane_limits_rejected_total{limit="connections-per-user"}`)-before == float64(codes[http.StatusTooManyRequests])), "%v", codes)
	newTenant(t, w.quiet.config).must(t, http.MethodGet, configMaps, "")
	account.must(t, http.MethodGet, configMaps, "")
}
