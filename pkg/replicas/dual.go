package replicas

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
)

// DualOptions define which objects are valid. The functions are called at each lookup, and must not block.
type DualOptions struct {
	// Owns reports whether the own shard has a logical cluster, so that replicas of it are obsolete.
	Owns func(cluster logicalcluster.Name) bool
	// ShardState returns the state of a shard. By default all shards are Active.
	ShardState func(shard string) ShardState
	// Checkpointed returns the other shards that write checkpoints, of which Complete waits for one each.
	Checkpointed func() ([]string, error)
}

// ShardState is the state of a shard.
type ShardState int

const (
	// Removed is a shard that does not exist: its replicas are invalid.
	Removed ShardState = iota
	// Draining is a shard that is being removed: other shards are preferred.
	Draining
	// Active is any other shard.
	Active
)

func allActive(string) ShardState { return Active }

type copyOf[T client.Object] struct {
	obj   T
	own   bool
	shard string
	state ShardState
}

// compareCopies orders copies, of one object or of several, by preference.
func compareCopies[T client.Object](a, b copyOf[T]) int {
	return cmp.Or(
		compareBools(a.own, b.own),
		cmp.Compare(b.state, a.state),
		ComparePreferred(a.obj, b.obj),
		cmp.Compare(a.shard, b.shard),
		cmp.Compare(client.KeyOf(a.obj).String(), client.KeyOf(b.obj).String()),
	)
}

