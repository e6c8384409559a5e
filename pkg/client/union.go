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

// Union is one view of what several shards have of a resource, each followed by an informer that
// comes and goes. Package shards has one follow the Shard objects.
//
// While several shards have an object, as while its logical cluster moves from one to another,
// the copy counts that came last; handlers are told of it as an update, and of the end of the
// others nothing. If it ends before the others, the one counts that came before it. Nothing
// compares resourceVersions of different shards.
type Union[T Object] struct {
	name string
	// complete returns what is missing beside what the informers have not read yet.
	complete func() error

	view[T]

	// members are copied when they change. The place of one that went is used again.
	members atomic.Pointer[[]*unionMember[T]]
	places  places[T]
}

// unionMember is the informer of a shard.
type unionMember[T Object] struct {
	shard    string
	id       uint32
	informer *Informer[T]
}

// NewUnion returns a view that has no informers yet. complete returns an error while others may
// have to be added for it to be of everything, which look-ups that find nothing fail with; nil
// is that all have been added.
func NewUnion[T Object](name string, complete func() error) *Union[T] {
	if complete == nil {
		complete = func() error { return nil }
	}
	u := &Union[T]{name: name, complete: complete}
	u.places = newPlaces(u.objectsOf)
	u.view = view[T]{mu: &sync.Mutex{}, handlers: handlers[T]{name: name, counts: &counts{}}, visible: u.shown}
	u.members.Store(&[]*unionMember[T]{})
	return u
}

// Add adds the informer of a shard, which has not run yet. Whoever adds it runs it.
func (u *Union[T]) Add(shard string, informer *Informer[T]) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.Of(shard) != nil {
		return fmt.Errorf("%s has an informer of shard %q already", u.name, shard)
	}
	if informer.store.len() > 0 {
		return fmt.Errorf("informer %s of shard %q has run before it was added to %s", informer.name, shard, u.name)
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

// Remove takes the informer of a shard out, which does not run any more. What only it had
// leaves.
func (u *Union[T]) Remove(shard string, why Leave) {
	u.mu.Lock()
	m := u.member(shard)
	u.mu.Unlock()
	if m == nil {
		return
	}
	for _, key := range m.informer.store.keys(func(Key, T) bool { return true }) {
		u.mu.Lock() // not at once, so that others can go on between
		if old, removed := m.informer.store.remove(key); removed {
			m.informer.notify(Change[T]{Key: key, Old: old, Had: true, last: old, left: why})
		}
		u.mu.Unlock()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	members := slices.Clone(*u.members.Load())
	members[m.id] = nil
	u.members.Store(&members)
}

// member returns that of a shard, or nil.
func (u *Union[T]) member(shard string) *unionMember[T] {
	for _, m := range *u.members.Load() {
		if m != nil && m.shard == shard {
			return m
		}
	}
	return nil
}

// Of returns the informer of a shard, or nil. What it has is not always what counts in the view.
func (u *Union[T]) Of(shard string) *Informer[T] {
	if m := u.member(shard); m != nil {
		return m.informer
	}
	return nil
}

// Shards returns the names of the shards that have informers, in order.
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

// MarkSynced says that all has been told of that is initial, and has Synced of handlers close.
func (u *Union[T]) MarkSynced() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.markSynced()
}

// shown are the copies that count, by key, under the lock of the informers.
func (u *Union[T]) shown(visit func(Key, T) bool) {
	for _, m := range *u.members.Load() {
		if m == nil {
			continue
		}
		for key, obj := range m.informer.present {
			if u.places.superseded(key.Cluster, key.local(), m.id) {
				continue
			}
			key.Shard = m.shard
			if !visit(key, obj) {
				return
			}
		}
	}
}

// changed tells handlers of a change of a member, under the lock.
func (u *Union[T]) changed(m *unionMember[T], c Change[T]) {
	cluster, l := c.Key.Cluster, c.Key.local()
	c.Key.Shard = m.shard
	switch {
	case c.unseen:
		if _, _, hidden := u.Lister().find(c.Key); !hidden {
			u.handlers.tell(c)
		}
	case c.Had && c.Has:
		if u.places.renew(cluster, l, m.id) {
			u.handlers.tell(c)
		}
	case c.Has:
		if before, hidden := u.places.add(cluster, l, m.id); hidden {
			c.Old, c.Had = u.copyOf(before, cluster, l)
			c.Same = c.Had && c.Old.GetUID() == c.New.GetUID()
		}
		u.handlers.tell(c)
	case c.Had:
		counted, now, left := u.places.remove(cluster, l, m.id)
		if left {
			c.New, c.Has = u.copyOf(now, cluster, l)
		}
		switch {
		case !counted:
		case c.Has:
			c.Key.Shard, c.left = (*u.members.Load())[now].shard, ""
			c.Same = c.Old.GetUID() == c.New.GetUID()
			u.handlers.tell(c)
		default:
			u.handlers.tell(c)
		}
	}
}

// copyOf returns the object that a member has.
func (u *Union[T]) copyOf(member uint32, cluster logicalcluster.Name, l local) (T, bool) {
	return (*u.members.Load())[member].informer.store.get(l.key(cluster))
}

func (u *Union[T]) objectsOf(member uint32, cluster logicalcluster.Name) *objects[T] {
	return (*u.members.Load())[member].informer.store.of(cluster)
}

// missed returns the error of a look-up that found nothing.
func (u *Union[T]) missed(key Key) error {
	if err := u.complete(); err != nil {
		return fmt.Errorf("%w: %w", ErrIncomplete, err)
	}
	var notFound error
	for _, m := range *u.members.Load() {
		if m == nil {
			continue
		}
		// Who does not serve the resource has none of it.
		if why := m.informer.LastError(); !m.informer.HasSynced() && !apierrors.IsNotFound(why) {
			return errors.Join(fmt.Errorf("%w: shard %s has not been read", ErrIncomplete, m.shard), why)
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
