package bindings

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
)

const (
	// catchUpWait bounds how long somebody waits for the index.
	catchUpWait = 10 * time.Second
	// waitAgain is the time between two looks at what changes without a binding that does.
	waitAgain = 100 * time.Millisecond
)

// errNotSynced is the answer to whoever asks before all bindings are known: 503, to be asked again in a
// second. It is no client.ErrIncomplete, by which bindings go on as what they say.
var errNotSynced error = request.Unavailable("not all APIBindings and APIExports are known yet, try again")

// table has the records of the bindings of a shard, by logical cluster, and what they have in common.
type table struct {
	informer *client.Informer[*apisv1alpha2.APIBinding]

	mu         sync.RWMutex
	clusters   map[logicalcluster.Name][]*record
	lists      map[string]*list
	identities map[identified]map[types.UID]int // how many lists have bound a schema there
	versions   map[identified]map[string]int    // how many lists have objects stored in a version
	uses       map[types.UID]int                // how many lists have bound a schema
	complete   map[client.Key]*list             // one that has bound all of an export
	changed    chan struct{}                    // closed and renewed with each change
	seen       uint64                           // the revision of the latest change

	changes changes
}

func newTable(local *client.Factory) *table {
	t := &table{
		clusters:   map[logicalcluster.Name][]*record{},
		lists:      map[string]*list{},
		identities: map[identified]map[types.UID]int{},
		versions:   map[identified]map[string]int{},
		uses:       map[types.UID]int{},
		complete:   map[client.Key]*list{},
		changed:    make(chan struct{}),
		changes:    changes{some: make(chan struct{}, 1)},
	}
	t.informer = kinds.APIBindings.Informer(local.Wildcard(), client.InformerOptions[*apisv1alpha2.APIBinding]{
		// In pages the JSON of many objects is written and read at once.
		DisableWatchList: true,
		Transform:        t.slim,
		Indexers:         map[string]client.IndexFunc[*apisv1alpha2.APIBinding]{apis.ExportIndex: apis.IndexByExport},
	})
	return t
}

// slim returns what an informer has to keep of a binding: what controllers find it by,
// and what it says, which those that say the same share.
func (t *table) slim(b *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error) {
	l, err := t.listOf(b)
	if err != nil {
		return nil, err
	}
	annotations := maps.Clone(l.said.Mirrored)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[logicalcluster.AnnotationKey] = b.Annotations[logicalcluster.AnnotationKey]
	return &apisv1alpha2.APIBinding{
		ObjectMeta: metav1.ObjectMeta{
			Name: b.Name, UID: b.UID, ResourceVersion: b.ResourceVersion,
			CreationTimestamp: b.CreationTimestamp, DeletionTimestamp: b.DeletionTimestamp,
			Annotations: annotations, Labels: l.said.Labels,
		},
		Spec: l.said.Spec, Status: l.said.Status,
	}, nil
}

