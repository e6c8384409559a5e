package replicas

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/client"
)

// DualOptions say whose objects count. Its functions are asked at each look-up,
// so that what they know may change; they must be safe for concurrent use and
// return at once.
type DualOptions struct {
	// Holds reports whether the own shard holds a logical cluster. What others
	// have of that one is left over. Nil: it holds none.
	Owns func(cluster logicalcluster.Name) bool
	// Standing says what replicas of a shard are worth, by its name. Nil: all
	// are Members.
	ShardState func(shard string) ShardState
	// Marked returns the other shards that leave marks: others are complete when all is known
	// that theirs cover, and for Complete, when these are known. Nil: there are none.
	Checkpointed func() ([]string, error)
}

// Dual is one view of what the own shard has of a resource and of what others
// have of it:
//
//	own shard     /clusters/*           ──► Informer ──┐ wins
//	                                                   ├──► Get, ByIndex, handlers
//	cache server  /shards/*/clusters/*  ──► Informer ──┘ of others only
//
// An object of the own shard wins over all replicas of the same logical cluster,
// namespace and name. Where several other shards have one, as while a logical
// cluster moves, all shards take the same: of a Member before one of a shard
// that is Leaving, one that stays before one that is being deleted, then the
// youngest, then that of the first shard by name.
//
// The own shard is enough to be synced: a shard works while the cache server is
// away. Until others were seen completely once, a look-up that finds nothing
// says client.ErrIncomplete and not that there is nothing; Complete says why. Complete
// is what covers a mark of each of the other shards that leave marks. After that
// a cache server that is away leaves everything as it was last.
type Dual[T client.Object] struct {
	own, others *client.Informer[T]
	options     DualOptions

	// view notifies handlers, under the lock of both informers.
	view *client.Composite[T]
	// counts has the number of objects by shard, under that lock, and shards the
	// names of those that have any.
	counts map[string]int
	shards atomic.Pointer[[]string]
}

// NewDual returns the view of two informers that have not run yet; running it
// runs both. The own one may have handlers already, and more than one view.
// others has options that OfOthers returns. It may be nil, where there is nothing else.
func NewDual[T client.Object](own, others *client.Informer[T], options DualOptions) *Dual[T] {
	if options.Owns == nil {
		options.Owns = func(logicalcluster.Name) bool { return false }
	}
	if options.ShardState == nil {
		options.ShardState = allActive
	}
	d := &Dual[T]{own: own, others: others, options: options, counts: map[string]int{}}
	d.shards.Store(&[]string{})
	d.view = client.NewComposite(own, d.ownChanged, d.visible)
	if others != nil {
		d.view.Follow(others, d.othersChanged)
	}
	return d
}

// Own returns the informer of the own shard.
func (d *Dual[T]) Own() *client.Informer[T] { return d.own }

// Others returns the informer of what other shards have, each copy by itself
// and whether its shard counts or not; nil where there is none.
func (d *Dual[T]) Others() *client.Informer[T] { return d.others }

// Holds reports whether the own shard holds a logical cluster.
func (d *Dual[T]) Owns(cluster logicalcluster.Name) bool { return d.options.Owns(cluster) }

// Name returns the name of the own shard's informer.
func (d *Dual[T]) Name() string { return d.own.Name() }

// Run follows both sides until ctx is done and everything it started has ended.
func (d *Dual[T]) Run(ctx context.Context) error {
	group := &client.Group{}
	group.Add(d.own)
	if d.others != nil {
		group.Add(d.others)
	}
	err := group.Run(ctx)
	d.view.Wait()
	return err
}

// HasSynced reports whether everything of the own shard is known, and all
// handlers have been told of it. It does not wait for others: see Complete.
func (d *Dual[T]) HasSynced() bool { return d.own.HasSynced() }

// WaitForSync waits until HasSynced.
func (d *Dual[T]) WaitForSync(ctx context.Context) error { return d.own.WaitForSync(ctx) }

// Read returns nil when both sides have been read completely once, and otherwise a client.ErrIncomplete that
// says which one was not, and why.
func (d *Dual[T]) Read() error {
	for _, side := range []*client.Informer[T]{d.own, d.others} {
		if side == nil || side.HasSynced() {
			continue
		}
		_, reads := side.Guard().(*reader)
		if err := side.LastError(); err != nil && !reads {
			return fmt.Errorf("%w: informer %s: %w", client.ErrIncomplete, side.Name(), err)
		}
		return fmt.Errorf("%w: informer %s%s has not synced", client.ErrIncomplete, side.Name(), readFrom(side))
	}
	return nil
}

// Complete returns nil when both sides have been read, and others up to a mark of
// each shard, and otherwise a client.ErrIncomplete that says what was not, since when,
// and why. With names of shards it is of these, and otherwise of all.
func (d *Dual[T]) Complete(shards ...string) error {
	if err := d.Read(); err != nil {
		return err
	}
	return d.marked(shards)
}

