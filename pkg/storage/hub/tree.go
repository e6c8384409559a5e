package hub

import (
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// chunkMax is the maximum number of items in a chunk. A write copies a chunk that a snapshot shares.
	chunkMax = 256
	// chunkMin is the size below which a chunk is merged with its neighbor.
	chunkMin = chunkMax / 8
	// chunkFill is the size of the chunks of a new tree.
	chunkFill = chunkMax * 3 / 4
)

type item struct {
	key string
	obj runtime.Object
}

type chunk struct {
	items []item
	// owner is the generation of the tree that may modify the chunk in place.
	owner uint64
}

// tree is an ordered map from keys to objects with cheap snapshots. It has two levels. A write copies only the chunk that
// it modifies if a snapshot shares it. Ranks are sums over chunks, without visiting the items.
type tree struct {
	chunks []*chunk
	len    int

	generation uint64
	// latest is the snapshot that is equal to the tree and shares all chunks.
	latest *snapshot
}

type snapshot struct {
	chunks []*chunk
	len    int
}

// newTree returns a tree with the items. It takes ownership of the slice.
func newTree(items []item) *tree {
	compare := func(a, b item) int { return strings.Compare(a.key, b.key) }
	if !slices.IsSortedFunc(items, compare) {
		slices.SortStableFunc(items, compare)
	}
	// The last item with a key takes precedence, as in the watch cache.
	unique := items[:0]
	for i := range items {
		if n := len(unique); n > 0 && unique[n-1].key == items[i].key {
			unique[n-1] = items[i]
			continue
		}
		unique = append(unique, items[i])
	}
	t := &tree{len: len(unique)}
	for part := range slices.Chunk(unique, chunkFill) {
		t.chunks = append(t.chunks, &chunk{items: slices.Clone(part)})
	}
	return t
}

func (t *tree) snapshot() *snapshot {
	if t.latest == nil {
		t.generation++
		t.latest = &snapshot{chunks: t.chunks, len: t.len}
	}
	return t.latest
}

// locate returns the index of the chunk that contains, or would contain, the key, and the position in it.
func locate(chunks []*chunk, key string) (n, i int, found bool) {
	if len(chunks) == 0 {
		return 0, 0, false
	}
	compare := func(it item, key string) int { return strings.Compare(it.key, key) }
	n, found = slices.BinarySearchFunc(chunks, key, func(c *chunk, key string) int { return compare(c.items[0], key) })
	if !found && n > 0 {
		n--
	}
	i, found = slices.BinarySearchFunc(chunks[n].items, key, compare)
	return n, i, found
}

func (t *tree) get(key string) runtime.Object {
	n, i, found := locate(t.chunks, key)
	if !found {
		return nil
	}
	return t.chunks[n].items[i].obj
}

// own returns chunk i for modification.
func (t *tree) own(i int) *chunk {
	if t.latest != nil {
		t.chunks = slices.Clone(t.chunks)
		t.latest = nil
	}
	c := t.chunks[i]
	if c.owner != t.generation {
		items := make([]item, len(c.items), min(chunkMax, len(c.items)+chunkMax/8))
		copy(items, c.items)
		c = &chunk{items: items, owner: t.generation}
		t.chunks[i] = c
	}
	return c
}

// set stores an object and returns the previous one, or nil.
func (t *tree) set(key string, obj runtime.Object) runtime.Object {
	if len(t.chunks) == 0 {
		t.chunks = []*chunk{{items: []item{{key, obj}}, owner: t.generation}}
		t.latest = nil
		t.len++
		return nil
	}
	n, i, found := locate(t.chunks, key)
	c := t.own(n)
	if found {
		previous := c.items[i].obj
		c.items[i].obj = obj
		return previous
	}
	t.len++
	c.items = slices.Insert(c.items, i, item{key, obj})
	if len(c.items) >= chunkMax {
		half := len(c.items) / 2
		if n == len(t.chunks)-1 && i == len(c.items)-1 {
			half = len(c.items) - 1 // with increasing keys, chunks become full
		}
		upper := &chunk{items: slices.Clone(c.items[half:]), owner: t.generation}
		clear(c.items[half:])
		c.items = c.items[:half]
		t.chunks = slices.Insert(t.chunks, n+1, upper)
	}
	return nil
}

