// Package hashrange has what servers and clients agree on about parts of the
// objects (KEP-5866): which value of an object is hashed, by what, and the ranges of
// hashes that a shard selector names.
package hashrange

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Key says which value of an object is hashed.
type Key uint8

const (
	// UID hashes the UID: all parts are of one size.
	UID Key = iota
	// Namespace hashes the namespace.
	Namespace
	// Cluster hashes the logical cluster, so that all objects of one are in one part.
	// No other server knows it.
	Cluster
)

// End is how a selector writes 2^64, the end of the ring.
const End = "0x10000000000000000"

// InfoAnnotation is on the bookmark that ends the initial events of a sharded watch, and
// carries the selector that was applied.
const InfoAnnotation = "shardplane.io/shard-info"

// Most is how many ranges a selector may have.
const Most = 128

const (
	offset64 = 14695981039346656037
	prime64  = 1099511628211
)

var paths = [...]string{UID: "object.metadata.uid", Namespace: "object.metadata.namespace", Cluster: "object.metadata.cluster"}

// Path returns the field path by which selectors name the key.
func (k Key) Path() string { return paths[k] }

// KeyOf returns the key that selectors name by a path.
func KeyOf(path string) (Key, error) {
	if i := slices.Index(paths[:], path); i >= 0 {
		return Key(i), nil
	}
	return 0, fmt.Errorf("unsupported field path %q; supported: %s", path, strings.Join(paths[:], ", "))
}

// Hash is FNV-1a, as KEP-5866 wants it, without what hash/fnv allocates.
func Hash(value string) uint64 {
	h := uint64(offset64)
	for i := range len(value) {
		h ^= uint64(value[i])
		h *= prime64
	}
	return h
}

// Hash returns where an object lies on the ring.
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

// annotated is an object that says one annotation without making a map of all.
type annotated interface {
	Annotation(name string) string
}

// clusterOf returns the logical cluster of an object, without allocating for any kind of
// object.
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

// Interval is a part of the ring, both ends included.
type Interval struct {
	First, Last uint64
}

// Whole is the ring.
var Whole = Interval{0, ^uint64(0)}

// Parse returns the interval of a range of a selector, whose end is excluded. some is
// false for a range that holds nothing.
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

// Bounds returns how a selector writes an interval.
func (i Interval) Bounds() (start, end string) {
	if i.Last == Whole.Last {
		return fmt.Sprintf("0x%016x", i.First), End
	}
	return fmt.Sprintf("0x%016x", i.First), fmt.Sprintf("0x%016x", i.Last+1)
}

// Disjoint sorts intervals, in place, and joins those that touch.
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

// Contains reports whether a hash is in one of the intervals, which are disjoint and
// sorted.
func Contains(intervals []Interval, hash uint64) bool {
	low, high := 0, len(intervals)
	for low < high {
		if middle := (low + high) / 2; intervals[middle].Last < hash {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low < len(intervals) && intervals[low].First <= hash
}