// marked returns a client.ErrIncomplete that names the shards of which not all is known.
func (d *Dual[T]) marked(shards []string) error {
	if d.others == nil || d.options.Checkpointed == nil {
		return nil
	}
	all, err := d.options.Checkpointed()
	if err != nil {
		return fmt.Errorf("%w: the shards: %w", client.ErrIncomplete, err)
	}
	if len(shards) > 0 {
		all = slices.DeleteFunc(all, func(shard string) bool { return !slices.Contains(shards, shard) })
	}
	lacks := Lacks(d.others, all)
	if len(lacks) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(lacks))
	since := slices.MinFunc(slices.Collect(maps.Values(lacks)), time.Time.Compare)
	return fmt.Errorf("%w: %s of %d shards, %s first, since %s: nothing says yet that all of theirs is here%s",
		client.ErrIncomplete, d.own.Resource(), len(names), names[0], since.UTC().Format(time.RFC3339), readFrom(d.others))
}

// Get returns an object. Where there is none the error is NotFound, or, if that
// is not known yet, client.ErrIncomplete.
func (d *Dual[T]) Get(cluster logicalcluster.Name, namespace, name string) (T, error) {
	key := client.Key{Cluster: cluster, Namespace: namespace, Name: name}
	obj, found := d.own.Lister().Lookup(key)
	if !found && !d.options.Owns(cluster) {
		var best copyOf[T]
		if best, found = d.best(key, d.options.ShardState); found {
			obj = best.obj
		} else {
			// It may have come here from another shard meanwhile.
			obj, found = d.own.Lister().Lookup(key)
		}
	}
	if found {
		return obj, nil
	}
	err := d.Complete()
	if err == nil || (d.options.Owns(cluster) && d.own.HasSynced()) {
		err = apierrors.NewNotFound(d.own.Resource(), name)
	}
	return obj, err
}

// Current returns nil when both sides have been known completely by what their servers
// have, and otherwise a client.ErrIncomplete: what is missing may be something that was not
// there yet when the view was saved.
func (d *Dual[T]) Current() error {
	if err := d.Complete(); err != nil {
		return err
	}
	if d.others == nil || d.others.Current() {
		return nil
	}
	return fmt.Errorf("%w: informer %s%s has what it had before the start", client.ErrIncomplete, d.others.Name(), readFrom(d.others))
}

// GetCurrent is Get that says NotFound only if that is so now: what was saved before the
// start may lack an object.
func (d *Dual[T]) GetCurrent(cluster logicalcluster.Name, namespace, name string) (T, error) {
	obj, err := d.Get(cluster, namespace, name)
	if !apierrors.IsNotFound(err) || d.options.Owns(cluster) {
		return obj, err
	}
	if unknown := d.Current(); unknown != nil {
		return obj, unknown
	}
	return d.Get(cluster, namespace, name) // it may have come with what is known since
}

// In returns the objects of a logical cluster, as Get finds them, in no particular order.
// It does not report whether there may be more; Complete does.
func (d *Dual[T]) In(cluster logicalcluster.Name) []T {
	var replicas []T
	if d.others != nil && !d.options.Owns(cluster) {
		replicas = d.others.Lister().Cluster(cluster).List(nil)
	}
	// The own shard last: what came here meanwhile is not missed.
	all := d.own.Lister().Cluster(cluster).List(nil)
	for _, replica := range replicas {
		key := d.others.KeyOf(replica)
		shard := key.Shard
		key.Shard = ""
		if _, owned := d.own.Lister().Lookup(key); owned {
			continue
		}
		if best, ok := d.best(key, d.options.ShardState); ok && best.shard == shard {
			all = append(all, replica)
		}
	}
	return all
}

// ByIndex returns the objects that the named index, which both informers have,
// holds under value: those of the own shard, then those of others, the preferred
// ones first. It does not report whether there may be more; Complete does. It fails
// for an index that does not exist.
func (d *Dual[T]) ByIndex(index, value string) ([]T, error) {
	var replicas []T
	if d.others != nil {
		var err error
		if replicas, err = d.others.Lister().ByIndex(index, value); err != nil {
			return nil, err
		}
	}
	// The own shard last: what came here meanwhile is not missed.
	objs, err := d.own.Lister().ByIndex(index, value)
	if err != nil {
		return nil, err
	}
	again := false
	found := make(map[client.Key]copyOf[T], len(objs)+len(replicas))
	for _, obj := range objs {
		found[client.KeyOf(obj)] = copyOf[T]{obj: obj, own: true}
	}
	for _, replica := range replicas {
		key := d.others.KeyOf(replica)
		shard := key.Shard
		key.Shard = ""
		if _, owned := d.own.Lister().Lookup(key); owned {
			if _, read := found[key]; !read {
				again = true
			}
			continue
		}
		// The preferred copy may not be one that the index has there.
		if best, ok := d.best(key, d.options.ShardState); ok && best.shard == shard && !d.options.Owns(key.Cluster) {
			best.obj = replica
			found[key] = best
		}
	}
	if again { // an object of the own shard may have come, or changed, since it was read
		if objs, err = d.own.Lister().ByIndex(index, value); err != nil {
			return nil, err
		}
		for _, obj := range objs {
			found[client.KeyOf(obj)] = copyOf[T]{obj: obj, own: true}
		}
	}
	sorted := slices.SortedFunc(maps.Values(found), compareCopies)
	all := make([]T, 0, len(sorted))
	for _, c := range sorted {
		all = append(all, c.obj)
	}
	return all, nil
}

