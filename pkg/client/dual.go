package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrIncomplete is the error of a look-up that found nothing as long as not
// everything is known that there may be: try again later.
var ErrIncomplete = errors.New("not everything is known yet")

// Standing is what the replicas of a shard are worth.
type Standing int

const (
	// Gone is a shard that does not exist: what it left behind does not count.
	Gone Standing = iota
	// Leaving is a shard that is being removed: others are preferred.
	Leaving
	// Member is a shard like any other.
	Member
)

// DualOptions say whose objects count. Its functions are asked at each look-up,
// so that what they know may change; they must be safe for concurrent use and
// return at once.
type DualOptions struct {
	// Self is the name of the own shard. Replicas of its objects are not kept:
	// they are known better, and earlier, from itself.
	Self string
	// Holds reports whether the own shard holds a logical cluster. What others
	// have of that one is left over. Nil: it holds none.
	Holds func(cluster logicalcluster.Name) bool
	// Standing says what replicas of a shard are worth, by its name. Nil: all
	// are Members.
	Standing func(shard string) Standing
	// Marked returns the other shards that leave marks: others are complete when all is known
	// that theirs cover, and for Complete, when these are known. Nil: there are none.
	Marked func() ([]string, error)
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
// says ErrIncomplete and not that there is nothing; Complete says why. Complete
// is what covers a mark of each of the other shards that leave marks. After that
// a cache server that is away leaves everything as it was last.
type Dual[T Object] struct {
	own, others *Informer[T]
	options     DualOptions

	// handlers are called under the lock of both informers.
	handlers handlers[T]
	// counts has the number of objects by shard, under that lock, and shards the
	// names of those that have any.
	counts map[string]int
	shards atomic.Pointer[[]string]
}

// NewDual returns the view of two informers that have not run yet; running it
// runs both. The own one may have handlers already, and more than one view.
// others may be nil, where there is nothing else.
func NewDual[T Object](own, others *Informer[T], options DualOptions) *Dual[T] {
	if options.Holds == nil {
		options.Holds = func(logicalcluster.Name) bool { return false }
	}
	if options.Standing == nil {
		options.Standing = func(string) Standing { return Member }
	}
	d := &Dual[T]{own: own, others: others, options: options, counts: map[string]int{}}
	d.shards.Store(&[]string{})
	d.handlers = handlers[T]{name: own.name, counts: own.counts}
	own.syncedFollowers = append(own.syncedFollowers, d.handlers.toldInitial)
	own.followers = append(own.followers, d.ownChanged)
	if others == nil {
		return d
	}
	// One lock, so that each change is told of by what the other side has then.
	others.mu = own.mu
	others.followers = append(others.followers, d.othersChanged)
	others.options.Transform = after(ShowDeletion[T], others.options.Transform)
	keep := others.options.Keep
	others.options.Keep = func(obj T) bool {
		return (!others.sharded || others.KeyOf(obj).Shard != options.Self) && (keep == nil || keep(obj))
	}
	return d
}

// Own returns the informer of the own shard.
func (d *Dual[T]) Own() *Informer[T] { return d.own }

// Others returns the informer of what other shards have, each copy by itself
// and whether its shard counts or not; nil where there is none.
func (d *Dual[T]) Others() *Informer[T] { return d.others }

// Holds reports whether the own shard holds a logical cluster.
func (d *Dual[T]) Holds(cluster logicalcluster.Name) bool { return d.options.Holds(cluster) }

// Name returns the name of the own shard's informer.
func (d *Dual[T]) Name() string { return d.own.Name() }

// Run follows both sides until ctx is done and everything it started has ended.
func (d *Dual[T]) Run(ctx context.Context) error {
	group := &Group{}
	group.Add(d.own)
	if d.others != nil {
		group.Add(d.others)
	}
	err := group.Run(ctx)
	d.handlers.wait(d.own.mu)
	return err
}

// HasSynced reports whether everything of the own shard is known, and all
// handlers have been told of it. It does not wait for others: see Complete.
func (d *Dual[T]) HasSynced() bool { return d.own.HasSynced() }

// WaitForSync waits until HasSynced.
func (d *Dual[T]) WaitForSync(ctx context.Context) error { return d.own.WaitForSync(ctx) }

// Read returns nil when both sides have been read completely once, and otherwise an ErrIncomplete that
// says which one was not, and why.
func (d *Dual[T]) Read() error {
	for _, side := range []*Informer[T]{d.own, d.others} {
		if side == nil || side.HasSynced() {
			continue
		}
		if err := side.LastError(); err != nil && side.replicas == nil {
			return fmt.Errorf("%w: informer %s: %w", ErrIncomplete, side.Name(), err)
		}
		return fmt.Errorf("%w: informer %s%s has not synced", ErrIncomplete, side.Name(), side.readFrom())
	}
	return nil
}

// Complete returns nil when both sides have been read, and others up to a mark of
// each shard, and otherwise an ErrIncomplete that says what was not, since when,
// and why. With names of shards it is of these, and otherwise of all.
func (d *Dual[T]) Complete(shards ...string) error {
	if err := d.Read(); err != nil {
		return err
	}
	return d.marked(shards)
}

// marked returns an ErrIncomplete that names the shards of which not all is known.
func (d *Dual[T]) marked(shards []string) error {
	if d.others == nil || d.options.Marked == nil {
		return nil
	}
	all, err := d.options.Marked()
	if err != nil {
		return fmt.Errorf("%w: the shards: %w", ErrIncomplete, err)
	}
	if len(shards) > 0 {
		all = slices.DeleteFunc(all, func(shard string) bool { return !slices.Contains(shards, shard) })
	}
	lacks := d.others.Lacks(all)
	if len(lacks) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(lacks))
	since := slices.MinFunc(slices.Collect(maps.Values(lacks)), time.Time.Compare)
	return fmt.Errorf("%w: %s of %d shards, %s first, since %s: nothing says yet that all of theirs is here%s",
		ErrIncomplete, d.own.gvr.GroupResource(), len(names), names[0], since.UTC().Format(time.RFC3339), d.others.readFrom())
}

