package garbagecollector

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"maps"
	"slices"
	"sync"

	"github.com/google/uuid"
	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"k8s.io/utils/third_party/forked/golang/btree"

	"github.com/shardplane/shardplane/pkg/storage"
)

// graph contains the dependents of each owner, without objects that have neither owners nor dependents.
type graph struct {
	mu         sync.Mutex
	references *btree.BTree[reference]
	// waiting are the owners that wait for their dependents.
	waiting map[owner]Item
	// deleted are deleted owners with references to them: they are absent even if their kind was deleted with them.
	deleted map[owner]struct{}
	// added are the items with new references, which may be invalid.
	added map[Item]struct{}

	todo todo
	wake chan struct{}
}

type todo struct {
	items []Item
	// owners are those with dependents that must be examined.
	owners []owner
}

type reference struct {
	owner owner
	dependent
}

type dependent struct {
	item   Item
	blocks bool // the deletion of the owner
}

func (r reference) precedes(other reference) bool {
	return cmp.Or(cmp.Compare(r.owner.cluster, other.owner.cluster), bytes.Compare(r.owner.uid[:], other.owner.uid[:]), cmp.Compare(r.item, other.item)) < 0
}

// degree is the minimum number of children of a node of the tree.
const degree = 32

func newGraph() *graph {
	return &graph{references: btree.New(degree, reference.precedes), waiting: map[owner]Item{}, deleted: map[owner]struct{}{}, added: map[Item]struct{}{}, wake: make(chan struct{}, 1)}
}

// changed processes a change. The zero value stands for an object that does not exist.
func (g *graph) changed(item Item, before, after object) {
	if before.uid != after.uid && before.uid != "" && after.uid != "" { // replaced by another object with the same name
		g.changed(item, before, object{})
		g.changed(item, object{}, after)
		return
	}
	if unowned(item) {
		before.references, after.references = nil, nil
	}
	// Objects without references that are not being deleted are irrelevant.
	deleted := after.uid == "" && before.uid != ""
	if len(before.references)+len(after.references) == 0 && !before.deleting && !after.deleting && !deleted {
		return
	}
	cluster := item.LogicalCluster()
	if cluster == "" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	self := ownerOf(cluster, types.UID(max(string(before.uid), string(after.uid))))
	if deleted {
		delete(g.waiting, self)
		delete(g.added, item)
		if g.ownsLocked(self) {
			g.deleted[self] = struct{}{}
			g.todo.owners = append(g.todo.owners, self)
		}
	} else {
		g.beginLocked(self, item, before, after)
	}
	g.referLocked(item, before, after)
	g.wakeLocked()
}

// beginLocked enqueues an item that begins to wait for its dependents or to orphan them.
func (g *graph) beginLocked(self owner, item Item, before, after object) {
	switch {
	case !after.waits():
		delete(g.waiting, self)
	case !before.waits():
		g.waiting[self] = item
		g.todo.items = append(g.todo.items, item)
		if g.ownsLocked(self) {
			g.todo.owners = append(g.todo.owners, self)
		}
	}
	if after.orphans() && !before.orphans() {
		g.todo.items = append(g.todo.items, item)
	}
}

// referLocked updates the references of an item, and enqueues it if they have changed, and owners that wait for it.
func (g *graph) referLocked(item Item, before, after object) {
	if len(before.references)+len(after.references) == 0 {
		return
	}
	was, is := uidsOf(before), uidsOf(after)
	cluster := item.LogicalCluster()
	examine := false
	for uid, blocks := range is {
		if blocked, known := was[uid]; !known || blocked != blocks {
			examine = g.addLocked(ownerOf(cluster, uid), item, blocks) || examine
		}
	}
	for uid := range was {
		if _, still := is[uid]; !still {
			g.dropLocked(ownerOf(cluster, uid), item)
		}
	}
	// Other fields of a reference are relevant, too.
	examine = examine || after.uid != "" && !slices.EqualFunc(before.references, after.references, sameReference)
	if examine {
		g.added[item] = struct{}{}
	}
	if examine || after.uid != "" && (before.orphaning != after.orphaning || before.foreground != after.foreground) {
		g.todo.items = append(g.todo.items, item)
	}
}

// addLocked adds a dependent of an owner, or changes whether it blocks, and reports whether it was added.
func (g *graph) addLocked(o owner, item Item, blocks bool) bool {
	_, known := g.references.ReplaceOrInsert(reference{o, dependent{item, blocks}})
	g.enqueueWaitingLocked(o)
	return !known
}

func (g *graph) dropLocked(o owner, item Item) {
	g.references.Delete(reference{o, dependent{item: item}})
	if !g.ownsLocked(o) {
		delete(g.deleted, o)
	}
	g.enqueueWaitingLocked(o)
}

