package garbagecollector

import (
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// graph knows the dependents of each owner, and nothing of objects that nobody owns and that
// own nobody. It is told of every change and says which items are to be looked at; what is to
// be done with them is read from the objects themselves then.
type graph struct {
	mu     sync.Mutex
	owners map[owner]dependents
	// waiting are the owners that wait for their dependents.
	waiting map[owner]Item
	// gone are the owners that went while it was told, as long as somebody refers to them: they
	// are absent, also when nobody serves their kind any more, which may go with them.
	gone map[owner]struct{}
	// added are the items whose references are new: they may say what never was right.
	added map[Item]struct{}
	// references is how many there are.
	references int

	todo todo
	wake chan struct{}
}

// todo is what is to be looked at.
type todo struct {
	items []Item
	// owners are those whose dependents are to be looked at.
	owners []owner
}

// dependents are the items that refer to an owner, with whether they block it. Most owners have
// few.
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
	return &graph{owners: map[owner]dependents{}, waiting: map[owner]Item{}, gone: map[owner]struct{}{}, added: map[Item]struct{}{}, wake: make(chan struct{}, 1)}
}

// put adds a dependent or changes whether it blocks, and reports whether it is new.
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

// remove reports whether the item was there.
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

// changed takes a change in: before is the zero value of what is new, after of what is gone.
func (g *graph) changed(item Item, before, after object) {
	if before.uid != after.uid && before.uid != "" && after.uid != "" { // another one of the name
		g.changed(item, before, object{})
		g.changed(item, object{}, after)
		return
	}
	if unowned(item) {
		before.references, after.references = nil, nil
	}
	// An object that neither refers to others nor is, or was, being deleted concerns nobody.
	gone := after.uid == "" && before.uid != ""
	if len(before.references)+len(after.references) == 0 && !before.deleting && !after.deleting && !gone {
		return
	}
	cluster := item.LogicalCluster()
	if cluster == "" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	self := ownerOf(cluster, types.UID(max(string(before.uid), string(after.uid))))
	if gone {
		delete(g.waiting, self)
		delete(g.added, item)
		if _, owns := g.owners[self]; owns {
			g.gone[self] = struct{}{}
			g.todo.owners = append(g.todo.owners, self)
		}
	} else {
		g.beginLocked(self, item, before, after)
	}
	g.referLocked(item, before, after)
	g.wakeLocked()
}

// beginLocked has the item looked at where it begins to wait for its dependents, or to orphan
// them.
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

// referLocked takes in what the item refers to. One that refers to others than before is looked
// at, and an owner that waited for it.
func (g *graph) referLocked(item Item, before, after object) {
	if len(before.references)+len(after.references) == 0 {
		return
	}
	was, is := uidsOf(before), uidsOf(after)
	cluster := item.LogicalCluster()
	look := false
	for uid, blocks := range is {
		if blocked, known := was[uid]; !known || blocked != blocks {
			look = g.addLocked(ownerOf(cluster, uid), item, blocks) || look
		}
	}
	for uid := range was {
		if _, still := is[uid]; !still {
			g.dropLocked(ownerOf(cluster, uid), item)
		}
	}
	// What a reference says besides its UID counts, too.
	look = look || after.uid != "" && !slices.EqualFunc(before.references, after.references, sameReference)
	if look {
		g.added[item] = struct{}{}
	}
	if look || after.uid != "" && (before.orphaning != after.orphaning || before.foreground != after.foreground) {
		g.todo.items = append(g.todo.items, item)
	}
}

// addLocked adds a dependent of an owner, or changes whether it blocks that, and reports whether
// it is new.
func (g *graph) addLocked(o owner, item Item, blocks bool) bool {
	d := g.owners[o]
	added := d.put(item, blocks)
	if added {
		g.references++
	}
	g.owners[o] = d
	g.lookAtWaitingLocked(o)
	return added
}

// dropLocked removes a dependent of an owner.
func (g *graph) dropLocked(o owner, item Item) {
	d := g.owners[o]
	if d.remove(item) {
		g.references--
	}
	if d.len() == 0 {
		delete(g.owners, o)
		delete(g.gone, o)
	} else {
		g.owners[o] = d
	}
	g.lookAtWaitingLocked(o)
}

// lookAtWaitingLocked has an owner looked at that waits for its dependents.
func (g *graph) lookAtWaitingLocked(o owner) {
	if waiting, ok := g.waiting[o]; ok {
		g.todo.items = append(g.todo.items, waiting)
	}
}

// uidsOf returns the UIDs that an object refers to, with whether it blocks their owner.
func uidsOf(o object) map[types.UID]bool {
	if len(o.references) == 0 {
		return nil
	}
	uids := make(map[types.UID]bool, len(o.references))
	for i := range o.references {
		r := &o.references[i]
		uids[r.UID] = uids[r.UID] || isTrue(r.BlockOwnerDeletion)
	}
	return uids
}

// dependentsOf returns a copy of the dependents of an owner.
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

// isGone reports whether an owner that has dependents was seen to go.
func (g *graph) isGone(o owner) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, gone := g.gone[o]
	return gone
}

// take returns what is to be looked at, once.
func (g *graph) take() todo {
	g.mu.Lock()
	defer g.mu.Unlock()
	taken := g.todo
	g.todo = todo{}
	return taken
}

// isAdded reports, once, whether the references of the item are new.
func (g *graph) isAdded(item Item) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, added := g.added[item]
	delete(g.added, item)
	return added
}

// replace takes what another graph knows, and has all of that looked at: owners may have gone
// unseen.
func (g *graph) replace(by *graph) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for o := range g.gone {
		if _, owns := by.owners[o]; owns {
			by.gone[o] = struct{}{}
		}
	}
	g.owners, g.waiting, g.gone, g.added, g.references = by.owners, by.waiting, by.gone, by.added, by.references
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

// all returns all dependents.
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

// size returns how many references there are.
func (g *graph) size() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.references
}
