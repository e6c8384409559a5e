package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/request"
)

// resolveInterval is the time between two looks whether a cache has caught up.
const resolveInterval = time.Second

// replicas is how an informer follows a cache server whose data may be lost.
// A replica's version is the resourceVersion of its object, which it has as its own here. When the
// complete state of the cache server comes, its marks were read before, and tell of each shard:
//
//	at least what was known    what is missing is gone
//	less than that, or nothing  the cache is behind: what is missing is held, and what is older
//	                            than what is known is doubted, until its mark says as much
//
// Then its part of that shard is listed once more, and compared. A shard that never had a mark
// is believed, as is a shard that was removed.
type replicas[T Object] struct {
	cache *ReplicaCache
	// resource is as marks name it.
	resource string
	// part returns the source of a shard's replicas.
	part func(shard string) (listerWatcher, error)

	// Under the informer's lock:

	// round counts complete states.
	round int
	// seen are the versions of the last change of each shard that was seen.
	seen map[string]seenVersion
	// behind are the shards of which the cache has less than was known.
	behind map[string]*lag
	// held are objects that the cache does not have, and doubted what it has of objects, and that
	// is older than what was known.
	held    map[Key]struct{}
	doubted map[Key]T
	// marks are those that were read before the complete state.
	marks map[string]Mark

	coverage coverage
}

// coverage is of which shards all is known up to some mark. It has a lock of its own: who is told of
// objects asks for it.
type coverage struct {
	mu sync.Mutex
	// unmarked says that the cache knows no marks.
	unmarked bool
	covered  map[string]struct{}
	// lacking is since when that of others is missed.
	lacking map[string]time.Time
}

func (c *coverage) add(shard string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.covered[shard] = struct{}{}
	delete(c.lacking, shard)
}

func (c *coverage) has(shard string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.covered[shard]
	return ok
}

// seenVersion is the last version of a shard in an epoch.
type seenVersion struct{ epoch, version string }

// lag is what a cache lacks of a shard.
type lag struct {
	// target is the mark that the cache has to have.
	target Mark
	// other says that its objects are of another epoch, and cannot be compared.
	other bool
	// until is set when it has caught up: from that version of the cache on everything is news. due are
	// the versions that objects had then which the stream, that may be behind, has not told of.
	until string
	due   map[Key]string
}

// followCache has an informer that does not run yet keep what the cache server has lost.
func (i *Informer[T]) followCache(cache *ReplicaCache, part func(shard string) (listerWatcher, error)) {
	i.replicas = &replicas[T]{
		cache: cache, resource: i.gvr.GroupResource().String(), part: part,
		seen: map[string]seenVersion{}, behind: map[string]*lag{}, held: map[Key]struct{}{}, doubted: map[Key]T{},
		coverage: coverage{covered: map[string]struct{}{}, lacking: map[string]time.Time{}},
	}
	i.before = i.readMarks
}

// readMarks reads the marks on the cache server before its complete state.
func (i *Informer[T]) readMarks(ctx context.Context) error {
	r := i.replicas
	marks, err := r.cache.currentMarks(ctx, i.lastBreak())
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	r.round++
	r.marks = marks
	clear(r.behind)
	clear(r.doubted)
	if marks == nil {
		return nil // kcp's
	}
	for shard := range r.seen {
		target, ok := r.target(shard)
		mark, marked := marks[shard]
		if complete := marked && mark.reaches(target); ok && !complete && !r.cache.removed(shard) {
			r.behind[shard] = &lag{target: target, other: marked && mark.Epoch != target.Epoch}
			klog.FromContext(ctx).V(2).Info("The cache has less of a shard than was known", "informer", i.name, "cache", r.cache.name, "shard", shard)
		}
	}
	return nil
}

// target returns the mark that a cache has at least that has all that is known of a shard.
func (r *replicas[T]) target(shard string) (Mark, bool) {
	mark, ok := r.known(shard)
	version, named := mark.Versions[r.resource]
	if last := r.seen[shard]; named && (last.epoch == "" || last.epoch == mark.Epoch) && older(version, last.version) {
		mark.Versions = map[string]string{r.resource: last.version}
	}
	return mark, ok
}

// known returns what the shard itself has said to be complete. Of what marks do not name, those of
// all the rest speak.
func (r *replicas[T]) known(shard string) (Mark, bool) {
	mark, ok := r.cache.marked(shard)
	if version, named := mark.Versions[r.resource]; named {
		mark.Versions = map[string]string{r.resource: version}
	}
	return mark, ok
}

