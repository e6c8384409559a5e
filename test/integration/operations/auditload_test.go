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

// moody is an audit webhook that takes events, fails or hangs.
type moody struct {
	*httptest.Server

	mu sync.Mutex
	// hangs holds calls until it is closed, if it is not nil; fails refuses them.
	hangs chan struct{}
	fails bool
	// taken are the IDs of events that were taken, held the number of those in calls
	// that hang, failed that of those that were refused.
	taken        map[string]bool
	held, failed int
}

func newMoody(t *testing.T) *moody {
	t.Helper()
	m := &moody{taken: map[string]bool{}}
	m.Server = httptest.NewServer(http.HandlerFunc(m.serve))
	t.Cleanup(m.Close)
	return m
}

func (m *moody) serve(w http.ResponseWriter, r *http.Request) {
	var list auditv1.EventList
	if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hangs != nil {
		m.held += len(list.Items)
		hangs := m.hangs
		m.mu.Unlock()
		select {
		case <-hangs:
		case <-r.Context().Done():
		}
		m.mu.Lock()
		if m.hangs == hangs { // the caller has given up, and sends them again
			m.held -= len(list.Items)
		}
		return
	}
	if m.fails {
		m.failed += len(list.Items)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	for _, event := range list.Items {
		m.taken[string(event.AuditID)] = true
	}
}

// turn has it fail, or hang until what it returns is called.
func (m *moody) turn(fails, hangs bool) (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fails, m.hangs, m.held = fails, nil, 0
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

func (m *moody) seen() (taken map[string]bool, held, failed int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.taken), m.held, m.failed
}

// TestAuditWebhookUnderLoad: whatever the audit webhook of a shard does, requests go
// on; what waits for it is bounded in events and in bytes, also on its way; what is
// lost is counted; when it is back it gets events again; and a shard stops while
// it hangs.
func TestAuditWebhookUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: floods a server")
	}
	t.Parallel()
	const places, size, batch, long, tick = 100, 1 << 20, 10, 40 << 10, 10 * time.Millisecond
	m := newMoody(t)
	dir := t.TempDir()
	c := harness.Start(t, harness.Options{
		Mode: harness.Processes, Without: []string{"cache-server", "front-proxy"},
		ExtraArgs: map[string][]string{"shard": {
			"--audit-policy-file", kit.WriteFile(t, dir, "policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- {level: Metadata, nonResourceURLs: [/version]}\n- {level: None}\n"),
			"--audit-webhook-config-file", kit.WriteFile(t, dir, "webhook.yaml", `{"apiVersion":"v1","kind":"Config","current-context":"c",
"clusters":[{"name":"c","cluster":{"server":"`+m.URL+`"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`),
			fmt.Sprintf("--audit-webhook-batch-buffer-size=%d", places), fmt.Sprintf("--audit-webhook-batch-buffer-bytes=%d", size),
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
			code, body := kit.Do(t, in, kit.Request{Path: "/version?" + query, Header: http.Header{"Audit-ID": {last}}})
			require.Equal(t, http.StatusOK, code, "%s", body)
		}
		return last
	}
	lost := func(plugin string) int { return auditErrors(t, c.Shard(0), plugin) }
	eventually := func(what string, condition func() bool) {
		t.Helper()
		require.Eventually(t, condition, kit.Timeout, tick, what)
	}
	arrives := func(id string) bool {
		taken, _, _ := m.seen()
		return taken[id]
	}
	first := send(1, "")
	eventually("an event arrives", func() bool { return arrives(first) })

	// It fails: after five times an event is given up, and counted.
	m.turn(true, false)
	send(20, "")
	eventually("what could not be delivered is counted", func() bool { return lost("webhook") == 20 })
	_, _, failed := m.seen()
	require.Equal(t, 5*20, failed, "each is tried five times")

	// It hangs: no more events are held than fit, on the way or not.
	for query, most := range map[string]int{"": places, strings.Repeat("x", long): size / long} {
		release := m.turn(false, true)
		t.Cleanup(release)
		before := lost("buffered")
		send(3*places, query)
		dropped := lost("buffered") - before
		require.GreaterOrEqual(t, dropped, 3*places-most, "events that are lost where %d fit", most)
		require.Less(t, dropped, 3*places)
		_, held, _ := m.seen()
		require.LessOrEqual(t, held, most, "events in calls that hang")
		release()
		eventually("there is room again", func() bool {
			return arrives(send(1, "")) || arrives(fmt.Sprintf("audited-%d", sent-1))
		})
	}

	// It hangs for good: the shard does not wait for 30 s five times.
	t.Cleanup(m.turn(false, true))
	send(places, "")
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

// auditErrors returns how many events a server says it has lost.
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
