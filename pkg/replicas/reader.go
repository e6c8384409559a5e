package replicas

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
)

// reader is the client.Guard of an informer of a cache server whose data may be lost.
// A replica's version is the resourceVersion of its object, which it has as its own here. When the
// complete state of the cache server comes, its marks were read before, and tell of each shard:
//
//	at least what was known    what is missing is gone
//	less than that, or nothing  the cache is behind: what is missing is held, and what is older
//	                            than what is known is doubted, until its mark says as much
//
// Then its part of that shard is listed once more, and compared. A shard that never had a mark
// is believed, as is a shard that was removed.
type reader struct {
	cache    *Cache
	informer client.Guarded
	// resource is the name that marks have for the informer's resource.
	resource string

	// Under the informer's lock:

	// round counts complete states.
	round int
	// seen are the versions of the last change of each shard that was seen.
	seen map[string]seenVersion
	// behind are the shards of which the cache has less than was known.
	behind map[string]*lag
	// held are objects that the cache does not have, and doubted what it has of objects, and that
	// is older than what was known.
	held    map[client.Key]struct{}
	doubted map[client.Key]client.Object
	// marks are those that were read before the complete state.
	marks map[string]Checkpoint

	coverage coverage
}

// seenVersion is the last version of a shard in an epoch.
type seenVersion struct{ epoch, version string }

// lag is what a cache lacks of a shard.
type lag struct {
	// target is the mark that the cache has to have.
	target Checkpoint
	// other says that its objects are of another epoch, and cannot be compared.
	other bool
	// until is set when it has caught up: from that version of the cache on everything is news. due are
	// the versions that objects had then which the stream, that may be behind, has not told of.
	until string
	due   map[client.Key]string
}

var _ client.Guard = &reader{}

func newReader(cache *Cache, informer client.Guarded) *reader {
	return &reader{
		cache: cache, informer: informer, resource: informer.Resource().String(),
		seen: map[string]seenVersion{}, behind: map[string]*lag{}, held: map[client.Key]struct{}{}, doubted: map[client.Key]client.Object{},
		coverage: coverage{covered: map[string]struct{}{}, lacking: map[string]time.Time{}},
	}
}

// BeforeList implements client.Guard: it reads the marks on the cache server before its complete state.
func (r *reader) BeforeList(ctx context.Context, lastBreak time.Time) error {
	marks, err := r.cache.currentMarks(ctx, lastBreak)
	if err != nil {
		return err
	}
	r.informer.Pause(func() { r.begin(ctx, marks) })
	return nil
}

// begin compares the marks on the cache server with what is known, with the informer's lock held.
func (r *reader) begin(ctx context.Context, marks map[string]Checkpoint) {
	r.round++
	r.marks = marks
	clear(r.behind)
	clear(r.doubted)
	if marks == nil {
		return // a cache server of kcp
	}
	for shard := range r.seen {
		target, ok := r.target(shard)
		mark, marked := marks[shard]
		if complete := marked && mark.reaches(target); ok && !complete && !r.cache.removed(shard) {
			r.behind[shard] = &lag{target: target, other: marked && mark.Epoch != target.Epoch}
			klog.FromContext(ctx).V(2).Info("The cache has less of a shard than was known", "informer", r.informer.Name(), "cache", r.cache.name, "shard", shard)
		}
	}
}

// target returns the mark that a cache has at least that has all that is known of a shard.
func (r *reader) target(shard string) (Checkpoint, bool) {
	mark, ok := r.known(shard)
	version, named := mark.Versions[r.resource]
	if last := r.seen[shard]; named && (last.epoch == "" || last.epoch == mark.Epoch) && older(version, last.version) {
		mark.Versions = map[string]string{r.resource: last.version}
	}
	return mark, ok
}

// known returns what the shard itself has said to be complete. Of what marks do not name, those of
// all the rest speak.
func (r *reader) known(shard string) (Checkpoint, bool) {
	mark, ok := r.cache.marked(shard)
	if version, named := mark.Versions[r.resource]; named {
		mark.Versions = map[string]string{r.resource: version}
	}
	return mark, ok
}

// Version implements client.Guard: it returns the version that a replica's object has on its shard. It is
// empty for objects that are no replicas.
func (*reader) Version(obj metav1.Object) string {
	return obj.GetAnnotations()[request.OriginalVersionAnnotation]
}

// saw notes a version of a shard. What was seen before its first mark is of the epoch of that.
func (r *reader) saw(shard, version string) {
	known, _ := r.cache.marked(shard)
	if last := r.seen[shard]; (last.epoch == "" || last.epoch == known.Epoch) && older(version, last.version) {
		version = last.version
	}
	r.seen[shard] = seenVersion{known.Epoch, version}
}

// lagging returns what a cache lacks of a shard as of one of its versions, or nil.
func (r *reader) lagging(shard, version string) *lag {
	l := r.behind[shard]
	if l != nil && l.until != "" && older(l.until, version) {
		delete(r.behind, shard)
		return nil
	}
	return l
}

// Put implements client.Guard: it reports whether a replica is the current state of its object, or a later
// one than was known.
func (r *reader) Put(key client.Key, obj client.Object, served, version string) bool {
	delete(r.held, key)
	l := r.lagging(key.Shard, served)
	if l != nil && version != "" {
		limit, doubt := l.target.Versions[r.resource], l.other
		if old, known := r.informer.Get(key); known {
			doubt = doubt || older(version, old.GetResourceVersion())
		} else {
			doubt = doubt || !older(limit, version)
		}
		if doubt && l.due[key] != version {
			r.doubted[key] = obj
			return false
		}
	}
	delete(r.doubted, key)
	r.saw(key.Shard, version)
	return version != "" || !r.keepsSilent(key, obj)
}

// Delete implements client.Guard.
func (r *reader) Delete(key client.Key, served, version string) bool {
	delete(r.doubted, key)
	if l := r.lagging(key.Shard, served); l != nil && version != "" {
		if old, known := r.informer.Get(key); known && (l.other || older(version, old.GetResourceVersion())) {
			r.held[key] = struct{}{}
			return false
		}
	}
	delete(r.held, key)
	r.saw(key.Shard, version)
	return true
}

// Missing implements client.Guard.
func (r *reader) Missing(key client.Key) bool {
	if r.behind[key.Shard] == nil {
		return true
	}
	r.held[key] = struct{}{}
	return false
}

// ListComplete implements client.Guard: it records the shards whose part of the complete state was complete.
func (r *reader) ListComplete() {
	r.coverage.setUnmarked(r.marks == nil)
	for shard, mark := range r.marks {
		if _, named := mark.Versions[r.resource]; named {
			r.coverage.add(shard)
		}
	}
}

// restored is called when saved objects were restored, which had been saved after the marks that are known now.
func (r *reader) restored() {
	for _, shard := range r.cache.naming(r.resource) {
		r.coverage.add(shard)
	}
}

// keepsSilent stores an object that is no replica and differs only by what the cache server itself
// has given it, and reports whether it is such a one.
func (r *reader) keepsSilent(key client.Key, obj client.Object) bool {
	old, ok := r.informer.Get(key)
	if !ok || !equality.Semantic.DeepEqual(bare(old), bare(obj)) {
		return false
	}
	r.informer.Replace(key, obj)
	return true
}

// bare returns an object without what servers assign.
func bare(obj client.Object) client.Object {
	plain, _ := obj.DeepCopyObject().(client.Object)
	plain.SetUID("")
	plain.SetResourceVersion("")
	plain.SetGeneration(0)
	plain.SetCreationTimestamp(metav1.Time{})
	plain.SetManagedFields(nil)
	return plain
}