// Get returns an object. Where there is none the error is NotFound, or, if that
// is not known yet, ErrIncomplete.
func (d *Dual[T]) Get(cluster logicalcluster.Name, namespace, name string) (T, error) {
	key := Key{Cluster: cluster, Namespace: namespace, Name: name}
	obj, found := d.own.store.get(key)
	if !found && !d.options.Holds(cluster) {
		var best copyOf[T]
		if best, found = d.best(key, d.options.Standing); found {
			obj = best.obj
		} else {
			// It may have come here from another shard meanwhile.
			obj, found = d.own.store.get(key)
		}
	}
	if found {
		return obj, nil
	}
	err := d.Complete()
	if err == nil || (d.options.Holds(cluster) && d.own.HasSynced()) {
		err = apierrors.NewNotFound(d.own.gvr.GroupResource(), name)
	}
	return obj, err
}

// In returns the objects of a logical cluster, as Get finds them, in no particular order.
// It does not report whether there may be more; Complete does.
func (d *Dual[T]) In(cluster logicalcluster.Name) []T {
	var replicas []T
	if d.others != nil && !d.options.Holds(cluster) {
		replicas = d.others.Lister().Cluster(cluster).List(nil)
	}
	// The own shard last: what came here meanwhile is not missed.
	all := d.own.Lister().Cluster(cluster).List(nil)
	for _, replica := range replicas {
		key := d.others.KeyOf(replica)
		shard := key.Shard
		key.Shard = ""
		if _, owned := d.own.store.get(key); owned {
			continue
		}
		if best, ok := d.best(key, d.options.Standing); ok && best.shard == shard {
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
		if replicas, err = d.others.store.byIndex(index, value); err != nil {
			return nil, err
		}
	}
	// The own shard last: what came here meanwhile is not missed.
	objs, err := d.own.store.byIndex(index, value)
	if err != nil {
		return nil, err
	}
	found := make(map[Key]copyOf[T], len(objs)+len(replicas))
	for _, obj := range objs {
		found[KeyOf(obj)] = copyOf[T]{obj: obj, own: true}
	}
	for _, replica := range replicas {
		key := d.others.KeyOf(replica)
		shard := key.Shard
		key.Shard = ""
		if mine, owned := d.own.store.get(key); owned {
			if slices.Contains(d.own.store.indexer(index)(mine), value) {
				found[key] = copyOf[T]{obj: mine, own: true}
			}
			continue
		}
		// The preferred copy may not be one that the index has there.
		if best, ok := d.best(key, d.options.Standing); ok && best.shard == shard && !d.options.Holds(key.Cluster) {
			best.obj = replica
			found[key] = best
		}
	}
	sorted := slices.SortedFunc(maps.Values(found), compareCopies)
	all := make([]T, 0, len(sorted))
	for _, c := range sorted {
		all = append(all, c.obj)
	}
	return all, nil
}

// copyOf is an object as a shard has it.
type copyOf[T Object] struct {
	obj      T
	own      bool
	shard    string
	standing Standing
}

// compareCopies orders copies, of one object or of several, the preferred one
// first.
func compareCopies[T Object](a, b copyOf[T]) int {
	return cmp.Or(
		trueFirst(a.own, b.own),
		cmp.Compare(b.standing, a.standing),
		ComparePreferred(a.obj, b.obj),
		cmp.Compare(a.shard, b.shard),
		cmp.Compare(KeyFor(a.obj), KeyFor(b.obj)),
	)
}

// ComparePreferred orders objects of which only one can be meant, as for slices.SortFunc:
// one that stays comes before one that is being deleted, and then the younger one.
func ComparePreferred(a, b metav1.Object) int {
	return cmp.Or(
		trueFirst(a.GetDeletionTimestamp() == nil, b.GetDeletionTimestamp() == nil),
		b.GetCreationTimestamp().Compare(a.GetCreationTimestamp().Time),
	)
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

// best returns the preferred one of the copies that other shards have of an
// object.
func (d *Dual[T]) best(key Key, standing func(string) Standing) (best copyOf[T], found bool) {
	for _, shard := range *d.shards.Load() {
		key.Shard = shard
		c := copyOf[T]{shard: shard, standing: standing(shard)}
		if c.standing == Gone {
			continue
		}
		var has bool
		if c.obj, has = d.others.store.get(key); has && (!found || compareCopies(c, best) < 0) {
			best, found = c, true
		}
	}
	return best, found
}
