package neighbours

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkNeighbours measures what the quiet tenant waits for one read and one
// write, alone and while the attacker sends what it can: a figure for
// docs/benchmarks.md, of which a busy machine makes what it likes.
func BenchmarkNeighbours(b *testing.B) {
	w := newWorld(b)
	body := func(i int) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"mine"},"data":{"n":"%d"}}`, i)
	}
	const path = "/api/v1/namespaces/default/configmaps"
	w.quiet.must(b, http.MethodPost, path, body(0))
	measure := func(b *testing.B) {
		b.Helper()
		var took []time.Duration
		for i := 0; b.Loop(); i++ {
			start := time.Now()
			w.quiet.must(b, http.MethodGet, path, "")
			w.quiet.must(b, http.MethodPut, path+"/mine", body(i))
			took = append(took, time.Since(start))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	}
	b.Run("alone", measure)
	b.Run("attacked", func(b *testing.B) {
		ctx, stop := context.WithCancel(b.Context())
		var attacks sync.WaitGroup
		text := strings.Repeat("x", 4<<10)
		for i := range 16 {
			attacks.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					name := fmt.Sprintf("a%d-%d", i, n)
					_, _, _ = w.attacker.call(ctx, http.MethodPost, path, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"text":%q}}`, name, text))
					_, _, _ = w.attacker.call(ctx, http.MethodGet, path, "")
					_, _, _ = w.attacker.call(ctx, http.MethodDelete, path+"/"+name, "")
				}
			})
		}
		measure(b)
		stop()
		attacks.Wait()
	})
	code, _, err := w.quiet.call(b.Context(), http.MethodGet, path+"/mine", "")
	require.NoError(b, err)
	require.Equal(b, http.StatusOK, code)
}
