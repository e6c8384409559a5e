package client

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

const (
	benchClusters = 2000
	benchObjects  = 10 * benchClusters
)

func benchObject(i, rv int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: fmt.Sprintf("name-%d", i/benchClusters), UID: types.UID(fmt.Sprintf("uid-%d", i)), ResourceVersion: fmt.Sprint(rv),
		Annotations: map[string]string{logicalcluster.AnnotationKey: fmt.Sprintf("cluster%09d", i%benchClusters)},
	}}
}

// benchStream returns a stream of an informer, which with ranges holds what is in sixteen of
// them: all.
func benchStream(b *testing.B, ranges bool) (*Informer[*corev1.ConfigMap], *stream) {
	b.Helper()
	factory, err := NewFactory(&rest.Config{Host: "https://127.0.0.1:1"})
	require.NoError(b, err)
	if !ranges {
		i := configMaps.Informer(factory.Wildcard(), InformerOptions[*corev1.ConfigMap]{})
		return i, &stream{connection: &i.connection, sink: &informerSink[*corev1.ConfigMap]{Informer: i}}
	}
	all := Ranges{key: ByCluster}
	for n := range uint64(16) {
		all.intervals = append(all.intervals, Range{First: n << 60, Last: n<<60 + 1<<60 - 1})
	}
	i := configMaps.Informer(factory.Wildcard(), InformerOptions[*corev1.ConfigMap]{Ranges: all})
	i.want(all)
	i.asksHeld(true)
	return i, &stream{connection: &i.connection, sink: &informerSink[*corev1.ConfigMap]{Informer: i, part: &i.holding.held}}
}

// withAndWithoutRanges runs a benchmark for both kinds of informers.
func withAndWithoutRanges(b *testing.B, f func(b *testing.B, ranges bool)) {
	b.Helper()
	for _, ranges := range []bool{false, true} {
		b.Run(fmt.Sprintf("ranges=%t", ranges), func(b *testing.B) { f(b, ranges) })
	}
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// BenchmarkInformerMemory reports what an informer costs per object beside the
// object itself, and what the object costs.
func BenchmarkInformerMemory(b *testing.B) { withAndWithoutRanges(b, benchmarkInformerMemory) }

func benchmarkInformerMemory(b *testing.B, ranges bool) {
	b.Helper()
	var own, object float64
	for b.Loop() {
		start := heap()
		objs := make([]*corev1.ConfigMap, benchObjects)
		for i := range objs {
			objs[i] = benchObject(i, i+1)
		}
		filled := heap()
		s, stream := benchStream(b, ranges)
		for _, obj := range objs {
			require.NoError(b, stream.sink.put(b.Context(), obj))
		}
		end := heap()
		object, own = float64(filled-start)/benchObjects, float64(end-filled)/benchObjects
		runtime.KeepAlive(objs)
		runtime.KeepAlive(s)
	}
	b.ReportMetric(own, "informer-B/object")
	b.ReportMetric(object, "B/object")
}

// BenchmarkInformerEvent is the cost of one MODIFIED event of an informer that
// holds 20,000 objects of 2,000 logical clusters, with one handler, after
// decoding.
func BenchmarkInformerEvent(b *testing.B) { withAndWithoutRanges(b, benchmarkInformerEvent) }

func benchmarkInformerEvent(b *testing.B, ranges bool) {
	b.Helper()
	s, stream := benchStream(b, ranges)
	seen := 0
	s.AddEventHandler(s.KeyHandler(func(Key) { seen++ }))
	for i := range benchObjects {
		require.NoError(b, stream.sink.put(b.Context(), benchObject(i, i+1)))
	}
	objs := make([]*corev1.ConfigMap, benchObjects)
	for i := range objs {
		objs[i] = benchObject(i, benchObjects+i)
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		obj := *objs[n%benchObjects]
		obj.ResourceVersion = strconv.Itoa(2*benchObjects + n)
		if _, err := stream.handle(b.Context(), watch.Event{Type: watch.Modified, Object: &obj}, false); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkListerGet(b *testing.B) {
	s, stream := benchStream(b, false)
	for i := range benchObjects {
		require.NoError(b, stream.sink.put(b.Context(), benchObject(i, i+1)))
	}
	lister := s.Lister().Cluster("cluster000000007")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := lister.Get("default", "name-3"); err != nil {
			b.Fatal(err)
		}
	}
}
