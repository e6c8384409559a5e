package neighbours

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var latencyFlag = flag.Bool("latency", false, "measure what the quiet tenant waits for, before and during each row")

const (
	configMaps = "/api/v1/namespaces/default/configmaps"
	// alone is how long the quiet tenant is measured before a row.
	alone = 3 * time.Second
	// loaded is how long the load lasts.
	loaded = 5 * time.Second
)

// samples are requests of the quiet tenant.
type samples struct {
	took []time.Duration
	bad  map[int]int // by code
}

// sample has the quiet tenant read and write until ctx ends.
func (w *world) sample(ctx context.Context) samples {
	s := samples{bad: map[int]int{}}
	for i := 0; ctx.Err() == nil; i++ {
		start := time.Now()
		for _, send := range []func() (int, []byte, error){
			func() (int, []byte, error) { return w.quiet.call(ctx, http.MethodGet, configMaps, "") },
			func() (int, []byte, error) {
				return w.quiet.call(ctx, http.MethodPut, configMaps+"/latency", fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"latency"},"data":{"n":"%d"}}`, i))
			},
		} {
			if code, _, err := send(); ctx.Err() == nil && (err != nil || code >= http.StatusBadRequest) {
				s.bad[code]++
			}
		}
		if ctx.Err() == nil {
			s.took = append(s.took, time.Since(start))
		}
	}
	slices.Sort(s.took)
	return s
}

func (s samples) at(percent int) time.Duration {
	if len(s.took) == 0 {
		return 0
	}
	return s.took[len(s.took)*percent/100].Round(10 * time.Microsecond)
}

// measured runs a row, and prints what the quiet tenant waits for a read and a write
// before it and during it.
func (w *world) measured(t *testing.T, name string, row func(*testing.T, *world)) {
	if !*latencyFlag {
		row(t, w)
		return
	}
	before, stop := context.WithTimeout(t.Context(), alone)
	quiet := w.sample(before)
	stop()
	during, stop := context.WithCancel(t.Context())
	var attacked samples
	var sampling sync.WaitGroup
	sampling.Go(func() { attacked = w.sample(during) })
	defer func() { // whatever becomes of the row, which may count what these requests do
		stop()
		sampling.Wait()
		fmt.Printf("%-12s alone p50 %8v p99 %8v | during p50 %8v p99 %8v | p99 × %.2f of %d, refused or failed: %v\n", name,
			quiet.at(50), quiet.at(99), attacked.at(50), attacked.at(99), float64(attacked.at(99))/float64(quiet.at(99)), len(attacked.took), attacked.bad)
	}()
	row(t, w)
}

// busy is no attack: it keeps as many cores busy as there are, and sends nothing.
// It says what a row costs others by what its own client computes.
func busy(t *testing.T, _ *world) {
	if !*latencyFlag {
		t.Skip("it is for comparison with -latency only")
	}
	ctx, stop := context.WithTimeout(t.Context(), loaded)
	defer stop()
	var cores sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		cores.Go(func() {
			for sum := sha256.Sum256(nil); ctx.Err() == nil; {
				sum = sha256.Sum256(sum[:])
			}
		})
	}
	cores.Wait()
}

// load is the row of an attacker that has nothing but requests: it writes, reads and
// deletes in sixteen connections.
func load(t *testing.T, w *world) {
	ctx, stop := context.WithTimeout(t.Context(), loaded)
	defer stop()
	var attacks sync.WaitGroup
	text := strings.Repeat("x", 4<<10)
	for i := range 16 {
		attacks.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				name := fmt.Sprintf("a%d-%d", i, n)
				_, _, _ = w.attacker.call(ctx, http.MethodPost, configMaps, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"text":%q}}`, name, text))
				_, _, _ = w.attacker.call(ctx, http.MethodGet, configMaps, "")
				_, _, _ = w.attacker.call(ctx, http.MethodDelete, configMaps+"/"+name, "")
			}
		})
	}
	attacks.Wait()
	code, _, err := w.quiet.call(t.Context(), http.MethodGet, configMaps, "")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
}
