package client

import (
	"errors"
	"fmt"
	"math/bits"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
)

// ShardKey says by which of its values an object belongs to one part or another.
type ShardKey = hashrange.Key

const (
	// ByUID makes all parts equally large: for exporters, which look at each object by itself.
	ByUID = hashrange.UID
	// ByNamespace puts the namespaces of one name, of all logical clusters, into one part.
	ByNamespace = hashrange.Namespace
	// ByCluster puts all objects of a logical cluster, of all kinds, into one part: for
	// controllers. Other servers do not know it, and send everything.
	ByCluster = hashrange.Cluster
)

// HashOf returns the hash of what objects are divided by, such as the name of their logical
// cluster.
func HashOf(value string) uint64 { return hashrange.Hash(value) }

// Range is a part of the ring of hashes, both ends included.
type Range = hashrange.Interval

// Ranges are a part of the objects: those whose hash, by one key, lies in one of the ranges.
// The zero value holds no object. Ranges do not change, and are a RangeSource.
type Ranges struct {
	key ShardKey
	// intervals are sorted, and there is something between any two of them.
	intervals []Range
}

// RangeSource says which objects an informer is to hold. It is safe for concurrent use.
type RangeSource interface {
	// Ranges returns what is to be held now.
	Ranges() Ranges
	// Changed returns a channel that is closed when Ranges returns something else than at
	// the time of this call; nil if that never happens.
	Changed() <-chan struct{}
}

// LoadedRanges is a RangeSource that is told what is loaded by the informers which have it.
type LoadedRanges interface {
	RangeSource

	// Follow is called by an informer that runs: holds returns the ranges of which it has all
	// objects. It calls stop when it ends.
	Follow(holds func() Ranges) (stop func())
}

var (
	errNoRange = errors.New("no range of hashes: name one at least")
	errOverlap = errors.New("ranges of hashes overlap")
	errTooMany = fmt.Errorf("more than %d ranges of hashes", hashrange.Most)
	errSyntax  = errors.New("want shardRange(object.metadata.cluster, '0x…', '0x…') || …")
)

// NewRanges returns the part of the objects whose hashes are in one of the ranges. Ranges that
// touch become one; it fails if some overlap, if there are none, or too many for a server.
func NewRanges(key ShardKey, ranges ...Range) (Ranges, error) {
	if len(ranges) == 0 {
		return Ranges{}, errNoRange
	}
	sorted := slices.SortedFunc(slices.Values(ranges), func(a, b Range) int {
		if a.First < b.First {
			return -1
		}
		return 1
	})
	for n, r := range sorted {
		switch start, _ := r.Bounds(); {
		case r.First > r.Last:
			return Ranges{}, fmt.Errorf("the range of hashes from %s ends before it begins", start)
		case n > 0 && r.First <= sorted[n-1].Last:
			return Ranges{}, fmt.Errorf("%w: two hold %s", errOverlap, start)
		}
	}
	r := Ranges{key, hashrange.Disjoint(sorted)}
	if len(r.intervals) > hashrange.Most {
		return Ranges{}, errTooMany
	}
	return r, nil
}

// PartOf returns part i of n parts of one size, of which the first is 0.
func PartOf(key ShardKey, i, n int) (Ranges, error) {
	if i < 0 || i >= n {
		return Ranges{}, fmt.Errorf("there is no part %d of %d: the first is 0", i, n)
	}
	start := func(i int) uint64 {
		at, _ := bits.Div64(uint64(i), 0, uint64(n)) //nolint:gosec // 0 <= i < n
		return at
	}
	last := hashrange.Whole.Last
	if i+1 < n {
		last = start(i+1) - 1
	}
	return NewRanges(key, Range{First: start(i), Last: last})
}

var shardRange = regexp.MustCompile(`^\s*shardRange\(\s*([a-z.]+)\s*,\s*'([^']*)'\s*,\s*'([^']*)'\s*\)\s*$`)

