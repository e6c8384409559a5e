package hub

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/sharding"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
)

// scopes are indexes by watched key.
type scopes map[string]*index

func (s scopes) add(w *Watcher) {
	x := s[w.request.Key]
	if x == nil {
		x = &index{}
		s[w.request.Key] = x
	}
	x.add(w)
}

func (s scopes) remove(w *Watcher) {
	x := s[w.request.Key]
	x.remove(w)
	if x.watchers == 0 {
		delete(s, w.request.Key)
	}
}

// find appends the watchers of a key with ranges that contain the hashes. filtered is the number of the others.
func (s scopes) find(root, key string, h hashes, found []*Watcher) (_ []*Watcher, filtered int) {
	inScope := func(prefix string) {
		if x := s[prefix]; x != nil {
			before := len(found)
			found = x.find(h, found)
			filtered += x.watchers - (len(found) - before)
		}
	}
	for i := len(root) - 1; i < len(key); i++ {
		if key[i] == '/' {
			inScope(key[:i+1])
		}
	}
	inScope(key)
	return found, filtered
}

// index finds the watchers of one key prefix with ranges that contain a hash. It is an implicit interval tree.
type index struct {
	// watchers is the number of all watchers, sharded or not.
	watchers  int
	unsharded []*Watcher // those that are not sharded
	// sharded are the others, by key.
	sharded [hashrange.Cluster + 1]intervalTree
}

func (x *index) add(w *Watcher) {
	x.watchers++
	if !w.sharded {
		w.at = len(x.unsharded)
		x.unsharded = append(x.unsharded, w)
		return
	}
	x.sharded[w.ranges.key].add(w)
}

func (x *index) remove(w *Watcher) {
	x.watchers--
	if w.sharded {
		x.sharded[w.ranges.key].remove(w)
		return
	}
	last := len(x.unsharded) - 1
	x.unsharded[w.at] = x.unsharded[last]
	x.unsharded[w.at].at = w.at
	x.unsharded[last] = nil
	x.unsharded = x.unsharded[:last]
}

// find appends the watchers with ranges that contain the hashes, each once, because its intervals are disjoint.
func (x *index) find(h hashes, found []*Watcher) []*Watcher {
	found = append(found, x.unsharded...)
	for key := range x.sharded {
		found = x.sharded[key].find(h[key], found)
	}
	return found
}

// node is an interval of a watcher. Nodes are sorted by First. A subtree is a range of the sorted slice with
// its root in the middle; subtreeLast is the maximum of its Last.
type node struct {
	hashrange.Interval

	subtreeLast uint64
	watcher     *Watcher
}

type intervalTree struct {
	nodes []node
	stale bool // subtreeLast is not up to date
}

func (t *intervalTree) add(w *Watcher) {
	// Both are sorted. They are merged from the end, so that each node moves once.
	added := w.ranges.intervals
	old, at := len(t.nodes), len(t.nodes)+len(added)
	t.nodes = slices.Grow(t.nodes, len(added))[:at]
	for len(added) > 0 {
		at--
		if last := added[len(added)-1]; old == 0 || t.nodes[old-1].First <= last.First {
			t.nodes[at] = node{Interval: last, watcher: w}
			added = added[:len(added)-1]
		} else {
			old--
			t.nodes[at] = t.nodes[old]
		}
	}
	t.stale = true
}

func (t *intervalTree) remove(w *Watcher) {
	t.nodes = slices.DeleteFunc(t.nodes, func(n node) bool { return n.watcher == w })
	t.stale = true
}

func (t *intervalTree) find(hash uint64, found []*Watcher) []*Watcher {
	if t.stale {
		t.update(0, len(t.nodes))
		t.stale = false
	}
	return t.findIn(0, len(t.nodes), hash, found)
}

// update computes subtreeLast in [low, high) and returns that of the root.
func (t *intervalTree) update(low, high int) uint64 {
	if low >= high {
		return 0
	}
	middle := (low + high) / 2
	last := max(t.nodes[middle].Last, t.update(low, middle), t.update(middle+1, high))
	t.nodes[middle].subtreeLast = last
	return last
}

func (t *intervalTree) findIn(low, high int, hash uint64, found []*Watcher) []*Watcher {
	for low < high {
		middle := (low + high) / 2
		n := &t.nodes[middle]
		if n.subtreeLast < hash {
			return found
		}
		found = t.findIn(low, middle, hash, found)
		if hash < n.First {
			return found
		}
		if hash <= n.Last {
			found = append(found, n.watcher)
		}
		low = middle + 1
	}
	return found
}

// hashes are an object's positions on the hash ring, for each key that a selector can have.
type hashes [hashrange.Cluster + 1]uint64

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
		return ranges{intervals: []hashrange.Interval{hashrange.Whole}}, true, nil
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

func (r *ranges) match(h hashes) bool { return hashrange.Contains(r.intervals, h[r.key]) }

// Selector is a shard selector that matches without allocating.
type Selector struct {
	sharding.Selector

	ranges ranges
}

// NewSelector returns a faster equivalent of a selector. Unlike upstream's, it can match by logical cluster.
func NewSelector(selector sharding.Selector) (*Selector, error) {
	r, _, err := rangesOf(selector)
	if err != nil {
		return nil, err
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
