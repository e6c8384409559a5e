package tenancy

import (
	"maps"
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
)

// Waits records dependencies on objects, which need not exist: when an object is created or changed, only its dependents
// have to be reconciled. Objects are identified by path and name. The zero value is ready to use and safe for
// concurrent use.
type Waits[K comparable] struct {
	mu         sync.Mutex
	dependents map[string]map[K]bool
	ids        map[K][]string // the inverse
}

// Types returns a lookup that records the dependencies of key. It does so before the lookup, so that either the type is
// found or its creation triggers key.
func (w *Waits[K]) Types(key K, types TypeLookup) TypeLookup {
	return func(path logicalcluster.Path, name tenancyv1alpha1.WorkspaceTypeName) (*tenancyv1alpha1.WorkspaceType, bool) {
		w.Remember(key, path.Join(tenancyv1alpha1.ObjectName(name)).String())
		return types(path, name)
	}
}

// Remember records that key depends on id.
func (w *Waits[K]) Remember(key K, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dependents[id][key] {
		return
	}
	if w.dependents == nil {
		w.dependents, w.ids = map[string]map[K]bool{}, map[K][]string{}
	}
	if w.dependents[id] == nil {
		w.dependents[id] = map[K]bool{}
	}
	w.dependents[id][key] = true
	w.ids[key] = append(w.ids[key], id)
}

// Forget removes the dependencies of key.
func (w *Waits[K]) Forget(key K) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range w.ids[key] {
		if delete(w.dependents[id], key); len(w.dependents[id]) == 0 {
			delete(w.dependents, id)
		}
	}
	delete(w.ids, key)
}

// Of returns the keys that depend on any of ids.
func (w *Waits[K]) Of(ids ...string) []K {
	w.mu.Lock()
	defer w.mu.Unlock()
	var keys []K
	for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
		keys = slices.AppendSeq(keys, maps.Keys(w.dependents[id]))
	}
	return keys
}
