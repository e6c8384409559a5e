package client

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"regexp"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
)

// ShardKey is the property of an object that is hashed.
type ShardKey = hashrange.Key

const (
	// ByUID distributes objects evenly. It is for exporters, which process each object independently.
	ByUID = hashrange.UID
	// ByNamespace assigns all namespaces of one name, in all logical clusters, to the same part.
	ByNamespace = hashrange.Namespace
	// ByCluster assigns all objects of a logical cluster to the same part. It is for controllers.
	ByCluster = hashrange.Cluster
)

// HashOf returns the hash of a value, e.g. the name of a logical cluster.
func HashOf(value string) uint64 { return hashrange.Hash(value) }

// Range is an interval of the ring of hashes, including both ends.
type Range = hashrange.Interval

// Ranges are the objects whose hash, by one key, is in one of the ranges. They are immutable, and a RangeSource.
type Ranges struct {
	key ShardKey
	// intervals are sorted and neither overlap nor touch.
	intervals []Range
}

// RangeSource provides the ranges assigned to an informer. It is safe for concurrent use.
type RangeSource interface {
	// Ranges returns the assigned ranges.
	Ranges() Ranges
	// Changed returns a channel that is closed when the ranges have changed since this call; nil if they never do.
	Changed() <-chan struct{}
}

// loadedRanges is a RangeSource that tracks the ranges that informers have loaded.
type loadedRanges interface {
	RangeSource

	// Follow is called by a running informer, which calls stop when it ends. loaded returns the loaded ranges.
	Follow(loaded func() Ranges) (stop func())
}

var (
	errNoRange = errors.New("no range of hashes: specify at least one")
	errOverlap = errors.New("ranges of hashes overlap")
	errTooMany = fmt.Errorf("more than %d ranges of hashes", hashrange.Most)
	errSyntax  = errors.New("want shardRange(object.metadata.cluster, '0x…', '0x…') || …")
)

// NewRanges returns the union of ranges. It fails if they overlap, if there are none, or too many for a server.
func NewRanges(key ShardKey, ranges ...Range) (Ranges, error) {
	if len(ranges) == 0 {
		return Ranges{}, errNoRange
	}
	sorted := slices.SortedFunc(slices.Values(ranges), func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	for n, r := range sorted {
		switch start, _ := r.Bounds(); {
		case r.First > r.Last:
			return Ranges{}, fmt.Errorf("the range of hashes from %s ends before it begins", start)
		case n > 0 && r.First <= sorted[n-1].Last:
			return Ranges{}, fmt.Errorf("%w: two contain %s", errOverlap, start)
		}
	}
	r := Ranges{key, hashrange.Disjoint(sorted)}
	if len(r.intervals) > hashrange.Most {
		return Ranges{}, errTooMany
	}
	return r, nil
}

// PartOf returns part i of n parts of equal size; the first is 0.
func PartOf(key ShardKey, i, n int) (Ranges, error) {
	if i < 0 || i >= n {
		return Ranges{}, fmt.Errorf("invalid part %d of %d: the first is 0", i, n)
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

// ParseRanges parses a shardSelector, e.g. the result of String.
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
			return Ranges{}, fmt.Errorf("shard selector: the range from %s to %s contains no hash", parts[2], parts[3])
		}
		ranges = append(ranges, r)
	}
	return NewRanges(key, ranges...)
}

// Ranges implements RangeSource.
func (r Ranges) Ranges() Ranges { return r }

// Changed implements RangeSource.
func (r Ranges) Changed() <-chan struct{} { return nil }

// Empty reports whether the ranges contain no object.
func (r Ranges) Empty() bool { return len(r.intervals) == 0 }

// Equal reports whether both contain the same objects.
func (r Ranges) Equal(other Ranges) bool {
	return slices.Equal(r.intervals, other.intervals) && (r.key == other.key || r.Empty())
}

// String returns the ranges as a shardSelector; empty if there are none.
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

// Contains reports whether an object is in the ranges. It does not allocate.
func (r Ranges) Contains(obj metav1.Object) bool { return r.has(r.key, r.key.Hash(obj)) }

func (r Ranges) has(key ShardKey, hash uint64) bool {
	return key == r.key && hashrange.Contains(r.intervals, hash)
}

// Covers reports whether r includes all of other.
func (r Ranges) Covers(other Ranges) bool {
	return other.minus(r).Empty()
}

// union returns the union of ranges by the same key.
func (r Ranges) union(other Ranges) Ranges {
	if r.Empty() {
		return other
	}
	return Ranges{r.key, hashrange.Disjoint(slices.Concat(r.intervals, other.intervals))}
}

// minus returns the difference. It is r if the keys differ.
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

// intersect returns the intersection. It is empty if the keys differ.
func (r Ranges) intersect(other Ranges) Ranges {
	if r.key != other.key {
		return Ranges{}
	}
	return r.minus(r.minus(other))
}

// ChangingRanges is a RangeSource whose ranges can be set, all by the same key.
type ChangingRanges struct {
	mu      sync.Mutex
	ranges  Ranges
	changed chan struct{}
}

// NewChangingRanges returns a source with initial ranges.
func NewChangingRanges(ranges Ranges) *ChangingRanges {
	return &ChangingRanges{ranges: ranges, changed: make(chan struct{})}
}

// Ranges implements RangeSource.
func (c *ChangingRanges) Ranges() Ranges {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ranges
}

// Changed implements RangeSource.
func (c *ChangingRanges) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Set sets the ranges. Informers follow asynchronously.
func (c *ChangingRanges) Set(ranges Ranges) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ranges.Equal(ranges) {
		return
	}
	c.ranges = ranges
	close(c.changed)
	c.changed = make(chan struct{})
}
