package hub

import (
	"iter"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// listener is who is told of everything, in this process.
type listener struct {
	reset   func(iter.Seq2[string, runtime.Object])
	changed func(key string, before, after runtime.Object)
}

// Follow has reset told all objects with their keys, as soon as the hub knows them and again
// whenever it has lost track of them, and changed told each change after that: before is nil
// of what is new, after of what is gone. Both are called under the lock of the hub: they must
// return at once and ask the hub nothing. The sequence can be walked later. When stop has
// returned, nothing is told any more.
//
// It is for who has to know of all logical clusters, and takes no goroutine and no buffer.
func (h *Hub) Follow(reset func(iter.Seq2[string, runtime.Object]), changed func(key string, before, after runtime.Object)) (stop func()) {
	f := &listener{reset, changed}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.followers[f] = struct{}{}
	if h.synced {
		reset(h.objects.snapshot().all)
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.followers, f)
	}
}

// all yields the objects with their keys.
func (s *snapshot) all(yield func(string, runtime.Object) bool) {
	for _, c := range s.chunks {
		for _, it := range c.items {
			if !yield(it.key, it.obj) {
				return
			}
		}
	}
}

func (h *Hub) resetFollowersLocked() {
	for f := range h.followers {
		f.reset(h.objects.snapshot().all)
	}
}

func (h *Hub) tellFollowersLocked(key string, before, after runtime.Object) {
	for f := range h.followers {
		f.changed(key, before, after)
	}
}

// Get returns the object of a key as the hub has seen it last, or nil. It is shared: do not
// change it.
func (h *Hub) Get(key string) runtime.Object {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.objects.get(key)
}

// Walk yields the objects whose keys have a prefix, with their keys, as the hub has seen them last.
func (h *Hub) Walk(prefix string, yield func(key string, obj runtime.Object) bool) {
	objects, _ := h.latest()
	if objects == nil {
		return
	}
	objects.from(prefix, func(it item) bool { return strings.HasPrefix(it.key, prefix) && yield(it.key, it.obj) })
}
