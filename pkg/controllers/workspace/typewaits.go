package workspace

import (
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// typeWaits knows which types each Workspace that is not scheduled yet has asked
// for, whether they exist or not: a type that comes or changes is looked at again for
// these, and for no others. It is safe for concurrent use.
type typeWaits struct {
	mu sync.Mutex
	// users are the Workspaces that have asked for a type, by path and name of
	// that, and asked the other way round.
	users map[string]map[client.Key]bool
	asked map[client.Key][]string
}

// lookup returns types with what key asks for remembered. It is before it is looked
// up: so either the type is found, or who tells of it finds the Workspace.
func (w *typeWaits) lookup(key client.Key, types tenancy.TypeLookup) tenancy.TypeLookup {
	return func(path logicalcluster.Path, name tenancyv1alpha1.WorkspaceTypeName) (*tenancyv1alpha1.WorkspaceType, bool) {
		w.remember(key, path.Join(tenancyv1alpha1.ObjectName(name)).String())
		return types(path, name)
	}
}

func (w *typeWaits) remember(key client.Key, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.users[id][key] {
		return
	}
	if w.users == nil {
		w.users, w.asked = map[string]map[client.Key]bool{}, map[client.Key][]string{}
	}
	if w.users[id] == nil {
		w.users[id] = map[client.Key]bool{}
	}
	w.users[id][key] = true
	w.asked[key] = append(w.asked[key], id)
}

// forget forgets what key has asked for.
func (w *typeWaits) forget(key client.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range w.asked[key] {
		if delete(w.users[id], key); len(w.users[id]) == 0 {
			delete(w.users, id)
		}
	}
	delete(w.asked, key)
}

// usersOf returns the Workspaces that have asked for a type by one of these paths.
func (w *typeWaits) usersOf(ids ...string) []client.Key {
	w.mu.Lock()
	defer w.mu.Unlock()
	var keys []client.Key
	for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
		for key := range w.users[id] {
			keys = append(keys, key)
		}
	}
	return keys
}