// ParseRanges returns what a shardSelector says, such as String returns it.
func ParseRanges(selector string) (Ranges, error) {
	if strings.TrimSpace(selector) == "" {
		return Ranges{}, errNoRange
	}
	var (
		key    ShardKey
		ranges []Range
	)
	for n, text := range strings.Split(selector, "||") {
		parts := shardRange.FindStringSubmatch(text)
		if parts == nil {
			return Ranges{}, fmt.Errorf("shard selector %q: %w", selector, errSyntax)
		}
		by, err := hashrange.KeyOf(parts[1])
		if err != nil {
			return Ranges{}, fmt.Errorf("shard selector: %w", err)
		}
		if n > 0 && by != key {
			return Ranges{}, fmt.Errorf("shard selector: all ranges must be by the same field, got %s and %s", key.Path(), by.Path())
		}
		key = by
		r, some, err := hashrange.Parse(parts[2], parts[3])
		if err != nil {
			return Ranges{}, fmt.Errorf("shard selector: %w", err)
		}
		if !some {
			return Ranges{}, fmt.Errorf("shard selector: the range from %s to %s holds no hash", parts[2], parts[3])
		}
		ranges = append(ranges, r)
	}
	return NewRanges(key, ranges...)
}

// Key returns by what the objects are hashed.
func (r Ranges) Key() ShardKey { return r.key }

// Ranges implements RangeSource.
func (r Ranges) Ranges() Ranges { return r }

// Changed implements RangeSource.
func (r Ranges) Changed() <-chan struct{} { return nil }

// Empty reports whether no object is in the ranges.
func (r Ranges) Empty() bool { return len(r.intervals) == 0 }

// Equal reports whether the same objects are in both.
func (r Ranges) Equal(other Ranges) bool {
	return slices.Equal(r.intervals, other.intervals) && (r.key == other.key || r.Empty())
}

// String returns the ranges as a shardSelector, and nothing if they are empty.
func (r Ranges) String() string {
	var b strings.Builder
	for n, i := range r.intervals {
		if n > 0 {
			b.WriteString(" || ")
		}
		start, end := i.Bounds()
		fmt.Fprintf(&b, "shardRange(%s, '%s', '%s')", r.key.Path(), start, end)
	}
	return b.String()
}

// Contains reports whether an object is in the ranges. It takes no memory.
func (r Ranges) Contains(obj metav1.Object) bool { return r.has(r.key, r.key.Hash(obj)) }

// has reports whether a hash by a key is in the ranges.
func (r Ranges) has(key ShardKey, hash uint64) bool {
	return key == r.key && hashrange.Contains(r.intervals, hash)
}

// Covers reports whether all that is in other is in r, too.
func (r Ranges) Covers(other Ranges) bool {
	rest := other.minus(r)
	return rest.Empty()
}

// union returns what is in either, if both have one key or either is empty.
func (r Ranges) union(other Ranges) Ranges {
	if r.Empty() {
		return other
	}
	return Ranges{r.key, hashrange.Disjoint(slices.Concat(r.intervals, other.intervals))}
}

// minus returns what is not in other. By different keys that is everything.
func (r Ranges) minus(other Ranges) Ranges {
	if r.key != other.key {
		return r
	}
	rest := Ranges{key: r.key}
	for _, i := range r.intervals {
		first, more := i.First, true
		for _, o := range other.intervals {
			if o.Last < first || o.First > i.Last {
				continue
			}
			if o.First > first {
				rest.intervals = append(rest.intervals, Range{First: first, Last: o.First - 1})
			}
			if more = o.Last < i.Last; !more {
				break
			}
			first = o.Last + 1
		}
		if more {
			rest.intervals = append(rest.intervals, Range{First: first, Last: i.Last})
		}
	}
	return rest
}

// intersect returns what is in both. By different keys that is nothing.
func (r Ranges) intersect(other Ranges) Ranges {
	if r.key != other.key {
		return Ranges{}
	}
	return r.minus(r.minus(other))
}
