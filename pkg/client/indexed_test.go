package client

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

var byValue = map[string]IndexFunc[*corev1.ConfigMap]{"value": func(cm *corev1.ConfigMap) []string { return slices.Collect(maps.Values(cm.Data)) }}

// TestIndexes compares an index with the objects, for values of no, one and several objects, and for objects with
// duplicate values.
func TestIndexes(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 5))
		s := newStore(byValue)
		want := map[Key]*corev1.ConfigMap{}
		for step := range 400 {
			key := Key{Cluster: "one", Name: fmt.Sprint(r.IntN(1 + step/20))}
			if r.IntN(3) == 0 {
				s.remove(key)
				delete(want, key)
			} else {
				want[key] = &corev1.ConfigMap{Data: map[string]string{"a": fmt.Sprint(r.IntN(6)), "b": fmt.Sprint(r.IntN(6))}}
				s.set(key, want[key])
			}
			for value := range 6 {
				got, err := s.byIndex("value", fmt.Sprint(value))
				require.NoError(t, err)
				expected := map[*corev1.ConfigMap]bool{}
				for _, cm := range want {
					if slices.Contains(slices.Collect(maps.Values(cm.Data)), fmt.Sprint(value)) {
						expected[cm] = true
					}
				}
				require.Len(t, got, len(expected))
				for _, cm := range got {
					require.True(t, expected[cm], "each object must be found once, unchanged")
					delete(expected, cm)
				}
			}
		}
		for key := range want {
			s.remove(key)
		}
		require.Empty(t, s.indices["value"], "unused values must be removed from the index")
	}
}

// TestIndexMemory: a value of one object, e.g. a path, does not allocate a map.
func TestIndexMemory(t *testing.T) {
	const objects = 5000
	allocated := func() uint64 {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.TotalAlloc
	}
	perObject := func(indexers map[string]IndexFunc[*corev1.ConfigMap]) float64 {
		s := newStore(indexers)
		before := allocated()
		for n := range objects {
			s.set(Key{Cluster: logicalcluster.Name(fmt.Sprint("cluster", n)), Name: "cluster"}, &corev1.ConfigMap{Data: map[string]string{"a": fmt.Sprint("value", n)}})
		}
		return float64(allocated()-before) / objects
	}
	require.Less(t, perObject(byValue)-perObject(nil), 400.0, "bytes per object; a map per value would take more than 700")
}