// remove removes an object and returns it, or nil.
func (t *tree) remove(key string) runtime.Object {
	n, i, found := locate(t.chunks, key)
	if !found {
		return nil
	}
	c := t.own(n)
	previous := c.items[i].obj
	c.items = slices.Delete(c.items, i, i+1)
	t.len--
	if len(c.items) < chunkMin {
		t.merge(n)
	}
	return previous
}

// merge joins chunk n, which is small, with a neighbor.
func (t *tree) merge(n int) {
	c := t.chunks[n]
	switch {
	case len(c.items) == 0:
		t.chunks = slices.Delete(t.chunks, n, n+1)
	case n+1 < len(t.chunks) && len(c.items)+len(t.chunks[n+1].items) < chunkFill:
		c.items = append(c.items, t.chunks[n+1].items...)
		t.chunks = slices.Delete(t.chunks, n+1, n+2)
	case n > 0 && len(c.items)+len(t.chunks[n-1].items) < chunkFill:
		left := t.own(n - 1)
		left.items = append(left.items, c.items...)
		t.chunks = slices.Delete(t.chunks, n, n+1)
	}
}

// rank returns the number of keys less than key.
func (s *snapshot) rank(key string) int {
	n, rank, _ := locate(s.chunks, key)
	for _, c := range s.chunks[:n] {
		rank += len(c.items)
	}
	return rank
}

// from yields the items with keys not less than key.
func (s *snapshot) from(key string, yield func(item) bool) {
	n, i, _ := locate(s.chunks, key)
	for _, c := range s.chunks[n:] {
		for _, it := range c.items[i:] {
			if !yield(it) {
				return
			}
		}
		i = 0
	}
}

// endOf returns the smallest key that is greater than all keys with the prefix.
func endOf(prefix string) string {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xff {
			return prefix[:i] + string([]byte{prefix[i] + 1})
		}
	}
	return "\xff"
}

const (
	// keptMax is the maximum number of snapshots for continued lists, and keptTime how long they are kept after the
	// latest page. Without its snapshot, a list continues from etcd.
	keptMax  = 64
	keptTime = time.Minute
	// keptBytes is the maximum size of the objects that were written after a snapshot, which keeps their former states.
	keptBytes = 128 << 20
)

// keptSnapshots are the snapshots by version.
type keptSnapshots map[uint64]*keptSnapshot

type keptSnapshot struct {
	*snapshot

	used time.Time
	// written is the total size of all written objects when the snapshot was taken.
	written int64
}

func (k keptSnapshots) get(version uint64, now time.Time) *snapshot {
	s := k[version]
	if s == nil {
		return nil
	}
	s.used = now
	return s.snapshot
}

func (k keptSnapshots) add(version uint64, s *snapshot, now time.Time, written int64) {
	if s := k[version]; s != nil {
		s.used = now
		return
	}
	if len(k) >= keptMax {
		var oldest uint64
		for v, s := range k {
			if oldest == 0 || s.used.Before(k[oldest].used) {
				oldest = v
			}
		}
		delete(k, oldest)
	}
	k[version] = &keptSnapshot{snapshot: s, used: now, written: written}
}

// expire drops snapshots that were not used recently, and those followed by many writes. It is called for each event.
func (k keptSnapshots) expire(now time.Time, written int64) {
	maps.DeleteFunc(k, func(_ uint64, s *keptSnapshot) bool {
		return now.Sub(s.used) > keptTime || written-s.written > keptBytes
	})
}
