package hashrange_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/sharding"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
)

func TestHash(t *testing.T) {
	for _, value := range []string{"", "a", "2b1f6a0e-7a54-4c26-9c8e-0e3a2a7d9f11", "default"} {
		require.Equal(t, sharding.HashField(value), fmt.Sprintf("%016x", hashrange.Hash(value)))
	}
}

// TestHashOfObjects checks the value that each key hashes, in typed and untyped objects, without allocations.
func TestHashOfObjects(t *testing.T) {
	typed := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "u", Namespace: "n", Annotations: map[string]string{"kcp.io/cluster": "c"}}}
	untyped := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{
		"uid": "u", "namespace": "n", "annotations": map[string]any{"kcp.io/cluster": "c"},
	}}}
	for key, value := range map[hashrange.Key]string{hashrange.UID: "u", hashrange.Namespace: "n", hashrange.Cluster: "c"} {
		for _, obj := range []metav1.Object{typed, untyped} {
			require.Equal(t, hashrange.Hash(value), key.Hash(obj))
			require.Zero(t, testing.AllocsPerRun(100, func() { key.Hash(obj) }), "%s of %T", key.Path(), obj)
		}
		found, err := hashrange.KeyOf(key.Path())
		require.NoError(t, err)
		require.Equal(t, key, found)
	}
	require.Equal(t, hashrange.Hash(""), hashrange.Cluster.Hash(&unstructured.Unstructured{}))
	_, err := hashrange.KeyOf("object.metadata.name")
	require.ErrorContains(t, err, "supported: object.metadata.uid, object.metadata.namespace, object.metadata.cluster")
}

func TestBounds(t *testing.T) {
	for _, i := range []hashrange.Interval{{First: 0, Last: 0}, {First: 1, Last: 1 << 63}, hashrange.Whole, {First: ^uint64(0), Last: ^uint64(0)}} {
		start, end := i.Bounds()
		parsed, some, err := hashrange.Parse(start, end)
		require.NoError(t, err)
		require.True(t, some)
		require.Equal(t, i, parsed)
	}
	_, some, err := hashrange.Parse("0x0000000000000001", "0x0000000000000001")
	require.NoError(t, err)
	require.False(t, some)
	for _, bound := range []string{"", "0x", "0x1", "0x00000000000000FF", "0xg000000000000000", hashrange.End} {
		_, _, err := hashrange.Parse(bound, hashrange.End)
		require.ErrorContains(t, err, "bound of a shard range", bound)
	}
}

// TestDisjoint compares merged intervals with the original ones.
func TestDisjoint(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 5))
	for range 300 {
		var all []hashrange.Interval
		for range random.IntN(6) {
			a, b := random.Uint64N(40), random.Uint64N(40)
			all = append(all, hashrange.Interval{First: min(a, b), Last: max(a, b)})
		}
		joined := hashrange.Disjoint(append([]hashrange.Interval(nil), all...))
		for n := 1; n < len(joined); n++ {
			require.Greater(t, joined[n].First, joined[n-1].Last+1)
		}
		for hash := range uint64(41) {
			want := false
			for _, i := range all {
				want = want || i.First <= hash && hash <= i.Last
			}
			require.Equal(t, want, hashrange.Contains(joined, hash), "%v %d", all, hash)
		}
	}
	require.True(t, hashrange.Contains([]hashrange.Interval{hashrange.Whole}, ^uint64(0)))
	require.False(t, hashrange.Contains(nil, 0))
}