// ComparePreferred orders objects of which one is valid: those that are not being deleted first, then the youngest.
func ComparePreferred(a, b metav1.Object) int {
	return cmp.Or(
		compareBools(a.GetDeletionTimestamp() == nil, b.GetDeletionTimestamp() == nil),
		b.GetCreationTimestamp().Compare(a.GetCreationTimestamp().Time),
	)
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

// Dual combines the objects of the own shard with the replicas of other shards.
//
// An object of the own shard is preferred to all replicas with the same logical cluster, namespace and name.
// Several other shards may have such an object, e.g. during a migration. The order of precedence is then: objects
// of Active shards, objects that are not being deleted, the youngest object, the object of the first shard by
// name.
//
// A Dual is synced when the own shard was read, because a shard works while the cache server is unavailable. Until both
// sides were read and a checkpoint of each shard is covered, lookups return client.ErrIncomplete instead of NotFound.
type Dual[T client.Object] struct {
	own, others *client.Informer[T]
	options     DualOptions

	// composite notifies handlers, with the lock of both informers held.
	composite *client.Composite[T]
	// counts are the numbers of objects by shard, protected by that lock. shards are the names in counts.
	counts map[string]int
	shards atomic.Pointer[[]string]
}

// NewDual combines two informers that have not run. own may be part of other Duals. others must have the options of
// OfOthers; nil means that there are no replicas.
func NewDual[T client.Object](own, others *client.Informer[T], options DualOptions) *Dual[T] {
	if options.Owns == nil {
		options.Owns = func(logicalcluster.Name) bool { return false }
	}
	if options.ShardState == nil {
		options.ShardState = allActive
	}
	d := &Dual[T]{own: own, others: others, options: options, counts: map[string]int{}}
	d.shards.Store(&[]string{})
	d.composite = client.NewComposite(own, d.ownChanged, d.visible)
	if others != nil {
		d.composite.Follow(others, d.othersChanged)
	}
	return d
}

// Own returns the informer of the own shard.
func (d *Dual[T]) Own() *client.Informer[T] { return d.own }

// Others returns the informer of all replicas, including those of removed shards; it may be nil.
func (d *Dual[T]) Others() *client.Informer[T] { return d.others }

// Owns reports whether the own shard has a logical cluster.
func (d *Dual[T]) Owns(cluster logicalcluster.Name) bool { return d.options.Owns(cluster) }

// Name returns the name of the own shard's informer.
func (d *Dual[T]) Name() string { return d.own.Name() }

// Run runs both informers until ctx is done and all their goroutines have ended.
func (d *Dual[T]) Run(ctx context.Context) error {
	group := &client.Group{}
	group.Add(d.own)
	if d.others != nil {
		group.Add(d.others)
	}
	err := group.Run(ctx)
	d.composite.Wait()
	return err
}

// HasSynced reports whether the objects of the own shard were read and handlers were notified.
func (d *Dual[T]) HasSynced() bool { return d.own.HasSynced() }

// WaitForSync waits until HasSynced.
func (d *Dual[T]) WaitForSync(ctx context.Context) error { return d.own.WaitForSync(ctx) }

// Read returns nil if both sides were read completely once, and otherwise a client.ErrIncomplete with the reason.
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

// Complete returns nil if both sides were read, and a checkpoint of each shard, or of the named ones, was reached.
// Otherwise it returns a client.ErrIncomplete with the reason.
func (d *Dual[T]) Complete(shards ...string) error {
	if err := d.Read(); err != nil || d.others == nil || d.options.Checkpointed == nil {
		return err
	}
	all, err := d.options.Checkpointed()
	if err != nil {
		return fmt.Errorf("%w: listing the shards: %w", client.ErrIncomplete, err)
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
	return fmt.Errorf("%w: %s of %d shards, %s first, since %s: waiting for checkpoints that cover their objects%s",
		client.ErrIncomplete, d.own.Resource(), len(names), names[0], since.UTC().Format(time.RFC3339), readFrom(d.others))
}

// Get returns an object, or NotFound or, if the replicas are incomplete, client.ErrIncomplete.
func (d *Dual[T]) Get(cluster logicalcluster.Name, namespace, name string) (T, error) {
	key := client.Key{Cluster: cluster, Namespace: namespace, Name: name}
	obj, found := d.own.Lister().Lookup(key)
	if !found && !d.options.Owns(cluster) {
		var best copyOf[T]
		if best, found = d.best(key, d.options.ShardState); found {
			obj = best.obj
		} else {
			// It may have moved here from another shard in the meantime.
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

// Current returns nil if both sides are complete and current, i.e. not restored from a snapshot.
func (d *Dual[T]) Current() error {
	if err := d.Complete(); err != nil {
		return err
	}
	if d.others == nil || d.others.Current() {
		return nil
	}
	return fmt.Errorf("%w: informer %s%s was only restored from a snapshot", client.ErrIncomplete, d.others.Name(), readFrom(d.others))
}

// GetCurrent is Get without NotFound errors that are based on a snapshot.
func (d *Dual[T]) GetCurrent(cluster logicalcluster.Name, namespace, name string) (T, error) {
	obj, err := d.Get(cluster, namespace, name)
	if !apierrors.IsNotFound(err) || d.options.Owns(cluster) {
		return obj, err
	}
	if unknown := d.Current(); unknown != nil {
		return obj, unknown
	}
	return d.Get(cluster, namespace, name) // it may have been received since
}

// In returns the objects of a logical cluster, in no particular order. It does not check whether they are complete.
func (d *Dual[T]) In(cluster logicalcluster.Name) []T {
	var replicas []T
	if d.others != nil && !d.options.Owns(cluster) {
		replicas = d.others.Lister().Cluster(cluster).List(nil)
	}
	// The own shard is read last, so that an object that moved here in the meantime is not missed.
	all := d.own.Lister().Cluster(cluster).List(nil)
	for _, replica := range replicas {
		if _, preferred := d.preferred(replica, d.options.ShardState); preferred {
			all = append(all, replica)
		}
	}
	return all
}

// ByIndex returns the objects with a value of an index of both informers by preference, without checking completeness.
func (d *Dual[T]) ByIndex(index, value string) ([]T, error) {
	var replicas []T
	if d.others != nil {
		var err error
		if replicas, err = d.others.Lister().ByIndex(index, value); err != nil {
			return nil, err
		}
	}
	found := make(map[client.Key]copyOf[T], len(replicas))
	readOwn := func() error {
		objs, err := d.own.Lister().ByIndex(index, value)
		for _, obj := range objs {
			found[client.KeyOf(obj)] = copyOf[T]{obj: obj, own: true}
		}
		return err
	}
	if err := readOwn(); err != nil {
		return nil, err
	}
	again := false
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
		// The preferred copy may have other index values.
		if best, ok := d.best(key, d.options.ShardState); ok && best.shard == shard && !d.options.Owns(key.Cluster) {
			best.obj = replica
			found[key] = best
		}
	}
	if again { // an object of the own shard may have been added or changed since it was read
		if err := readOwn(); err != nil {
			return nil, err
		}
	}
	sorted := slices.SortedFunc(maps.Values(found), compareCopies)
	all := make([]T, 0, len(sorted))
	for _, c := range sorted {
		all = append(all, c.obj)
	}
	return all, nil
}

// best returns the preferred replica of an object.
func (d *Dual[T]) best(key client.Key, stateOf func(string) ShardState) (best copyOf[T], found bool) {
	for _, shard := range *d.shards.Load() {
		key.Shard = shard
		c := copyOf[T]{shard: shard, state: stateOf(shard)}
		if c.state == Removed {
			continue
		}
		var has bool
		if c.obj, has = d.others.Lister().Lookup(key); has && (!found || compareCopies(c, best) < 0) {
			best, found = c, true
		}
	}
	return best, found
}

// preferred returns the key of a replica without the shard, and whether it is the preferred copy of the object.
func (d *Dual[T]) preferred(replica T, stateOf func(string) ShardState) (client.Key, bool) {
	key := d.others.KeyOf(replica)
	shard := key.Shard
	key.Shard = ""
	if _, owned := d.own.Lister().Lookup(key); owned {
		return key, false
	}
	best, found := d.best(key, stateOf)
	return key, found && best.shard == shard
}

// AddEventHandler adds a handler of the preferred copy of each object. If another copy becomes the preferred one, that
// is an update, or a deletion and an addition if the UIDs differ.
//
// ShardState and Owns are not evaluated for handlers: they must look objects up instead of keeping them.
func (d *Dual[T]) AddEventHandler(h client.Handler[T], options ...client.HandlerOption) *client.Registration {
	return d.composite.AddEventHandler(h, options...)
}

// visible yields all objects of which handlers were notified, with the lock held.
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
		if key, preferred := d.preferred(obj, allActive); preferred && !visit(key, obj) {
			return
		}
	}
}

// ownChanged notifies the handlers of a change of the own informer, with the lock held.
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
	d.composite.Notify(c)
}

// othersChanged notifies the handlers of a change of the other informer, with the lock held.
func (d *Dual[T]) othersChanged(c client.Change[T]) {
	shard := c.Key.Shard
	if !c.Unseen {
		d.count(shard, c)
	}
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
		d.composite.Notify(c)
		return
	}
	// Handlers are notified only if the changed copy is, or was, the preferred one.
	before, after := rest, rest
	if old := (copyOf[T]{obj: c.Old, shard: shard, state: Active}); c.Had && compareCopies(old, rest) < 0 {
		before = old
	}
	if obj := (copyOf[T]{obj: c.New, shard: shard, state: Active}); c.Has && compareCopies(obj, rest) < 0 {
		after = obj
	}
	if before.shard == rest.shard && after.shard == rest.shard {
		return
	}
	d.replaced(c, before, after)
}

// replaced notifies the handlers that the preferred copy was replaced or changed.
func (d *Dual[T]) replaced(c client.Change[T], before, after copyOf[T]) {
	c.Old, c.New, c.Had, c.Has, c.Same = before.obj, after.obj, true, true, before.obj.GetUID() == after.obj.GetUID()
	d.composite.Notify(c)
}

func (d *Dual[T]) count(shard string, c client.Change[T]) {
	before := d.counts[shard]
	if c.Has {
		d.counts[shard]++
	}
	if c.Had {
		d.counts[shard]--
	}
	if after := d.counts[shard]; (before > 0) == (after > 0) {
		return
	} else if after == 0 {
		delete(d.counts, shard)
	}
	shards := slices.Collect(maps.Keys(d.counts))
	d.shards.Store(&shards)
}
