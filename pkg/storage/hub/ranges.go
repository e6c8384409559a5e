package hub

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/sharding"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
)

// hashes are an object's positions on the hash ring, for each key that a selector can have.
type hashes [hashrange.Cluster + 1]uint64

// hashesOf computes the hashes of an object for all selectors.
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

// ranges is a shard selector as sorted, disjoint intervals.
type ranges struct {
	key       hashrange.Key
	intervals []hashrange.Interval
}

// rangesOf returns the ranges of a selector. all reports whether it selects all objects.
func rangesOf(selector sharding.Selector) (r ranges, all bool, err error) {
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

// match reports whether the ranges contain the hashes.
func (r *ranges) match(h hashes) bool { return hashrange.Contains(r.intervals, h[r.key]) }

// Selector is a shard selector that matches without allocating.
type Selector struct {
	sharding.Selector

	ranges ranges
}

// NewSelector returns a faster equivalent of a selector. Unlike upstream's selectors, it can match by
// logical cluster.
func NewSelector(selector sharding.Selector) (*Selector, error) {
	r, all, err := rangesOf(selector)
	if err != nil {
		return nil, err
	}
	if all {
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

// DeepCopySelector implements sharding.Selector. A Selector is immutable.
func (s *Selector) DeepCopySelector() sharding.Selector { return s }
