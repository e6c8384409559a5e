package client

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Union combines the objects of a resource on several shards, each followed by an informer. See also package shards.
//
// While several shards have an object, e.g. while its logical cluster is migrated, the copy that was received last
// is the valid one. Handlers are notified of it as an update, and not of the end of other copies. If the valid
// copy is deleted, the previous one becomes valid. resourceVersions of different shards are never compared.
type Union[T Object] struct {
	name     string
	complete func() error

	handlers[T]

	// members are copied on write. The slot of a removed member is reused.
	members   atomic.Pointer[[]*unionMember[T]]
	locations locations
}

type unionMember[T Object] struct {
	shard    string
	id       uint32
	informer *Informer[T]
}

// NewUnion returns a union without informers. While informers may still have to be added, complete returns an error,
// which becomes part of the error for objects that were not found.
func NewUnion[T Object](name string, complete func() error) *Union[T] {
	if complete == nil {
		complete = func() error { return nil }
	}
	u := &Union[T]{name: name, complete: complete}
	u.locations = locations{
		in: func(member uint32, cluster logicalcluster.Name, visit func(local)) {
			(*u.members.Load())[member].informer.store.inCluster(cluster, func(l local, _ T) { visit(l) })
		},
		single: map[logicalcluster.Name]soleLocation{}, several: map[logicalcluster.Name]*sharedCluster{},
	}
	u.handlers = handlers[T]{informer: name, panics: &atomic.Uint64{}, mu: &turn{}, visible: u.shown}
	u.members.Store(&[]*unionMember[T]{})
	return u
}

// Add adds the informer of a shard, which must not have run. The caller runs it.
func (u *Union[T]) Add(shard string, informer *Informer[T]) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.Of(shard) != nil {
		return fmt.Errorf("%s already has an informer of shard %q", u.name, shard)
	}
	if informer.store.len() > 0 {
		return fmt.Errorf("informer %s of shard %q was run before it was added to %s", informer.name, shard, u.name)
	}
	members := slices.Clone(*u.members.Load())
	at := slices.Index(members, nil)
	if at < 0 {
		at, members = len(members), append(members, nil)
	}
	m := &unionMember[T]{shard: shard, id: uint32(at), informer: informer} //nolint:gosec // there are fewer shards
	members[at] = m
	informer.mu = u.mu
	informer.followers = append(informer.followers, func(c Change[T]) { u.changed(m, c) })
	u.members.Store(&members)
	return nil
}

// Remove removes the informer of a shard, which must not run any more. Its objects leave the union.
func (u *Union[T]) Remove(shard string, why Leave) {
	u.mu.Lock()
	m := u.member(shard)
	u.mu.Unlock()
	if m == nil {
		return
	}
	for _, key := range m.informer.store.keys(func(Key, T) bool { return true }) {
		u.mu.Lock() // not for the entire loop, so that others can make progress
		if old, removed := m.informer.store.remove(key); removed {
			m.informer.notify(Change[T]{Key: key, Old: old, Had: true, last: old, leave: why})
		}
		u.mu.Unlock()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	members := slices.Clone(*u.members.Load())
	members[m.id] = nil
	u.members.Store(&members)
}

func (u *Union[T]) each(visit func(*unionMember[T]) bool) {
	for _, m := range *u.members.Load() {
		if m != nil && !visit(m) {
			return
		}
	}
}

func (u *Union[T]) member(shard string) *unionMember[T] {
	for m := range u.each {
		if m.shard == shard {
			return m
		}
	}
	return nil
}

// Of returns the informer of a shard, or nil. Its copies may be superseded by those of other shards.
func (u *Union[T]) Of(shard string) *Informer[T] {
	if m := u.member(shard); m != nil {
		return m.informer
	}
	return nil
}

// Shards returns the sorted names of the shards that have informers.
func (u *Union[T]) Shards() []string {
	var names []string
	for m := range u.each {
		names = append(names, m.shard)
	}
	slices.Sort(names)
	return names
}

// MarkSynced closes the Synced channels of handlers. It is called when all initial objects were delivered.
func (u *Union[T]) MarkSynced() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.synced {
		u.notifySynced()
	}
}

// Wait waits until buffered handlers were notified of all changes.
func (u *Union[T]) Wait() { u.wait() }

// shown yields the valid copies by key, with the lock of the informers held.
func (u *Union[T]) shown(visit func(Key, T) bool) {
	for m := range u.each {
		for key, obj := range m.informer.present {
			if u.locations.superseded(key.Cluster, key.local(), m.id) {
				continue
			}
			key.Shard = m.shard
			if !visit(key, obj) {
				return
			}
		}
	}
}

// changed notifies handlers of a change of a member, with the lock held.
func (u *Union[T]) changed(m *unionMember[T], c Change[T]) {
	cluster, l := c.Key.Cluster, c.Key.local()
	c.Key.Shard = m.shard
	switch {
	case c.Unseen:
		if _, _, hidden := u.Lister().find(c.Key); hidden {
			return
		}
	case c.Had && c.Has:
		if !u.locations.renew(cluster, l, m.id) {
			return
		}
	case c.Has:
		if before, hidden := u.locations.add(cluster, l, m.id); hidden {
			c.Old, c.Had = u.copyOf(before, cluster, l)
			c.Same = c.Had && c.Old.GetUID() == c.New.GetUID()
		}
	case c.Had:
		counted, now, left := u.locations.remove(cluster, l, m.id)
		if !counted {
			return
		}
		if left {
			c.New, c.Has = u.copyOf(now, cluster, l)
		}
		if c.Has {
			c.Key.Shard, c.leave = (*u.members.Load())[now].shard, ""
			c.Same = c.Old.GetUID() == c.New.GetUID()
		}
	}
	u.handlers.notify(c)
}

