package operations

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// unreliableWebhook is an audit webhook that accepts events, fails or hangs.
type unreliableWebhook struct {
	*httptest.Server

	mu sync.Mutex
	// hangs blocks requests until it is closed, unless it is nil. fails rejects them.
	hangs chan struct{}
	fails bool
	// taken contains the IDs of accepted events. held is the number of events in hanging requests, and failed that of rejected events.
	accepted        map[string]bool
	pending, failed int
}

func newUnreliableWebhook(t *testing.T) *unreliableWebhook {
	t.Helper()
	m := &unreliableWebhook{accepted: map[string]bool{}}
	m.Server = httptest.NewServer(http.HandlerFunc(m.serve))
	t.Cleanup(m.Close)
	return m
}

func (m *unreliableWebhook) serve(w http.ResponseWriter, r *http.Request) {
	var list auditv1.EventList
	if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hangs != nil {
		m.pending += len(list.Items)
		hangs := m.hangs
		m.mu.Unlock()
		select {
		case <-hangs:
		case <-r.Context().Done():
		}
		m.mu.Lock()
		if m.hangs == hangs { // the client has canceled the request and will retry
			m.pending -= len(list.Items)
		}
		return
	}
	if m.fails {
		m.failed += len(list.Items)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	for _, event := range list.Items {
		m.accepted[string(event.AuditID)] = true
	}
}

// turn lets the webhook fail, or hang until release is called.
func (m *unreliableWebhook) turn(fails, hangs bool) (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fails, m.hangs, m.pending = fails, nil, 0
	if !hangs {
		return func() {}
	}
	until := make(chan struct{})
	m.hangs = until
	return sync.OnceFunc(func() {
		m.turn(false, false)
		close(until)
	})
}

func (m *unreliableWebhook) seen() (accepted map[string]bool, pending, failed int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.accepted), m.pending, m.failed
}

// TestAuditWebhookUnderLoad checks that requests to a shard do not depend on the audit webhook: pending events are limited in number and
// bytes, lost events are counted, events are delivered again when the webhook recovers, and a shard stops while the webhook hangs.
func TestAuditWebhookUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: floods a server")
	}
	t.Parallel()
	const capacity, size, batch, long, tick = 100, 1 << 20, 10, 40 << 10, 10 * time.Millisecond
	m := newUnreliableWebhook(t)
	dir := t.TempDir()
	c := harness.Start(t, harness.Options{
		Mode: harness.Processes, Without: []string{"cache-server", "front-proxy"},
		ExtraArgs: map[string][]string{"shard": {
			"--audit-policy-file", kit.WriteFile(t, dir, "policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- {level: Metadata, nonResourceURLs: [/version]}\n- {level: None}\n"),
			"--audit-webhook-config-file", kit.WriteFile(t, dir, "webhook.yaml", `{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":"`+m.URL+`"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`),
			fmt.Sprintf("--audit-webhook-batch-buffer-size=%d", capacity), fmt.Sprintf("--audit-webhook-batch-buffer-bytes=%d", size),
			fmt.Sprintf("--audit-webhook-batch-max-size=%d", batch), "--audit-webhook-batch-max-wait=10ms",
			"--audit-webhook-initial-backoff=1ms",
		}},
	})
	in, sent := harness.In(c.Shard(0), "system:admin"), 0
	send := func(n int, query string) (last string) {
		t.Helper()
		for range n {
			sent++
			last = fmt.Sprintf("audited-%d", sent)
			kit.RequireCode(t, in, kit.Request{Path: "/version?" + query, Header: http.Header{"Audit-ID": {last}}}, http.StatusOK)
		}
		return last
	}
	lost := func(plugin string) int { return auditErrors(t, c.Shard(0), plugin) }
	eventually := func(what string, condition func() bool) {
		t.Helper()
		require.Eventually(t, condition, kit.Timeout, tick, what)
	}
	arrives := func(id string) bool {
		accepted, _, _ := m.seen()
		return accepted[id]
	}
	first := send(1, "")
	eventually("the event is delivered", func() bool { return arrives(first) })

	// If the webhook fails, events are dropped and counted after five attempts.
	m.turn(true, false)
	send(20, "")
	eventually("the dropped events are counted", func() bool { return lost("webhook") == 20 })
	_, _, failed := m.seen()
	require.Equal(t, 5*20, failed, "each event must be tried five times")

	// If the webhook hangs, the number of pending events must be limited, including those in requests.
	for query, most := range map[string]int{"": capacity, strings.Repeat("x", long): size / long} {
		release := m.turn(false, true)
		t.Cleanup(release)
		before := lost("buffered")
		send(3*capacity, query)
		dropped := lost("buffered") - before
		require.GreaterOrEqual(t, dropped, 3*capacity-most, "dropped events with capacity for %d", most)
		require.Less(t, dropped, 3*capacity)
		_, pending, _ := m.seen()
		require.LessOrEqual(t, pending, most, "events in hanging requests")
		release()
		released := sent
		eventually("an event is delivered", func() bool {
			send(1, "")
			accepted, _, _ := m.seen()
			for n := released + 1; n <= sent; n++ {
				if accepted[fmt.Sprintf("audited-%d", n)] {
					return true
				}
			}
			return false
		})
	}

	// The webhook hangs while the shard stops, which must not wait for five timeouts of 30 s.
	t.Cleanup(m.turn(false, true))
	send(capacity, "")
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		c.Component("root").Stop()
	}()
	eventually("the shard stops", func() bool {
		select {
		case <-stopped:
			return true
		default:
			return false
		}
	})
}

// auditErrors returns the number of lost events in the metrics of a server.
func auditErrors(t *testing.T, config *rest.Config, plugin string) int {
	t.Helper()
	_, body := kit.Do(t, config, kit.Request{Path: "/metrics"})
	for lines := bufio.NewScanner(bytes.NewReader(body)); lines.Scan(); {
		if n, ok := strings.CutPrefix(lines.Text(), fmt.Sprintf("apiserver_audit_error_total{plugin=%q} ", plugin)); ok {
			lost, err := strconv.Atoi(n)
			require.NoError(t, err)
			return lost
		}
	}
	return 0
}
