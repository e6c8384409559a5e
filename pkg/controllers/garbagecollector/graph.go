package garbagecollector

import (
	"crypto/sha256"
	"maps"
	"slices"
	"sync"

	"github.com/google/uuid"
	"github.com/kcp-dev/logicalcluster/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/storage"
)

// graph contains the dependents of each owner, without objects that have neither owners nor dependents.
type graph struct {
	mu     sync.Mutex
	owners map[owner]dependents
	// waiting are the owners that wait for their dependents.
	waiting map[owner]Item
	// deleted are deleted owners with references to them: they are absent even if their kind was deleted with them.
	deleted map[owner]struct{}
	// added are the items with new references, which may be invalid.
	added      map[Item]struct{}
	references int // their number

	todo todo
	wake chan struct{}
}

type todo struct {
	items []Item
	// owners are those with dependents that must be examined.
	owners []owner
}

// dependents are the items that refer to an owner, and whether they block its deletion. Most owners have few.
type dependents struct {
	few  []dependent
	many map[Item]bool
}

type dependent struct {
	item   Item
	blocks bool
}

const few = 16

func newGraph() *graph {
	return &graph{owners: map[owner]dependents{}, waiting: map[owner]Item{}, deleted: map[owner]struct{}{}, added: map[Item]struct{}{}, wake: make(chan struct{}, 1)}
}

// put adds a dependent, or changes whether it blocks, and reports whether it was added.
func (d *dependents) put(item Item, blocks bool) bool {
	if d.many != nil {
		_, known := d.many[item]
		d.many[item] = blocks
		return !known
	}
	for i := range d.few {
		if d.few[i].item == item {
			d.few[i].blocks = blocks
			return false
		}
	}
	if len(d.few) < few {
		d.few = append(d.few, dependent{item, blocks})
		return true
	}
	d.many = make(map[Item]bool, 2*few)
	for _, known := range d.few {
		d.many[known.item] = known.blocks
	}
	d.many[item], d.few = blocks, nil
	return true
}

func (d *dependents) remove(item Item) bool {
	if d.many != nil {
		_, known := d.many[item]
		delete(d.many, item)
		return known
	}
	for i := range d.few {
		if d.few[i].item == item {
			last := len(d.few) - 1
			d.few[i] = d.few[last]
			d.few[last] = dependent{}
			d.few = d.few[:last]
			return true
		}
	}
	return false
}

func (d *dependents) len() int { return len(d.few) + len(d.many) }

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
		if _, owns := g.owners[self]; owns {
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
		if _, owns := g.owners[self]; owns {
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
	d := g.owners[o]
	added := d.put(item, blocks)
	if added {
		g.references++
	}
	g.owners[o] = d
	g.enqueueWaitingLocked(o)
	return added
}

func (g *graph) dropLocked(o owner, item Item) {
	d := g.owners[o]
	if d.remove(item) {
		g.references--
	}
	if d.len() == 0 {
		delete(g.owners, o)
		delete(g.deleted, o)
	} else {
		g.owners[o] = d
	}
	g.enqueueWaitingLocked(o)
}

// enqueueWaitingLocked enqueues an owner that waits for its dependents.
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
		uids[r.UID] = uids[r.UID] || isTrue(r.BlockOwnerDeletion)
	}
	return uids
}

func (g *graph) dependentsOf(o owner) []dependent {
	g.mu.Lock()
	defer g.mu.Unlock()
	d := g.owners[o]
	all := slices.Clone(d.few)
	for item, blocks := range d.many {
		all = append(all, dependent{item, blocks})
	}
	return all
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

// replace replaces the state by that of another graph and enqueues all items, because deletions of owners may have been missed.
func (g *graph) replace(by *graph) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for o := range g.deleted {
		if _, owns := by.owners[o]; owns {
			by.deleted[o] = struct{}{}
		}
	}
	g.owners, g.waiting, g.deleted, g.added, g.references = by.owners, by.waiting, by.deleted, by.added, by.references
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
	found := make(map[Item]struct{}, g.references)
	for _, d := range g.owners {
		for _, of := range d.few {
			found[of.item] = struct{}{}
		}
		for item := range d.many {
			found[item] = struct{}{}
		}
	}
	return slices.Collect(maps.Keys(found))
}

func (g *graph) size() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.references
}

// Item identifies an object by its storage key.
type Item string

func (i Item) prefix() string { return storage.ResourcePrefixOf(string(i)) }

// place returns the parts of the key; the zero value if the object is not in a logical cluster.
func (i Item) place() storage.ObjectKey {
	p, _ := storage.ObjectKeyOf(i.prefix(), string(i))
	return p
}

// LogicalCluster returns the logical cluster of the object.
func (i Item) LogicalCluster() logicalcluster.Name { return i.place().Cluster }

// unowned reports whether owner references are ignored: the deletion of a LogicalCluster is restricted, so users with
// write access must not cause it.
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

// refers reports whether the object has a reference to a UID, and whether one of them blocks the deletion of the owner.
func (o *object) refers(uid types.UID) (refers, blocks bool) {
	for i := range o.references {
		if r := &o.references[i]; r.UID == uid {
			refers = true
			blocks = blocks || isTrue(r.BlockOwnerDeletion)
		}
	}
	return refers, blocks
}

func isTrue(b *bool) bool { return b != nil && *b }

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
