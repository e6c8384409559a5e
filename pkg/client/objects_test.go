package client

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// TestObjects compares objects with a map, with few and many objects.
func TestObjects(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		var o *objects[local, *corev1.ConfigMap]
		want := map[local]*corev1.ConfigMap{}
		for step := range 600 {
			// Names are used in two namespaces and on two shards.
			key := local{fmt.Sprint(r.IntN(2)), fmt.Sprint(r.IntN(2)), fmt.Sprint(r.IntN(1 + step/40))}
			_, known := want[key]
			switch {
			case len(want) == 0:
				o = &objects[local, *corev1.ConfigMap]{key: key, one: &corev1.ConfigMap{}}
				want[key] = o.one
			case known && len(want) > 1 && r.IntN(2) == 0:
				o.remove(key)
				delete(want, key)
			default:
				obj := &corev1.ConfigMap{}
				o.set(key, obj)
				want[key] = obj
			}
			require.Equal(t, len(want), o.len())
			require.Equal(t, want, maps.Collect(o.all))
			for _, key := range []local{key, {"0", "1", "none"}} {
				got, found := o.get(key)
				expected, there := want[key]
				require.Equal(t, there, found)
				require.Same(t, expected, got)
			}
		}
	}
}
