package bindings

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	catchUpWait = 10 * time.Second
	// recheckInterval is for conditions that may become true without a change of a binding.
	recheckInterval = 100 * time.Millisecond
)

// errNotSynced makes clients retry after a second (503). It must not be client.ErrIncomplete,
// for which bindings are served according to their status.
var errNotSynced error = request.Unavailable("not all APIBindings and APIExports are known yet, try again")

// table contains the records of all bindings of a shard, and the state that they share.
type table struct {
	informer *client.Informer[*apisv1alpha2.APIBinding]

	mu         sync.RWMutex
	clusters   map[logicalcluster.Name][]*record
	lists      map[string]*list
	identities map[identified]map[types.UID]int // the number of lists that have bound each schema
	versions   map[identified]map[string]int    // the number of lists with objects stored in each version
	uses       map[types.UID]int                // the number of lists that have bound a schema
	complete   map[client.Key]*list             // a list that has bound all resources of an export
	exports    map[client.Key]int               // the number of lists of each export, even if nothing is bound
	affected   []client.Key                     // exports that got their first list or lost their last one
	changed    chan struct{}                    // closed and replaced at each change
	seen       uint64                           // the revision of the latest change

	changes   changes
	consumers definitions.Listeners[client.Key]
}

func newTable(local *client.Factory) *table {
	t := &table{
		clusters:   map[logicalcluster.Name][]*record{},
		lists:      map[string]*list{},
		identities: map[identified]map[types.UID]int{},
		versions:   map[identified]map[string]int{},
		uses:       map[types.UID]int{},
		complete:   map[client.Key]*list{},
		exports:    map[client.Key]int{},
		changed:    make(chan struct{}),
		changes:    changes{pending: make(chan struct{}, 1)},
	}
	t.informer = kinds.APIBindings.Informer(local.Wildcard(), client.InformerOptions[*apisv1alpha2.APIBinding]{
		// Paging limits the JSON that is encoded and decoded at once.
		DisableWatchList: true,
		Transform:        t.slim,
		Indexers:         map[string]client.IndexFunc[*apisv1alpha2.APIBinding]{apis.ExportIndex: apis.IndexByExport},
	})
	return t
}

// slim reduces a binding to the fields that controllers use. Bindings with equal content share it.
func (t *table) slim(b *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error) {
	l, err := t.listOf(b)
	if err != nil {
		return nil, err
	}
	slim := tenancy.Slim(&b.ObjectMeta)
	maps.Copy(slim.Annotations, l.content.Mirrored)
	slim.Labels = l.content.Labels
	return &apisv1alpha2.APIBinding{ObjectMeta: slim, Spec: l.content.Spec, Status: l.content.Status}, nil
}