// originalVersion returns the version that a replica's object has on its shard; empty for what is
// no replica.
func originalVersion(obj metav1.Object) string {
	return obj.GetAnnotations()[request.OriginalVersionAnnotation]
}

// saw notes a version of a shard. What was seen before its first mark is of the epoch of that.
func (r *replicas[T]) saw(shard, version string) {
	known, _ := r.cache.marked(shard)
	if last := r.seen[shard]; (last.epoch == "" || last.epoch == known.Epoch) && older(version, last.version) {
		version = last.version
	}
	r.seen[shard] = seenVersion{known.Epoch, version}
}

// lagging returns what a cache lacks of a shard as of one of its versions, or nil.
func (r *replicas[T]) lagging(shard, version string) *lag {
	l := r.behind[shard]
	if l != nil && l.until != "" && older(l.until, version) {
		delete(r.behind, shard)
		return nil
	}
	return l
}

// believes reports whether a replica is what its object is now, or was later than was known, under
// the lock. e.version is that of the cache.
func (i *Informer[T]) believes(e event, obj T, version string) bool {
	r := i.replicas
	delete(r.held, e.key)
	l := r.lagging(e.key.Shard, e.version)
	if l != nil && version != "" {
		limit, doubt := l.target.Versions[r.resource], l.other
		if old, known := i.store.get(e.key); known {
			doubt = doubt || older(version, old.GetResourceVersion())
		} else {
			doubt = doubt || !older(limit, version)
		}
		if doubt && l.due[e.key] != version {
			r.doubted[e.key] = obj
			return false
		}
	}
	delete(r.doubted, e.key)
	r.saw(e.key.Shard, version)
	return true
}

// believesGone is believes for an object that has gone.
func (i *Informer[T]) believesGone(e event, version string) bool {
	r := i.replicas
	delete(r.doubted, e.key)
	if l := r.lagging(e.key.Shard, e.version); l != nil && version != "" {
		if old, known := i.store.get(e.key); known && (l.other || older(version, old.GetResourceVersion())) {
			r.held[e.key] = struct{}{}
			return false
		}
	}
	delete(r.held, e.key)
	r.saw(e.key.Shard, version)
	return true
}

// lost reports whether an object that was not in the complete state is gone, under the lock.
func (i *Informer[T]) lost(key Key) bool {
	if i.replicas.behind[key.Shard] == nil {
		return true
	}
	i.replicas.held[key] = struct{}{}
	return false
}

// cover notes the shards of which a complete state was complete, under the lock.
func (r *replicas[T]) cover() {
	r.coverage.mu.Lock()
	r.coverage.unmarked = r.marks == nil
	r.coverage.mu.Unlock()
	for shard, mark := range r.marks {
		if _, named := mark.Versions[r.resource]; named {
			r.coverage.add(shard)
		}
	}
}

// restored says that what was saved is there. It was saved after the marks that are known by now.
func (r *replicas[T]) restored() {
	for _, shard := range r.cache.naming(r.resource) {
		r.coverage.add(shard)
	}
}

// keepsSilent stores an object that is no replica and differs only by what the cache server itself
// has given it, and reports whether it is such a one.
func (i *Informer[T]) keepsSilent(key Key, obj T) bool {
	old, ok := i.store.get(key)
	if !ok || !equality.Semantic.DeepEqual(bare(old), bare(obj)) {
		return false
	}
	i.store.set(key, obj)
	return true
}

// bare returns an object without what servers assign.
func bare[T Object](obj T) T {
	plain, _ := obj.DeepCopyObject().(T)
	plain.SetUID("")
	plain.SetResourceVersion("")
	plain.SetGeneration(0)
	plain.SetCreationTimestamp(metav1.Time{})
	plain.SetManagedFields(nil)
	return plain
}

// resolve looks, until ctx is done, whether the cache has caught up, and whether all is known of
// shards that have come.
func (i *Informer[T]) resolve(ctx context.Context) {
	for {
		// All informers look at the same moment, for which an idle process wakes once.
		now := time.Now()
		select {
		case <-ctx.Done():
			return
		case <-time.After(now.Truncate(resolveInterval).Add(resolveInterval).Sub(now)):
		}
		shards, round := i.unresolved()
		if len(shards) == 0 {
			continue
		}
		marks, err := i.replicas.cache.currentMarks(ctx, time.Time{})
		if err != nil {
			continue // the stream says what is wrong
		}
		for _, shard := range shards {
			if err := i.resolveShard(ctx, round, shard, marks[shard]); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).V(2).Info("Cannot compare the replicas of a shard, trying again", "informer", i.name, "shard", shard, "err", err)
			}
		}
	}
}

