package customresource

import (
	"encoding/json"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
)

// BenchmarkServingInfo measures what a schema takes that is served, beside others of the same
// resource, with which it shares the watch cache: live heap and goroutines.
func BenchmarkServingInfo(b *testing.B) {
	for name, fields := range map[string]int{"small": 1, "large": 500} {
		b.Run(name, func(b *testing.B) {
			const schemas = 50
			bound := newBoundAPIs(map[string]boundAPI{})
			s := startServer(b, serverOptions{sources: []definitions.Source{bound}, release: time.Hour})
			size := 0
			serve := func(i int) {
				properties := map[string]apiextensionsv1.JSONSchemaProps{}
				for field := range fields {
					properties[fmt.Sprintf("field%dOf%d", field, i)] = apiextensionsv1.JSONSchemaProps{Type: "string", Description: "What a field is for, in as many words as people write about one on the average."}
				}
				cluster := fmt.Sprintf("%s-%d", name, i)
				api := boundWith(b, "aaaa", properties)
				data, err := json.Marshal(api.Spec())
				require.NoError(b, err)
				size = len(data)
				bound.change(definitions.Change{}, api, cluster)
				in := s.Dynamic(b, cluster).Resource(widgets).Namespace("default")
				_, err = in.Create(b.Context(), widget("a", map[string]any{"size": int64(1)}), metav1.CreateOptions{})
				require.NoError(b, err)
				_, err = in.List(b.Context(), metav1.ListOptions{})
				require.NoError(b, err)
			}
			serve(0) // the watch cache, and what all have in common
			for b.Loop() {
				heap, goroutines := liveHeap(), runtime.NumGoroutine()
				for i := range schemas {
					serve(i + 1)
				}
				b.ReportMetric(float64(liveHeap()-heap)/schemas, "B/schema")
				b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/schemas, "goroutines/schema")
			}
			b.ReportMetric(float64(size), "B/JSON")
		})
	}
}

// liveHeap returns how many bytes are in use after garbage is collected.
func liveHeap() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc) //nolint:gosec // no process has that much
}
