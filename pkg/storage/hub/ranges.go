package hub

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/sharding"
)

const (
	offset64 = 14695981039346656037
	prime64  = 1099511628211

	uidKey       = "object.metadata.uid"
	namespaceKey = "object.metadata.namespace"

	// ringEnd is how a selector writes 2^64.
	ringEnd = "0x10000000000000000"
)

// hashOf is FNV-1a, as KEP-5866 wants it, without what hash/fnv allocates.
func hashOf(value string) uint64 {
	h := uint64(offset64)
	for i := range len(value) {
		h ^= uint64(value[i])
		h *= prime64
	}
	return h
}

// hashes are where an object lies on the ring, by each of the keys that a
// selector can have.
type hashes struct {
	uid, namespace uint64
}

// hashesOf hashes an object once for all selectors.
func hashesOf(obj runtime.Object) (hashes, error) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return hashes{}, fmt.Errorf("an object without metadata cannot be sharded: %w", err)
	}
	return hashes{uid: hashOf(string(object.GetUID())), namespace: hashOf(object.GetNamespace())}, nil
}

// interval is a part of the ring, both ends included.
type interval struct {
	first, last uint64
}

// ranges is a shard selector made for matching: sorted, disjoint intervals.
type ranges struct {
	byNamespace bool
	intervals   []interval
}

// rangesOf returns the ranges of a selector. Whole is true where there is
// nothing to select.
func rangesOf(selector sharding.Selector) (r ranges, whole bool, err error) {
	if selector == nil || selector.Empty() {
		return ranges{}, true, nil
	}
	if s, ok := selector.(*Selector); ok {
		return s.ranges, false, nil
	}
	requirements := selector.Requirements()
	r.byNamespace = requirements[0].Key == namespaceKey
	for _, requirement := range requirements {
		if requirement.Key != requirements[0].Key {
			return ranges{}, false, fmt.Errorf("all shard ranges must use the same field, got %q and %q", requirements[0].Key, requirement.Key)
		}
		if requirement.Key != uidKey && requirement.Key != namespaceKey {
			return ranges{}, false, fmt.Errorf("unsupported field path %q; supported: %s, %s", requirement.Key, uidKey, namespaceKey)
		}
		i, some, err := intervalOf(requirement)
		if err != nil {
			return ranges{}, false, err
		}
		if some {
			r.intervals = append(r.intervals, i)
		}
	}
	r.intervals = disjoint(r.intervals)
	return r, false, nil
}

// intervalOf returns some as false for a range that holds nothing.
func intervalOf(requirement sharding.ShardRangeRequirement) (i interval, some bool, err error) {
	if i.first, err = parseBound(requirement.Start); err != nil {
		return interval{}, false, err
	}
	if requirement.End == ringEnd {
		i.last = ^uint64(0)
		return i, true, nil
	}
	end, err := parseBound(requirement.End)
	if err != nil || end <= i.first {
		return interval{}, false, err
	}
	i.last = end - 1
	return i, true, nil
}

func parseBound(s string) (uint64, error) {
	digits, ok := strings.CutPrefix(s, "0x")
	if !ok || len(digits) != 16 {
		return 0, fmt.Errorf("bound of a shard range: want 0x and 16 hexadecimal digits, got %q", s)
	}
	bound, err := strconv.ParseUint(digits, 16, 64)
	if err != nil {
		return 0, fmt.Errorf("bound of a shard range: %w", err)
	}
	return bound, nil
}

// disjoint sorts intervals and joins those that touch.
func disjoint(intervals []interval) []interval {
	slices.SortFunc(intervals, func(a, b interval) int {
		switch {
		case a.first < b.first:
			return -1
		case a.first > b.first:
			return 1
		default:
			return 0
		}
	})
	joined := intervals[:0]
	for _, i := range intervals {
		if n := len(joined); n > 0 && (joined[n-1].last == ^uint64(0) || i.first <= joined[n-1].last+1) {
			joined[n-1].last = max(joined[n-1].last, i.last)
			continue
		}
		joined = append(joined, i)
	}
	return joined
}

// match reports whether an object with these hashes is in the ranges.
func (r *ranges) match(h hashes) bool {
	hash := h.uid
	if r.byNamespace {
		hash = h.namespace
	}
	for _, i := range r.intervals {
		if hash < i.first {
			return false
		}
		if hash <= i.last {
			return true
		}
	}
	return false
}

// Selector is a shard selector that matches without allocating.
type Selector struct {
	sharding.Selector

	ranges ranges
}

// NewSelector returns a selector that is equal to another, and faster.
func NewSelector(selector sharding.Selector) (*Selector, error) {
	r, whole, err := rangesOf(selector)
	if err != nil {
		return nil, err
	}
	if whole {
		r.intervals = []interval{{0, ^uint64(0)}}
	}
	return &Selector{Selector: selector, ranges: r}, nil
}

// Matches implements sharding.Selector.
func (s *Selector) Matches(obj runtime.Object) (bool, error) {
	h, err := hashesOf(obj)
	if err != nil {
		return false, err
	}
	return s.ranges.match(h), nil
}
