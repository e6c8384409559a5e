package tenancy

import (
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
)

// Waits knows who has asked for what, whether it exists or not: when that comes or
// changes, it is looked at again for these, and for nobody else. What is asked for is
// named by path and name. The zero value is ready to use, and safe for concurrent use.
type Waits[K comparable] struct {
	mu sync.Mutex
	// users are those who have asked, by what they have asked for, and asked the other
	// way round.
	users map[string]map[K]bool
	asked map[K][]string
}

// Types returns a lookup that remembers what key asks for. It does so before it looks it
// up: so either the type is found, or who tells of it finds key.
func (w *Waits[K]) Types(key K, types TypeLookup) TypeLookup {
	return func(path logicalcluster.Path, name tenancyv1alpha1.WorkspaceTypeName) (*tenancyv1alpha1.WorkspaceType, bool) {
		w.Remember(key, path.Join(tenancyv1alpha1.ObjectName(name)).String())
		return types(path, name)
	}
}

// Remember notes that key asks for id.
func (w *Waits[K]) Remember(key K, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.users[id][key] {
		return
	}
	if w.users == nil {
		w.users, w.asked = map[string]map[K]bool{}, map[K][]string{}
	}
	if w.users[id] == nil {
		w.users[id] = map[K]bool{}
	}
	w.users[id][key] = true
	w.asked[key] = append(w.asked[key], id)
}

// Forget forgets what key has asked for.
func (w *Waits[K]) Forget(key K) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range w.asked[key] {
		if delete(w.users[id], key); len(w.users[id]) == 0 {
			delete(w.users, id)
		}
	}
	delete(w.asked, key)
}

// Of returns who has asked for one of ids.
func (w *Waits[K]) Of(ids ...string) []K {
	w.mu.Lock()
	defer w.mu.Unlock()
	var keys []K
	for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
		for key := range w.users[id] {
			keys = append(keys, key)
		}
	}
	return keys
}
