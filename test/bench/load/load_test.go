package load

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
)

var rangeOf = regexp.MustCompile(`^shardRange\(object\.metadata\.uid, '(0x[0-9a-f]{16})', '(0x1?[0-9a-f]{16})'\)$`)

// TestShardSelectors checks that the parts of a ring meet and cover it.
func TestShardSelectors(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7, 64, 1000} {
		end := "0x0000000000000000"
		for i := range n {
			match := rangeOf.FindStringSubmatch(shardSelector(i, n))
			require.NotNil(t, match, "part %d of %d: %s", i, n, shardSelector(i, n))
			require.Equal(t, end, match[1], "part %d of %d", i, n)
			end = match[2]
		}
		require.Equal(t, "0x10000000000000000", end)
	}
}

// TestRun checks that a phase does what its limit says, on all clients.
func TestRun(t *testing.T) {
	p := &phase{limit: 100}
	var sum atomic.Int64
	run(t.Context(), p, make([]struct{}, 7), func(_ context.Context, _ struct{}, n int) error {
		sum.Add(int64(n))
		return nil
	})
	require.Equal(t, 100, p.recorder.Count())
	require.Equal(t, int64(99*100/2), sum.Load(), "each number once")
}

// TestRunEndsWhenNothingWorks checks that a phase does not hammer a server that
// refuses everything.
func TestRunEndsWhenNothingWorks(t *testing.T) {
	p := &phase{}
	elapsed := run(t.Context(), p, make([]struct{}, 4), func(context.Context, struct{}, int) error { return errors.New("refused") })
	_, err := p.result("create", "server", elapsed)
	require.EqualError(t, err, "refused")
	require.Less(t, p.started.Load(), int64(maxErrors+20))
}

// TestRunEndsWithItsTime checks that what the end of a phase cuts off is no
// failure.
func TestRunEndsWithItsTime(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := &phase{interval: time.Hour}
	elapsed := run(ctx, p, make([]struct{}, 2), func(ctx context.Context, _ struct{}, _ int) error {
		cancel()
		return ctx.Err()
	})
	_, err := p.result("create", "server", elapsed)
	require.ErrorContains(t, err, "give it more")
	require.NoError(t, p.recorder.FirstError())
}

func TestNewTarget(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(file, []byte(strings.TrimSpace(`
apiVersion: v1
kind: Config
current-context: root
clusters:
- {name: root, cluster: {server: "https://example.com:6443/clusters/root"}}
contexts:
- {name: root, context: {cluster: root}}
`)), 0o600))
	target, err := NewTarget("proxy", file, "", true)
	require.NoError(t, err)
	require.Equal(t, "https://example.com:6443/clusters/root:a", target.In("root:a").rest().Host)
	require.Equal(t, "https://example.com:6443", target.rest().Host)

	plain, err := NewTarget("plain", file, "root", false)
	require.NoError(t, err)
	require.Equal(t, "https://example.com:6443", plain.In("*").rest().Host)

	_, err = NewTarget("proxy", file, "absent", true)
	require.ErrorContains(t, err, file)
	require.ErrorContains(t, err, fmt.Sprintf("%q", "absent"))
}

func TestSumOf(t *testing.T) {
	metrics := []byte("# HELP a_total x\na_total{group=\"unexpected\",resource=\"x y\"} 2\na_total{group=\"unexpected\"} 3e+01\na_total{group=\"apps\"} 5\nb 1.5\n")
	require.InDelta(t, 32, sumOf(metrics, `a_total{group="unexpected"`), 0)
	require.InDelta(t, 1.5, sumOf(metrics, "b"), 0)
	require.Zero(t, sumOf(metrics, "c"))
}

// TestCollector checks that a server of this version of Go says what its collector has taken.
func TestCollector(t *testing.T) {
	read := func() Collector {
		answer := httptest.NewRecorder()
		legacyregistry.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		return collectorOf(answer.Body.Bytes())
	}
	before := read()
	runtime.GC()
	debug.FreeOSMemory()
	took := read().Since(before)
	require.GreaterOrEqual(t, took.Collections, 2)
	require.Positive(t, took.Processor)
	require.Positive(t, took.Allocated)
	require.Positive(t, read().Returning)
}

// TestTracker: each object counts once, when it is there for the first time.
func TestTracker(t *testing.T) {
	begin := time.Now()
	tracked := &tracker{
		begin: begin, started: map[string]time.Time{"late": begin.Add(time.Second)}, reached: map[string]bool{}, changed: make(chan struct{}, 1),
		there: func(u *unstructured.Unstructured) bool { return u.GetLabels()["there"] == "yes" },
	}
	see := func(kind watch.EventType, cluster, there string, after time.Duration) {
		u := &unstructured.Unstructured{}
		u.SetAnnotations(map[string]string{clusterAnnotation: cluster})
		u.SetLabels(map[string]string{"there": there})
		tracked.take(watch.Event{Type: kind, Object: u}, begin.Add(after))
		tracked.signal()
	}
	see(watch.Added, "one", "no", time.Second)
	see(watch.Deleted, "other", "yes", time.Second)
	see(watch.Modified, "one", "yes", 2*time.Second)
	see(watch.Modified, "one", "yes", 3*time.Second)
	see(watch.Added, "late", "yes", 5*time.Second)
	require.NoError(t, tracked.wait(t.Context(), 2))
	require.Equal(t, 5*time.Second, tracked.latest())
	result := tracked.times.Median("x", "y")
	require.Equal(t, 2, result.Count)
	require.InDelta(t, 4000, result.Latency.Max, 0)
	require.InDelta(t, 2000, result.Latency.P50, 0)
	tracked.take(watch.Event{Type: watch.Error}, begin)
	require.ErrorContains(t, tracked.wait(t.Context(), 3), "2 of 3 got there: the watch failed")
}

// TestScaleWithoutExports: workspaces alone are much of something, too.
func TestScaleWithoutExports(t *testing.T) {
	progress := func(string, ...any) { require.Fail(t, "nothing is to be made") }
	s := &Scale{Clusters: []string{"a", "b"}, Objects: 1, Creators: 1}
	results, err := s.Make(t.Context(), Target{config: &rest.Config{Host: "https://nowhere"}}, progress)
	require.NoError(t, err)
	require.Empty(t, results)
	s.Exports = 3
	_, err = s.Make(t.Context(), Target{}, progress)
	require.ErrorContains(t, err, "2 logical clusters cannot have 3 exports")
}