// unresolved returns the shards of which the cache may have caught up, or which are not covered.
func (i *Informer[T]) unresolved() (shards []string, round int) {
	r := i.replicas
	named := r.cache.naming(r.resource)
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.Current() {
		return nil, 0
	}
	for shard, l := range r.behind {
		if l.until == "" {
			shards = append(shards, shard)
		}
	}
	for _, shard := range named {
		if !r.coverage.has(shard) && r.behind[shard] == nil && !r.cache.removed(shard) {
			shards = append(shards, shard)
		}
	}
	return shards, r.round
}

// resolveShard compares a shard's part with what is known, if its mark says that it is complete.
func (i *Informer[T]) resolveShard(ctx context.Context, round int, shard string, mark Mark) error {
	r := i.replicas
	i.mu.Lock()
	l, removed := r.behind[shard], r.cache.removed(shard)
	i.mu.Unlock()
	_, named := mark.Versions[r.resource]
	// The shard may have said more since the cache was found to be behind, and that cache, restored since, have less again.
	known, _ := r.known(shard)
	if !removed && (l == nil && !named || l != nil && !mark.reaches(l.target) || !mark.reaches(known)) {
		return nil
	}
	present, version := map[Key]T{}, ""
	if !removed {
		var err error
		if present, version, err = i.listPart(ctx, shard); err != nil {
			return err
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if r.round != round || r.behind[shard] != l {
		return nil // it was read anew meanwhile
	}
	for _, key := range i.store.keys(func(key Key, obj T) bool {
		_, there := present[key]
		_, held := r.held[key]
		// What came since is later than the mark.
		return key.Shard == shard && !there && (held || named && !older(mark.Versions[r.resource], obj.GetResourceVersion()))
	}) {
		i.remove(key, nil)
	}
	maps.DeleteFunc(r.held, func(key Key, _ struct{}) bool { return key.Shard == shard })
	for key, obj := range r.doubted {
		if key.Shard != shard {
			continue
		}
		delete(r.doubted, key)
		// Another version than the stream's will come on that.
		if there, ok := present[key]; ok && there.GetResourceVersion() == obj.GetResourceVersion() {
			r.saw(shard, obj.GetResourceVersion())
			i.upsert(key, obj)
		}
	}
	if l != nil {
		l.until, l.due = version, i.due(present)
	}
	if removed {
		delete(r.behind, shard)
		return nil
	}
	if named && i.hasAll(present) {
		r.coverage.add(shard)
	}
	return nil
}

// listPart lists what the cache server has of a shard, as far as it is kept, and at which of its versions.
func (i *Informer[T]) listPart(ctx context.Context, shard string) (map[Key]T, string, error) {
	source, err := i.replicas.part(shard)
	if err != nil {
		return nil, "", err
	}
	present, opts := map[Key]T{}, i.selected
	opts.Limit = pageSize
	for {
		page, err := source.list(ctx, opts)
		if err != nil {
			return nil, "", err
		}
		err = meta.EachListItemWithAlloc(page, func(item runtime.Object) error {
			obj, ok := item.(T)
			if !ok {
				return fmt.Errorf("%w: %T", errWrongType, item)
			}
			key := i.KeyOf(obj)
			if i.options.Keep != nil && !i.options.Keep(obj) {
				return nil
			}
			prepared, err := i.prepare(obj)
			present[key] = prepared
			return err
		})
		info, other := meta.ListAccessor(page)
		if err := errors.Join(err, other); err != nil {
			return nil, "", err
		}
		if opts.Continue = info.GetContinue(); opts.Continue == "" {
			return present, info.GetResourceVersion(), nil
		}
	}
}

// readFrom returns from which cache server an informer reads replicas, and since when that is away; nothing
// for other informers. Why a cache is away is for the log: who waits for its replicas may be a tenant.
func (i *Informer[T]) readFrom() string {
	if i.replicas == nil {
		return ""
	}
	away := ""
	if since, why := i.Away(); why != nil {
		away = ", away since " + since.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf(" (read from cache %q%s)", i.replicas.cache.name, away)
}

// Lacks returns which of the shards have not been known completely by marks, and since when that
// is missed.
func (i *Informer[T]) Lacks(shards []string) map[string]time.Time {
	if i.replicas == nil {
		return nil
	}
	c := &i.replicas.coverage
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unmarked {
		return nil
	}
	var all map[string]time.Time
	for _, shard := range shards {
		if _, ok := c.covered[shard]; ok {
			continue
		}
		if c.lacking[shard].IsZero() {
			c.lacking[shard] = time.Now()
		}
		if all == nil {
			all = map[string]time.Time{}
		}
		all[shard] = c.lacking[shard]
	}
	return all
}
