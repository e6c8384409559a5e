// Package hashrange defines the shard ranges of KEP-5866: which value of an object is hashed, the
// hash function, and the ranges in shard selectors.
package hashrange

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Key is the value of an object that is hashed.
type Key uint8

const (
	// UID is the UID: all ranges of equal size contain about the same number of objects.
	UID Key = iota
	// Namespace is the namespace.
	Namespace
	// Cluster is the logical cluster. Upstream servers do not support it.
	Cluster
)

// End is 2^64, the end of the last range, in a selector.
const End = "0x10000000000000000"

// InfoAnnotation is the shardSelector of the watch, on the bookmark that ends the initial events.
//
//reference:metadata bookmarks | shard
const InfoAnnotation = "shardplane.io/shard-info"

// Most is the maximum number of ranges in a selector.
const Most = 128

const (
	offset64 = 14695981039346656037
	prime64  = 1099511628211
)

var paths = [...]string{UID: "object.metadata.uid", Namespace: "object.metadata.namespace", Cluster: "object.metadata.cluster"}

// Path returns the field path of the key in selectors.
func (k Key) Path() string { return paths[k] }

// KeyOf returns the key of a field path.
func KeyOf(path string) (Key, error) {
	if i := slices.Index(paths[:], path); i >= 0 {
		return Key(i), nil
	}
	return 0, fmt.Errorf("unsupported field path %q; supported: %s", path, strings.Join(paths[:], ", "))
}

// Hash is FNV-1a, see KEP-5866. Unlike hash/fnv it does not allocate.
func Hash(value string) uint64 {
	h := uint64(offset64)
	for i := range len(value) {
		h ^= uint64(value[i])
		h *= prime64
	}
	return h
}

// Hash returns the hash of an object.
func (k Key) Hash(obj metav1.Object) uint64 {
	switch k {
	case UID:
		return Hash(string(obj.GetUID()))
	case Namespace:
		return Hash(obj.GetNamespace())
	default:
		return Hash(clusterOf(obj))
	}
}

type annotated interface {
	Annotation(name string) string
}

// clusterOf returns the logical cluster of an object without allocation.
func clusterOf(obj metav1.Object) string {
	switch o := obj.(type) {
	case annotated:
		return o.Annotation(logicalcluster.AnnotationKey)
	case *unstructured.Unstructured:
		metadata, _ := o.Object["metadata"].(map[string]any)
		annotations, _ := metadata["annotations"].(map[string]any)
		name, _ := annotations[logicalcluster.AnnotationKey].(string)
		return name
	default:
		return obj.GetAnnotations()[logicalcluster.AnnotationKey]
	}
}

// Interval is a range of hashes, including both ends.
type Interval struct{ First, Last uint64 }

// Whole contains all hashes.
var Whole = Interval{0, ^uint64(0)}

// Parse returns the interval of a range in a selector, which excludes end. some is false if it is empty.
func Parse(start, end string) (i Interval, some bool, err error) {
	if i.First, err = parseBound(start); err != nil {
		return Interval{}, false, err
	}
	if end == End {
		i.Last = Whole.Last
		return i, true, nil
	}
	after, err := parseBound(end)
	if err != nil || after <= i.First {
		return Interval{}, false, err
	}
	i.Last = after - 1
	return i, true, nil
}

func parseBound(s string) (uint64, error) {
	digits, ok := strings.CutPrefix(s, "0x")
	if !ok || len(digits) != 16 || strings.ToLower(digits) != digits {
		return 0, fmt.Errorf("bound of a shard range: want 0x and 16 hexadecimal digits in lower case, got %q", s)
	}
	bound, err := strconv.ParseUint(digits, 16, 64)
	if err != nil {
		return 0, fmt.Errorf("bound of a shard range: %w", err)
	}
	return bound, nil
}

// Bounds returns the range in a selector.
func (i Interval) Bounds() (start, end string) {
	if i.Last == Whole.Last {
		return fmt.Sprintf("0x%016x", i.First), End
	}
	return fmt.Sprintf("0x%016x", i.First), fmt.Sprintf("0x%016x", i.Last+1)
}

// Disjoint sorts intervals in place and merges adjacent ones.
func Disjoint(intervals []Interval) []Interval {
	slices.SortFunc(intervals, func(a, b Interval) int { return cmp.Compare(a.First, b.First) })
	joined := intervals[:0]
	for _, i := range intervals {
		if n := len(joined); n > 0 && (joined[n-1].Last == Whole.Last || i.First <= joined[n-1].Last+1) {
			joined[n-1].Last = max(joined[n-1].Last, i.Last)
			continue
		}
		joined = append(joined, i)
	}
	return joined
}

// Contains reports whether a hash is in one of the intervals, which must be disjoint and sorted.
func Contains(intervals []Interval, hash uint64) bool {
	i := sort.Search(len(intervals), func(i int) bool { return intervals[i].Last >= hash })
	return i < len(intervals) && intervals[i].First <= hash
}
