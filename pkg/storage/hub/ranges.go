package hub

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/sharding"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
)

// hashes are where an object lies on the ring, by each of the keys that a
// selector can have.
type hashes [hashrange.Cluster + 1]uint64

// hashesOf hashes an object once for all selectors.
func hashesOf(obj runtime.Object) (h hashes, err error) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return hashes{}, notSharded(err)
	}
	for key := range h {
		h[key] = hashrange.Key(key).Hash(object) //nolint:gosec // there are three
	}
	return h, nil
}

func notSharded(err error) error {
	return fmt.Errorf("an object without metadata cannot be sharded: %w", err)
}

// ranges is a shard selector made for matching: sorted, disjoint intervals.
type ranges struct {
	key       hashrange.Key
	intervals []hashrange.Interval
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
	if r.key, err = hashrange.KeyOf(requirements[0].Key); err != nil {
		return ranges{}, false, err
	}
	for _, requirement := range requirements {
		if requirement.Key != requirements[0].Key {
			return ranges{}, false, fmt.Errorf("all shard ranges must use the same field, got %q and %q", requirements[0].Key, requirement.Key)
		}
		i, some, err := hashrange.Parse(requirement.Start, requirement.End)
		if err != nil {
			return ranges{}, false, err
		}
		if some {
			r.intervals = append(r.intervals, i)
		}
	}
	r.intervals = hashrange.Disjoint(r.intervals)
	return r, false, nil
}

// match reports whether an object with these hashes is in the ranges.
func (r *ranges) match(h hashes) bool { return hashrange.Contains(r.intervals, h[r.key]) }

// Selector is a shard selector that matches without allocating.
type Selector struct {
	sharding.Selector

	ranges ranges
}

// NewSelector returns a selector that is equal to another, and faster. It matches by
// logical cluster, too, which those of upstream cannot.
func NewSelector(selector sharding.Selector) (*Selector, error) {
	r, whole, err := rangesOf(selector)
	if err != nil {
		return nil, err
	}
	if whole {
		r.intervals = []hashrange.Interval{hashrange.Whole}
	}
	return &Selector{Selector: selector, ranges: r}, nil
}

// Matches implements sharding.Selector.
func (s *Selector) Matches(obj runtime.Object) (bool, error) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return false, notSharded(err)
	}
	return hashrange.Contains(s.ranges.intervals, s.ranges.key.Hash(object)), nil
}

// DeepCopySelector implements sharding.Selector. Nothing changes a selector.
func (s *Selector) DeepCopySelector() sharding.Selector { return s }
