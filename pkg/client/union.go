package client

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Union combines the objects of a resource on several shards, each followed by an informer that can be added and
// removed. Package shards maintains one according to the Shard objects.
//
// While several shards have an object, e.g. while its logical cluster is migrated, the copy that was received last
// is the valid one. Handlers are notified of it as an update, and not of the end of other copies. If the valid
// copy is deleted, the previous one becomes valid. resourceVersions of different shards are never compared.
type Union[T Object] struct {
	name string
	// complete returns an error while informers may still have to be added.
	complete func() error

	aggregate[T]

	// members are copied on write. The slot of a removed member is reused.
	members   atomic.Pointer[[]*unionMember[T]]
	locations locations[T]
}

type unionMember[T Object] struct {
	shard    string
	id       uint32
	informer *Informer[T]
}

// NewUnion returns a union without informers. complete returns an error while informers may still have to be
// added, which is part of the error of Get for objects that were not found; nil means that all have been added.
func NewUnion[T Object](name string, complete func() error) *Union[T] {
	if complete == nil {
		complete = func() error { return nil }
	}
	u := &Union[T]{name: name, complete: complete}
	u.locations = newLocations(u.objectsOf)
	u.aggregate = aggregate[T]{mu: &sync.Mutex{}, handlers: handlers[T]{name: name, counts: &counts{}}, visible: u.shown}
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
	u.follow(informer, func(c Change[T]) { u.changed(m, c) })
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

func (u *Union[T]) member(shard string) *unionMember[T] {
	for _, m := range *u.members.Load() {
		if m != nil && m.shard == shard {
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
	for _, m := range *u.members.Load() {
		if m != nil {
			names = append(names, m.shard)
		}
	}
	slices.Sort(names)
	return names
}

// MarkSynced closes the Synced channels of handlers. It is called when all initial objects were delivered.
func (u *Union[T]) MarkSynced() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.markSynced()
}

// shown yields the valid copies by key, with the lock of the informers held.
func (u *Union[T]) shown(visit func(Key, T) bool) {
	for _, m := range *u.members.Load() {
		if m == nil {
			continue
		}
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
	case c.unseen:
		if _, _, hidden := u.Lister().find(c.Key); !hidden {
			u.handlers.notify(c)
		}
	case c.Had && c.Has:
		if u.locations.renew(cluster, l, m.id) {
			u.handlers.notify(c)
		}
	case c.Has:
		if before, hidden := u.locations.add(cluster, l, m.id); hidden {
			c.Old, c.Had = u.copyOf(before, cluster, l)
			c.Same = c.Had && c.Old.GetUID() == c.New.GetUID()
		}
		u.handlers.notify(c)
	case c.Had:
		counted, now, left := u.locations.remove(cluster, l, m.id)
		if left {
			c.New, c.Has = u.copyOf(now, cluster, l)
		}
		switch {
		case !counted:
		case c.Has:
			c.Key.Shard, c.leave = (*u.members.Load())[now].shard, ""
			c.Same = c.Old.GetUID() == c.New.GetUID()
			u.handlers.notify(c)
		default:
			u.handlers.notify(c)
		}
	}
}

func (u *Union[T]) copyOf(member uint32, cluster logicalcluster.Name, l local) (T, bool) {
	return (*u.members.Load())[member].informer.store.get(l.key(cluster))
}

func (u *Union[T]) objectsOf(member uint32, cluster logicalcluster.Name) *objects[local, T] {
	return (*u.members.Load())[member].informer.store.of(cluster)
}

// missed returns the error for an object that was not found.
func (u *Union[T]) missed(key Key) error {
	if err := u.complete(); err != nil {
		return fmt.Errorf("%w: %w", ErrIncomplete, err)
	}
	var notFound error
	for _, m := range *u.members.Load() {
		if m == nil {
			continue
		}
		// A shard that does not serve the resource has no objects of it.
		if why := m.informer.LastError(); !m.informer.HasSynced() && !apierrors.IsNotFound(why) {
			return errors.Join(fmt.Errorf("%w: shard %s has not synced", ErrIncomplete, m.shard), why)
		}
		err := m.informer.missed(key.Cluster, key.Namespace, key.Name)
		if !apierrors.IsNotFound(err) {
			return err
		}
		notFound = err
	}
	if notFound != nil {
		return notFound
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}