func (u *Union[T]) copyOf(member uint32, cluster logicalcluster.Name, l local) (T, bool) {
	return (*u.members.Load())[member].informer.store.get(l.key(cluster))
}

// missed returns the error for an object that was not found.
func (u *Union[T]) missed(key Key) error {
	if err := u.complete(); err != nil {
		return fmt.Errorf("%w: %w", ErrIncomplete, err)
	}
	var err error = apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	for m := range u.each {
		// A shard that does not serve the resource has no objects of it.
		if why := m.informer.LastError(); !m.informer.HasSynced() && !apierrors.IsNotFound(why) {
			return errors.Join(fmt.Errorf("%w: shard %s has not synced", ErrIncomplete, m.shard), why)
		}
		if err = m.informer.missed(key.Cluster, key.Namespace, key.Name); !apierrors.IsNotFound(err) {
			return err
		}
	}
	return err
}

// UnionLister reads the valid copies of a Union. They are shared: copy them before changing them.
type UnionLister[T Object] struct {
	union *Union[T]
}

// Lister returns the lister of the objects of all shards.
func (u *Union[T]) Lister() UnionLister[T] { return UnionLister[T]{u} }

// Get returns the object with the given key on any shard. It returns NotFound and ErrNotOwned as Lister.Get does, and
// ErrIncomplete while a shard that may have the object has not been read. The shard of the key is ignored.
func (l UnionLister[T]) Get(key Key) (T, error) {
	obj, _, err := l.Find(key)
	return obj, err
}

// Find is Get, and returns the shard of the object, too.
func (l UnionLister[T]) Find(key Key) (obj T, shard string, err error) {
	obj, m, ok := l.find(key)
	if !ok {
		return obj, "", l.union.missed(key)
	}
	return obj, m.shard, nil
}

func (l UnionLister[T]) find(key Key) (T, *unionMember[T], bool) {
	u := l.union
	key.Shard = ""
	u.locations.mu.RLock()
	defer u.locations.mu.RUnlock()
	members := *u.members.Load()
	if one, ok := u.locations.single[key.Cluster]; ok {
		m := members[one.member]
		obj, found := m.informer.store.get(key)
		return obj, m, found
	}
	if s := u.locations.several[key.Cluster]; s != nil {
		// If the valid copy was just deleted, the previous one is valid.
		for _, at := range slices.Backward(s.copies[key.local()]) {
			if obj, found := members[at].informer.store.get(key); found {
				return obj, members[at], true
			}
		}
	}
	var none T
	return none, nil, false
}

// ShardOf returns the shard with the most objects of a logical cluster, or "".
func (l UnionLister[T]) ShardOf(cluster logicalcluster.Name) string {
	u := l.union
	u.locations.mu.RLock()
	defer u.locations.mu.RUnlock()
	if in := u.locations.members(cluster); len(in) > 0 {
		return (*u.members.Load())[in[0]].shard
	}
	return ""
}

// Len returns the number of objects.
func (l UnionLister[T]) Len() int {
	u := l.union
	u.locations.mu.RLock()
	defer u.locations.mu.RUnlock()
	n := 0
	for m := range u.each {
		n += m.informer.store.len()
	}
	for _, s := range u.locations.several {
		for _, copies := range s.copies {
			n -= len(copies) - 1
		}
	}
	return n
}

// Clusters returns the names of the logical clusters that have objects.
func (l UnionLister[T]) Clusters() []logicalcluster.Name {
	u := l.union
	u.locations.mu.RLock()
	defer u.locations.mu.RUnlock()
	names := make([]logicalcluster.Name, 0, len(u.locations.single)+len(u.locations.several))
	names = slices.AppendSeq(names, maps.Keys(u.locations.single))
	return slices.AppendSeq(names, maps.Keys(u.locations.several))
}

// List returns all objects that match, in no particular order. A nil selector matches everything.
func (l UnionLister[T]) List(selector labels.Selector) []T {
	u := l.union
	u.locations.mu.RLock()
	defer u.locations.mu.RUnlock()
	var all []T
	for m := range u.each {
		all = append(all, l.valid(m, m.informer.Lister().List(selector))...)
	}
	return all
}

// ByIndex returns the objects with a value of the named index, which all informers must have.
func (l UnionLister[T]) ByIndex(index, value string) ([]T, error) {
	u := l.union
	u.locations.mu.RLock()
	defer u.locations.mu.RUnlock()
	var all, found []T
	var err error
	for m := range u.each {
		if found, err = m.informer.store.byIndex(index, value); err != nil {
			break // a return would give the results names in the exported API
		}
		all = append(all, l.valid(m, found)...)
	}
	if err != nil {
		return nil, err
	}
	return all, nil
}

// InCluster returns the objects of a logical cluster that match, ordered by namespace and name.
func (l UnionLister[T]) InCluster(cluster logicalcluster.Name, selector labels.Selector) []T {
	u := l.union
	u.locations.mu.RLock()
	defer u.locations.mu.RUnlock()
	in := u.locations.members(cluster)
	all := make([]T, 0, len(in))
	for _, at := range in {
		m := (*u.members.Load())[at]
		all = append(all, l.valid(m, m.informer.Lister().Cluster(cluster).List(selector))...)
	}
	slices.SortFunc(all, compareObjects)
	return all
}

// valid drops superseded copies, with the lock of the locations held.
func (l UnionLister[T]) valid(m *unionMember[T], objs []T) []T {
	if len(l.union.locations.several) == 0 {
		return objs
	}
	return slices.DeleteFunc(objs, func(obj T) bool {
		key := KeyOf(obj)
		return l.union.locations.superseded(key.Cluster, key.local(), m.id)
	})
}