func (t *table) listOf(b *apisv1alpha2.APIBinding) (*list, error) {
	s := contentOf(b)
	key, err := s.key()
	if err != nil {
		return nil, err
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if l := t.lists[key]; l != nil {
		return l, nil
	}
	return newList(key, s), nil
}

// replaceRecord returns the replaced record, and the records of the logical cluster before and after. It also returns
// the exports that got their first binding or lost their last binding.
func (t *table) replaceRecord(cluster logicalcluster.Name, name string, r *record) (before *record, was, all []*record, affected []client.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.affected = nil
	was = t.clusters[cluster]
	// Readers may still use the old slice.
	all = slices.Clone(was)
	if i := slices.IndexFunc(all, func(other *record) bool { return other.name == name }); i >= 0 {
		before = all[i]
		all = slices.Delete(all, i, i+1)
	}
	if r != nil {
		at, _ := slices.BinarySearchFunc(all, r, (*record).before)
		all = slices.Insert(all, at, r)
		t.useLocked(r.list)
	}
	if len(all) == 0 {
		delete(t.clusters, cluster)
	} else {
		t.clusters[cluster] = all
	}
	if before != nil {
		t.releaseLocked(before.list)
	}
	t.changes.add(transitions(cluster, before, r))
	return before, was, all, t.affected
}

func (t *table) observe(revision uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if revision != unknownRevision {
		t.seen = max(t.seen, revision)
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

func (t *table) useLocked(l *list) {
	l.bindings++
	if export, known := l.exportKey(); known && l.complete {
		t.complete[export] = l // the newest, because exports change
	}
	if l.bindings == 1 {
		t.lists[l.key] = l
		t.countLocked(l, 1)
	}
}

func (t *table) releaseLocked(l *list) {
	if l.bindings--; l.bindings > 0 {
		return
	}
	delete(t.lists, l.key)
	if export, _ := l.exportKey(); t.complete[export] == l {
		delete(t.complete, export)
	}
	t.countLocked(l, -1)
}

// countLocked adds n, which is 1 or -1, to the counters of everything that a list has bound.
func (t *table) countLocked(l *list, n int) {
	if export, known := l.exportKey(); known {
		if now := count(t.exports, export, n); now == 0 || now == n {
			t.affected = append(t.affected, export)
		}
	}
	for _, b := range l.byResource {
		count(t.uses, b.uid, n)
		if b.virtual {
			continue // no objects are stored
		}
		if now := countIn(t.identities, b.identified, b.uid, n); now == 0 || now == n {
			t.changes.add([]transition{{cluster: request.Cluster{Wildcard: true}, before: b}})
		}
	}
	for i := range l.content.Status.BoundResources {
		r := &l.content.Status.BoundResources[i]
		for _, version := range r.StorageVersions {
			countIn(t.versions, identityOf(r), version, n)
		}
	}
}

// count adds n to a counter, which is deleted at 0, and returns the sum.
func count[K comparable](counts map[K]int, key K, n int) int {
	counts[key] += n
	sum := counts[key]
	if sum == 0 {
		delete(counts, key)
	}
	return sum
}

func countIn[K, L comparable](counts map[K]map[L]int, outer K, inner L, n int) int {
	if counts[outer] == nil {
		counts[outer] = map[L]int{}
	}
	sum := count(counts[outer], inner, n)
	if len(counts[outer]) == 0 {
		delete(counts, outer)
	}
	return sum
}

// Consumed reports whether the shard has a binding to an export, even if it has bound nothing.
func (t *table) Consumed(export client.Key) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.exports[export] > 0
}

// FollowConsumers calls f for each export that has a binding, and whenever an export gets its first binding or loses
// its last one, until stop is called. Consumed returns the current state.
func (t *table) FollowConsumers(f func(export client.Key)) (stop func()) {
	stop = t.consumers.Add(f)
	t.mu.RLock()
	exports := maps.Clone(t.exports)
	t.mu.RUnlock()
	for export := range exports {
		f(export)
	}
	return stop
}

// completeOf returns the status of a binding that has bound all resources of an export, or nil.
func (t *table) completeOf(export client.Key) *apisv1alpha2.APIBindingStatus {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if l := t.complete[export]; l != nil {
		return &l.content.Status
	}
	return nil
}

func (t *table) used(uid types.UID) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.uses[uid] > 0
}

func (t *table) find(cluster logicalcluster.Name, resource schema.GroupResource) (*record, bound, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return findIn(t.clusters[cluster], resource)
}

// record returns a binding, or nil. It does not scan the logical cluster, which may have thousands.
func (t *table) record(cluster logicalcluster.Name, name string) *record {
	b, err := t.informer.Lister().Get(client.Key{Cluster: cluster, Name: name})
	if err != nil {
		return nil
	}
	all := t.records(cluster)
	at, found := slices.BinarySearchFunc(all, &record{name: name, created: b.CreationTimestamp}, (*record).before)
	if !found {
		return nil
	}
	return all[at]
}

func (t *table) records(cluster logicalcluster.Name) []*record {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.clusters[cluster]
}

// recordsFor returns all bindings of the logical clusters that have a binding to an export.
func (t *table) recordsFor(export client.Key) map[logicalcluster.Name][]*record {
	t.mu.RLock()
	defer t.mu.RUnlock()
	found := map[logicalcluster.Name][]*record{}
	for cluster, all := range t.clusters {
		if slices.ContainsFunc(all, func(r *record) bool { return r.of(export) }) {
			found[cluster] = all
		}
	}
	return found
}

// Binds reports whether a logical cluster of the shard has a binding to an export, even if nothing is bound yet.
func (t *table) Binds(cluster logicalcluster.Name, export client.Key) bool {
	return slices.ContainsFunc(t.records(cluster), func(r *record) bool { return r.of(export) })
}

func (t *table) schemasIn(w identified) []types.UID {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Keys(t.identities[w]))
}

func (t *table) schemasOf(resource schema.GroupResource) []types.UID {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var all []types.UID
	for w, uids := range t.identities {
		if w.resource == resource {
			all = slices.AppendSeq(all, maps.Keys(uids))
		}
	}
	return all
}

// storedIn returns the schemas that are bound under an identity, and all versions in which objects may be stored.
func (t *table) storedIn(w identified) (uids []types.UID, versions []string) {
	t.mu.RLock()
	versions = slices.AppendSeq(versions, maps.Keys(t.versions[w]))
	t.mu.RUnlock()
	return t.schemasIn(w), versions
}

func (t *table) identitiesOf(uid types.UID) []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var all []string
	for w, uids := range t.identities {
		if uids[uid] > 0 {
			all = append(all, w.identity)
		}
	}
	return all
}

// exportsWith returns the exports under whose identity something is bound, without deleted exports.
func (t *table) exportsWith(identityHash string) map[client.Key]bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	of := map[client.Key]bool{}
	for _, l := range t.lists {
		for _, b := range l.byResource {
			if b.identity == identityHash && !l.exportNotFound() {
				export, _ := l.exportKey()
				of[export] = true
			}
		}
	}
	return of
}

func (t *table) wait(ctx context.Context, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpWait)
	defer cancel()
	ticker := time.NewTicker(recheckInterval)
	defer ticker.Stop()
	for {
		t.mu.RLock()
		changed := t.changed
		t.mu.RUnlock()
		if done() {
			return nil
		}
		select {
		case <-ctx.Done():
			return errNotSynced
		case <-changed:
		case <-ticker.C:
		}
	}
}

func (t *table) waitSynced(ctx context.Context) error {
	if t.informer.HasSynced() {
		return nil
	}
	return waitFirst(ctx, t.informer.WaitForSync)
}

// waitFirst waits for an initial list for a limited time.
func waitFirst(ctx context.Context, wait func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpWait)
	defer cancel()
	if wait(ctx) != nil {
		return errNotSynced
	}
	return nil
}

// waitUntil waits until all changes of bindings up to a revision have been applied.
func (t *table) waitUntil(ctx context.Context, revision uint64) error {
	return t.wait(ctx, func() bool {
		t.mu.RLock()
		seen := t.seen
		t.mu.RUnlock()
		return max(seen, revisionOf(t.informer.ResourceVersion())) >= revision
	})
}