// listOf returns the list of a binding, a new one if no binding in the index has it.
func (t *table) listOf(b *apisv1alpha2.APIBinding) (*list, error) {
	s := saidBy(b)
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

// replaceRecord returns the record that there was, and all that there were and are now in the
// logical cluster.
func (t *table) replaceRecord(cluster logicalcluster.Name, name string, r *record) (before *record, was, all []*record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was = t.clusters[cluster]
	// Readers may hold the slice that there was.
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
	return before, was, all
}

// sawRevision notes that a change was applied, and wakes those that wait.
func (t *table) sawRevision(revision uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if revision != unknownRevision {
		t.seen = max(t.seen, revision)
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

// useLocked notes that one more binding has a list.
func (t *table) useLocked(l *list) {
	l.bindings++
	if l.complete {
		t.complete[l.exportKey()] = l // the newest: exports change
	}
	if l.bindings > 1 {
		return
	}
	t.lists[l.key] = l
	t.countVersionsLocked(l, 1)
	for _, b := range l.byResource {
		t.uses[b.uid]++
		if b.virtual {
			continue // nothing is stored there
		}
		uids := t.identities[b.identified]
		if uids == nil {
			uids = map[types.UID]int{}
			t.identities[b.identified] = uids
		}
		uids[b.uid]++
		if uids[b.uid] == 1 {
			t.changes.add([]transition{wildcardTransition(b)})
		}
	}
}

// releaseLocked notes that one binding less has a list.
func (t *table) releaseLocked(l *list) {
	l.bindings--
	if l.bindings > 0 {
		return
	}
	delete(t.lists, l.key)
	t.countVersionsLocked(l, -1)
	if t.complete[l.exportKey()] == l {
		delete(t.complete, l.exportKey())
	}
	for _, b := range l.byResource {
		if t.uses[b.uid]--; t.uses[b.uid] == 0 {
			delete(t.uses, b.uid)
		}
		if b.virtual {
			continue
		}
		uids := t.identities[b.identified]
		uids[b.uid]--
		if uids[b.uid] > 0 {
			continue
		}
		delete(uids, b.uid)
		if len(uids) == 0 {
			delete(t.identities, b.identified)
		}
		t.changes.add([]transition{wildcardTransition(b)})
	}
}

// countVersionsLocked counts the versions in which the objects of bindings with a list are stored.
func (t *table) countVersionsLocked(l *list, n int) {
	for i := range l.said.Status.BoundResources {
		r := &l.said.Status.BoundResources[i]
		w := identified{schema.GroupResource{Group: r.Group, Resource: r.Resource}, r.Schema.IdentityHash}
		for _, version := range r.StorageVersions {
			if t.versions[w] == nil {
				t.versions[w] = map[string]int{}
			}
			if t.versions[w][version] += n; t.versions[w][version] == 0 {
				delete(t.versions[w], version)
			}
			if len(t.versions[w]) == 0 {
				delete(t.versions, w)
			}
		}
	}
}

// holdComplete returns what bindings have bound that have all of an export, or nil. It is
// used, as by one more binding, until release is called.
func (t *table) holdComplete(export client.Key) (l *list, release func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l = t.complete[export]; l == nil {
		return nil, nil
	}
	t.useLocked(l)
	return l, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.releaseLocked(l)
	}
}

// used reports whether a binding has bound a schema.
func (t *table) used(uid types.UID) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.uses[uid] > 0
}

// find returns what serves a resource in a logical cluster, if a binding does.
func (t *table) find(cluster logicalcluster.Name, resource schema.GroupResource) (*record, bound, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return findIn(t.clusters[cluster], resource)
}

// record returns a binding, or nil if it is not known. There may be thousands in its
// logical cluster.
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

// records returns the bindings of a logical cluster.
func (t *table) records(cluster logicalcluster.Name) []*record {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.clusters[cluster]
}

// consumers returns the bindings of the logical clusters with bindings to an export.
func (t *table) consumers(export client.Key) map[logicalcluster.Name][]*record {
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

// Binds reports whether a logical cluster of the shard has a binding to an export, which
// may have bound nothing.
func (t *table) Binds(cluster logicalcluster.Name, export client.Key) bool {
	return slices.ContainsFunc(t.records(cluster), func(r *record) bool { return r.of(export) })
}

// schemasIn returns the schemas that are bound for a resource under an identity.
func (t *table) schemasIn(w identified) []types.UID {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Keys(t.identities[w]))
}

// schemasOf returns the schemas of a resource that are bound, under any identity.
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

// storedIn returns the schemas that are bound for a resource under an identity, and the versions in
// which objects may be stored.
func (t *table) storedIn(w identified) (uids []types.UID, versions []string) {
	t.mu.RLock()
	for version := range t.versions[w] {
		versions = append(versions, version)
	}
	t.mu.RUnlock()
	return t.schemasIn(w), versions
}

// identitiesOf returns the identities under which a schema is bound.
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

// exportsWith returns the exports that bindings have bound something of under an identity, except those that
// they report as gone.
func (t *table) exportsWith(identityHash string) map[client.Key]bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	of := map[client.Key]bool{}
	for _, l := range t.lists {
		if !l.saysGone() && l.has(identityHash) {
			of[l.exportKey()] = true
		}
	}
	return of
}

// wait waits until done.
func (t *table) wait(ctx context.Context, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpWait)
	defer cancel()
	again := time.NewTicker(waitAgain)
	defer again.Stop()
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
		case <-again.C:
		}
	}
}

// waitSynced waits for the first list.
func (t *table) waitSynced(ctx context.Context) error {
	if t.informer.HasSynced() {
		return nil
	}
	return first(ctx, t.informer.WaitForSync)
}

// first waits, not for long, for the first list of something.
func first(ctx context.Context, wait func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpWait)
	defer cancel()
	if wait(ctx) != nil {
		return errNotSynced
	}
	return nil
}

// has reports whether the index is as new as all bindings were at a version.
func (t *table) has(there map[client.Key]uint64, version uint64) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	found := 0
	for cluster, all := range t.clusters {
		for _, r := range all {
			revision, was := there[client.Key{Cluster: cluster, Name: r.name}]
			switch {
			case was && r.revision < revision, !was && r.revision <= version:
				return false
			case was:
				found++
			}
		}
	}
	return found == len(there)
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
