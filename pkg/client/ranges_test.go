package client

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
)

const (
	lowerHalf = "shardRange(object.metadata.cluster, '0x0000000000000000', '0x8000000000000000')"
	upperHalf = "shardRange(object.metadata.cluster, '0x8000000000000000', '0x10000000000000000')"
)

func TestParseRanges(t *testing.T) {
	for selector, want := range map[string]string{
		lowerHalf:                    lowerHalf,
		lowerHalf + "||" + upperHalf: "shardRange(object.metadata.cluster, '0x0000000000000000', '0x10000000000000000')",
		upperHalf + " || " + strings.ReplaceAll(lowerHalf, "0x8000000000000000", "0x7000000000000000"): strings.ReplaceAll(lowerHalf, "0x8000000000000000", "0x7000000000000000") + " || " + upperHalf,
		strings.ReplaceAll(upperHalf, "cluster", "uid"):                                                strings.ReplaceAll(upperHalf, "cluster", "uid"),
		strings.ReplaceAll(upperHalf, " ", ""):                                                         upperHalf,
	} {
		ranges, err := ParseRanges(selector)
		require.NoError(t, err)
		require.Equal(t, want, ranges.String())
	}
	many := make([]string, 0, hashrange.Most+1)
	for i := range hashrange.Most + 1 {
		many = append(many, fmt.Sprintf("shardRange(object.metadata.uid, '0x%016x', '0x%016x')", 2*i, 2*i+1))
	}
	for selector, message := range map[string]string{
		"":                           "specify at least one",
		"nonsense":                   "want shardRange(",
		lowerHalf + "||":             "want shardRange(",
		lowerHalf + "||" + lowerHalf: "overlap: two contain 0x0000000000000000",
		strings.Join(many, "||"):     "more than 128 ranges",
		lowerHalf + "||" + strings.ReplaceAll(upperHalf, "cluster", "uid"):        "must be by the same field, got object.metadata.cluster and object.metadata.uid",
		strings.ReplaceAll(lowerHalf, "cluster", "name"):                          "unsupported field path",
		strings.ReplaceAll(lowerHalf, "0x8000000000000000", "0x0"):                "16 hexadecimal digits",
		strings.ReplaceAll(lowerHalf, "0x8000000000000000", "0x0000000000000000"): "contains no hash",
	} {
		_, err := ParseRanges(selector)
		require.ErrorContains(t, err, message)
	}
	_, err := NewRanges(ByUID, Range{First: 2, Last: 1})
	require.ErrorContains(t, err, "ends before it begins")
	_, err = PartOf(ByUID, 3, 3)
	require.ErrorContains(t, err, "invalid part 3 of 3")
}

// TestPartsOf: parts cover the ring and are disjoint.
func TestPartsOf(t *testing.T) {
	for n := 1; n < 70; n++ {
		all := Ranges{}
		for i := range n {
			part, err := PartOf(ByCluster, i, n)
			require.NoError(t, err)
			require.True(t, all.intersect(part).Empty())
			all = all.union(part)
		}
		require.Equal(t, []Range{hashrange.Whole}, all.intervals)
	}
}

// TestRangesAsSets compares the operations on ranges with operations on hashes.
func TestRangesAsSets(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	some := func() Ranges {
		ranges := Ranges{}
		for range r.IntN(5) {
			a, b := r.Uint64N(30), r.Uint64N(30)
			ranges = ranges.union(Ranges{ranges.key, []Range{{First: min(a, b), Last: max(a, b)}}})
		}
		if r.IntN(3) == 0 {
			ranges = ranges.union(Ranges{ranges.key, []Range{{First: 25, Last: hashrange.Whole.Last}}})
		}
		return ranges
	}
	for range 2000 {
		a, b := some(), some()
		union, minus, both := a.union(b), a.minus(b), a.intersect(b)
		for hash := range uint64(32) {
			inA, inB := a.has(a.key, hash), b.has(a.key, hash)
			require.Equal(t, inA || inB, union.has(a.key, hash))
			require.Equal(t, inA && !inB, minus.has(a.key, hash), "%v without %v", a, b)
			require.Equal(t, inA && inB, both.has(a.key, hash))
		}
		require.True(t, a.minus(b).union(both).Equal(a))
	}
	uids := Ranges{ByUID, []Range{hashrange.Whole}}
	clusters := Ranges{ByCluster, []Range{hashrange.Whole}}
	require.True(t, uids.intersect(clusters).Empty())
	require.True(t, uids.minus(clusters).Equal(uids))
	require.False(t, uids.Equal(clusters))
}

// FuzzRanges: parsed ranges can be formatted and parsed again, and contain the right objects.
func FuzzRanges(f *testing.F) {
	for _, seed := range []string{lowerHalf, upperHalf + "||" + lowerHalf, strings.ReplaceAll(lowerHalf, "cluster", "uid"), "shardRange(", "||", lowerHalf + "||" + lowerHalf} {
		f.Add(seed, "a")
	}
	f.Fuzz(func(t *testing.T, selector, name string) {
		ranges, err := ParseRanges(selector)
		if err != nil {
			return
		}
		again, err := ParseRanges(ranges.String())
		require.NoError(t, err)
		require.True(t, ranges.Equal(again))
		obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{UID: "u", Namespace: name, Annotations: map[string]string{"kcp.io/cluster": name}}}
		in := false
		for _, i := range ranges.intervals {
			hash := ranges.key.Hash(obj)
			in = in || i.First <= hash && hash <= i.Last
		}
		require.Equal(t, in, ranges.Contains(obj))
	})
}