func (g *graph) enqueueWaitingLocked(o owner) {
	if waiting, ok := g.waiting[o]; ok {
		g.todo.items = append(g.todo.items, waiting)
	}
}

// uidsOf returns the UIDs that an object refers to, and whether it blocks the deletion of the owner.
func uidsOf(o object) map[types.UID]bool {
	uids := make(map[types.UID]bool, len(o.references))
	for i := range o.references {
		r := &o.references[i]
		uids[r.UID] = uids[r.UID] || ptr.Deref(r.BlockOwnerDeletion, false)
	}
	return uids
}

func (g *graph) dependentsOf(o owner) (all []dependent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.references.AscendGreaterOrEqual(reference{owner: o}, func(r reference) bool {
		if r.owner == o {
			all = append(all, r.dependent)
		}
		return r.owner == o
	})
	return all
}

func (g *graph) ownsLocked(o owner) (owns bool) {
	g.references.AscendGreaterOrEqual(reference{owner: o}, func(r reference) bool {
		owns = r.owner == o
		return false
	})
	return owns
}

// isDeleted reports whether an owner with dependents was observed to be deleted.
func (g *graph) isDeleted(o owner) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, deleted := g.deleted[o]
	return deleted
}

func (g *graph) take() todo {
	g.mu.Lock()
	defer g.mu.Unlock()
	taken := g.todo
	g.todo = todo{}
	return taken
}

// putAdded reverts takeAdded.
func (g *graph) putAdded(item Item) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.added[item] = struct{}{}
}

// takeAdded reports whether the item has new references, and clears this state.
func (g *graph) takeAdded(item Item) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, added := g.added[item]
	delete(g.added, item)
	return added
}

// replace replaces the state by the state of another graph, and enqueues all items, because deletions of owners may
// have been missed.
func (g *graph) replace(by *graph) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for o := range g.deleted {
		if by.ownsLocked(o) {
			by.deleted[o] = struct{}{}
		}
	}
	g.references, g.waiting, g.deleted, g.added = by.references, by.waiting, by.deleted, by.added
	g.todo.items = append(g.todo.items, by.todo.items...)
	g.todo.owners = append(g.todo.owners, by.todo.owners...)
	g.wakeLocked()
}

func (g *graph) wakeLocked() {
	if len(g.todo.items)+len(g.todo.owners) == 0 {
		return
	}
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

func (g *graph) all() []Item {
	g.mu.Lock()
	defer g.mu.Unlock()
	found := make(map[Item]struct{}, g.references.Len())
	g.references.Ascend(func(r reference) bool {
		found[r.item] = struct{}{}
		return true
	})
	return slices.Collect(maps.Keys(found))
}

func (g *graph) size() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.references.Len()
}

// Item identifies an object by its storage key.
type Item string

func (i Item) prefix() string { return storage.ResourcePrefixOf(string(i)) }

// key returns the parts of the key; the zero value if the object is not in a logical cluster.
func (i Item) key() storage.ObjectKey {
	p, _ := storage.ObjectKeyOf(i.prefix(), string(i))
	return p
}

// LogicalCluster returns the logical cluster of the object.
func (i Item) LogicalCluster() logicalcluster.Name { return i.key().Cluster }

// unowned reports whether owner references are ignored, because users with write access must not delete a LogicalCluster.
func unowned(i Item) bool { return i.prefix() == "/core.kcp.io/logicalclusters/" }

type object struct {
	uid                             types.UID
	version                         string
	deleting, orphaning, foreground bool
	finalizers                      []string
	references                      []metav1.OwnerReference
}

func (o *object) waits() bool { return o.deleting && o.foreground }

func (o *object) orphans() bool { return o.deleting && o.orphaning }

func objectOf(h storage.Header) object {
	return object{
		uid: h.UID, version: h.ResourceVersion, deleting: h.DeletionTimestamp != nil, finalizers: h.Finalizers, references: h.OwnerReferences,
		orphaning:  slices.Contains(h.Finalizers, metav1.FinalizerOrphanDependents),
		foreground: slices.Contains(h.Finalizers, metav1.FinalizerDeleteDependents),
	}
}

// owner is a UID in a logical cluster. Equal UIDs in different logical clusters are different owners.
type owner struct {
	cluster logicalcluster.Name
	uid     [16]byte
}

func sameReference(a, b metav1.OwnerReference) bool {
	return a.UID == b.UID && a.APIVersion == b.APIVersion && a.Kind == b.Kind && a.Name == b.Name
}

// ownerOf returns the owner with a UID; those that are not UUIDs are hashed. A collision only causes an examination.
func ownerOf(cluster logicalcluster.Name, uid types.UID) owner {
	o := owner{cluster: cluster}
	if id, err := uuid.Parse(string(uid)); err == nil {
		o.uid = id
		return o
	}
	sum := sha256.Sum256([]byte(uid))
	copy(o.uid[:], sum[:])
	return o
}