// best returns the preferred one of the copies that other shards have of an
// object.
func (d *Dual[T]) best(key client.Key, standing func(string) ShardState) (best copyOf[T], found bool) {
	for _, shard := range *d.shards.Load() {
		key.Shard = shard
		c := copyOf[T]{shard: shard, standing: standing(shard)}
		if c.standing == Removed {
			continue
		}
		var has bool
		if c.obj, has = d.others.Lister().Lookup(key); has && (!found || compareCopies(c, best) < 0) {
			best, found = c, true
		}
	}
	return best, found
}

// AddEventHandler adds a handler of the view, as Informer.AddEventHandler does:
// it is told of the preferred copy of each object. A copy that comes to hide
// another, as when the object moves to another shard, is an update, or, if it is
// of another object of that name, a deletion and an addition.
//
// What a shard has there counts for handlers whether or not the shard does:
// look up what is wanted, instead of keeping what a handler was told.
func (d *Dual[T]) AddEventHandler(h client.Handler[T], options ...client.HandlerOption) *client.Registration {
	return d.view.AddEventHandler(h, options...)
}

// visible are all that handlers have been told of, under the lock.
func (d *Dual[T]) visible(visit func(client.Key, T) bool) {
	for _, obj := range d.own.Lister().List(nil) {
		if !visit(client.KeyOf(obj), obj) {
			return
		}
	}
	if d.others == nil {
		return
	}
	for _, obj := range d.others.Lister().List(nil) {
		key := d.others.KeyOf(obj)
		shard := key.Shard
		key.Shard = ""
		if _, hidden := d.own.Lister().Lookup(key); hidden {
			continue
		}
		if best, _ := d.best(key, allActive); best.shard == shard && !visit(key, obj) {
			return
		}
	}
}

// ownChanged tells the handlers of a change of the own informer, under the lock.
func (d *Dual[T]) ownChanged(c client.Change[T]) {
	if c.Had != c.Has {
		if other, found := d.best(c.Key, allActive); found {
			if c.Has {
				d.replaced(c, other, copyOf[T]{obj: c.New, own: true})
			} else {
				d.replaced(c, copyOf[T]{obj: c.Old, own: true}, other)
			}
			return
		}
	}
	d.view.Notify(c)
}

// othersChanged is ownChanged for the other informer.
func (d *Dual[T]) othersChanged(c client.Change[T]) {
	shard := c.Key.Shard
	d.count(shard, c)
	c.Key.Shard = ""
	if _, hidden := d.own.Lister().Lookup(c.Key); hidden {
		return
	}
	rest, found := d.best(c.Key, func(other string) ShardState {
		if other == shard {
			return Removed
		}
		return Active
	})
	if !found {
		d.view.Notify(c)
		return
	}
	// The changed copy is told of as far as it is, or was, the preferred one.
	before, after := rest, rest
	if old := (copyOf[T]{obj: c.Old, shard: shard, standing: Active}); c.Had && compareCopies(old, rest) < 0 {
		before = old
	}
	if obj := (copyOf[T]{obj: c.New, shard: shard, standing: Active}); c.Has && compareCopies(obj, rest) < 0 {
		after = obj
	}
	if before.shard == rest.shard && after.shard == rest.shard {
		return
	}
	d.replaced(c, before, after)
}

// replaced tells the handlers that another copy is the preferred one, or has
// changed.
func (d *Dual[T]) replaced(c client.Change[T], before, after copyOf[T]) {
	c.Old, c.New, c.Had, c.Has, c.Same = before.obj, after.obj, true, true, before.obj.GetUID() == after.obj.GetUID()
	d.view.Notify(c)
}

// count notes which shards have objects.
func (d *Dual[T]) count(shard string, c client.Change[T]) {
	switch before := d.counts[shard]; {
	case c.Had == c.Has:
		return
	case c.Has:
		d.counts[shard]++
		if before > 0 {
			return
		}
	case before > 1:
		d.counts[shard]--
		return
	default:
		delete(d.counts, shard)
	}
	shards := make([]string, 0, len(d.counts))
	for name := range d.counts {
		shards = append(shards, name)
	}
	d.shards.Store(&shards)
}
