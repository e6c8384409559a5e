package replicas

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
)

// reader is the client.Guard of an informer of a cache server whose data may be lost. The version of a replica is the
// resourceVersion of the original object, which the informer sets as resourceVersion. Checkpoints are read before the
// complete state of the cache server, and are compared with the known ones for each shard:
//
//	equal or later    missing objects are deleted
//	earlier, or none  the cache lags behind: missing objects are retained, and objects that are older than
//	                  the known ones are outdated, until the checkpoint is reached
//
// Then the objects of the shard are listed again, and compared. Shards that never had a checkpoint and removed shards
// are not guarded.
type reader struct {
	cache    *Cache
	informer client.Guarded
	// resource is the key of the informer's resource in checkpoints.
	resource string

	// The following fields are protected by the informer's lock.

	round int
	// seen are the latest observed versions by shard.
	seen map[string]seenVersion
	// behind are the shards for which the cache lags behind the known state.
	behind map[string]*lag
	// retained are objects that the cache does not have. outdated are objects that are older in the cache than the
	// known versions.
	retained map[client.Key]struct{}
	outdated map[client.Key]client.Object
	// checkpoints were read before the complete state.
	checkpoints map[string]Checkpoint

	coverage coverage
}

type seenVersion struct{ epoch, version string }

// lag describes how a cache lags behind for a shard.
type lag struct {
	// target is the checkpoint that the cache must reach.
	target Checkpoint
	// other is set if its objects are of another epoch, and cannot be compared.
	other bool
	// until is set when the cache has caught up: later events of the cache are new. due are the versions of objects at
	// that version which the stream has not delivered yet.
	until string
	due   map[client.Key]string
}

var _ client.Guard = &reader{}

func newReader(cache *Cache, informer client.Guarded) *reader {
	return &reader{
		cache: cache, informer: informer, resource: informer.Resource().String(),
		seen: map[string]seenVersion{}, behind: map[string]*lag{}, retained: map[client.Key]struct{}{}, outdated: map[client.Key]client.Object{},
		coverage: coverage{lacking: map[string]time.Time{}},
	}
}

func (r *reader) BeforeList(ctx context.Context, lastBreak time.Time) error {
	checkpoints, err := r.cache.currentCheckpoints(ctx, lastBreak)
	if err != nil {
		return err
	}
	r.informer.Pause(func() { r.begin(ctx, checkpoints) })
	return nil
}

// begin compares the checkpoints on the cache server with the known state, with the informer's lock held.
func (r *reader) begin(ctx context.Context, checkpoints map[string]Checkpoint) {
	r.round++
	r.checkpoints = checkpoints
	clear(r.behind)
	clear(r.outdated)
	if checkpoints == nil {
		return // a cache server of kcp
	}
	for shard := range r.seen {
		target, ok := r.target(shard)
		checkpoint, hasCheckpoint := checkpoints[shard]
		if complete := hasCheckpoint && checkpoint.reaches(target); ok && !complete && !r.cache.removed(shard) {
			r.behind[shard] = &lag{target: target, other: hasCheckpoint && checkpoint.Epoch != target.Epoch}
			klog.FromContext(ctx).V(2).Info("The cache lags behind the known state of a shard", "informer", r.informer.Name(), "cache", r.cache.name, "shard", shard)
		}
	}
}

// target returns the checkpoint that a cache reaches if it has everything known of a shard.
func (r *reader) target(shard string) (Checkpoint, bool) {
	checkpoint, ok := r.known(shard)
	version, named := checkpoint.Versions[r.resource]
	if last := r.seen[shard]; named && (last.epoch == "" || last.epoch == checkpoint.Epoch) && older(version, last.version) {
		checkpoint.Versions = map[string]string{r.resource: last.version}
	}
	return checkpoint, ok
}

// known returns the latest checkpoint of a shard, restricted to the resource if it contains that.
func (r *reader) known(shard string) (Checkpoint, bool) {
	checkpoint, ok := r.cache.checkpoint(shard)
	if version, named := checkpoint.Versions[r.resource]; named {
		checkpoint.Versions = map[string]string{r.resource: version}
	}
	return checkpoint, ok
}

// Version implements client.Guard: it returns the version of the original object, or "" if obj is not a replica.
func (*reader) Version(obj metav1.Object) string {
	return obj.GetAnnotations()[request.OriginalVersionAnnotation]
}

// observe records a version of a shard. Versions before its first checkpoint belong to the epoch of that checkpoint.
func (r *reader) observe(shard, version string) {
	known, _ := r.cache.checkpoint(shard)
	if last := r.seen[shard]; (last.epoch == "" || last.epoch == known.Epoch) && older(version, last.version) {
		version = last.version
	}
	r.seen[shard] = seenVersion{known.Epoch, version}
}

func (r *reader) lagging(shard, version string) *lag {
	l := r.behind[shard]
	if l != nil && l.until != "" && older(l.until, version) {
		delete(r.behind, shard)
		return nil
	}
	return l
}

// Put implements client.Guard: it reports whether a replica is current, i.e. not older than the known state.
func (r *reader) Put(key client.Key, obj client.Object, served, version string) bool {
	delete(r.retained, key)
	l := r.lagging(key.Shard, served)
	if l != nil && version != "" {
		limit, outdated := l.target.Versions[r.resource], l.other
		if old, known := r.informer.Get(key); known {
			outdated = outdated || older(version, old.GetResourceVersion())
		} else {
			outdated = outdated || !older(limit, version)
		}
		if outdated && l.due[key] != version {
			r.outdated[key] = obj
			return false
		}
	}
	delete(r.outdated, key)
	r.observe(key.Shard, version)
	return version != "" || !r.replaceSilently(key, obj)
}

func (r *reader) Delete(key client.Key, served, version string) bool {
	delete(r.outdated, key)
	if l := r.lagging(key.Shard, served); l != nil && version != "" {
		if old, known := r.informer.Get(key); known && (l.other || older(version, old.GetResourceVersion())) {
			r.retained[key] = struct{}{}
			return false
		}
	}
	delete(r.retained, key)
	r.observe(key.Shard, version)
	return true
}

func (r *reader) DropMissing(key client.Key) bool {
	if r.behind[key.Shard] == nil {
		return true
	}
	r.retained[key] = struct{}{}
	return false
}

func (r *reader) ListComplete() {
	r.coverage.setWithoutCheckpoints(r.checkpoints == nil)
	for shard, checkpoint := range r.checkpoints {
		if _, named := checkpoint.Versions[r.resource]; named {
			r.coverage.add(shard)
		}
	}
}

// restored is called after the restore of objects that were saved after the known checkpoints.
func (r *reader) restored() {
	for _, shard := range r.cache.shardsWith(r.resource) {
		r.coverage.add(shard)
	}
}

// replaceSilently stores an object without notifying handlers if it differs only in fields that the cache server
// assigns.
func (r *reader) replaceSilently(key client.Key, obj client.Object) bool {
	old, ok := r.informer.Get(key)
	if !ok || !equality.Semantic.DeepEqual(bare(old), bare(obj)) {
		return false
	}
	r.informer.Replace(key, obj)
	return true
}

// bare returns an object without the fields that servers assign.
func bare(obj client.Object) client.Object {
	plain, _ := obj.DeepCopyObject().(client.Object)
	plain.SetUID("")
	plain.SetResourceVersion("")
	plain.SetGeneration(0)
	plain.SetCreationTimestamp(metav1.Time{})
	plain.SetManagedFields(nil)
	return plain
}

// coverage records the shards of which an informer has everything up to a checkpoint. Handlers of the informer use it.
type coverage struct {
	mu sync.Mutex
	// withoutCheckpoints is set if the cache server does not support checkpoints.
	withoutCheckpoints bool
	// lacking is the time since which a shard is not covered; zero if it is.
	lacking map[string]time.Time
}

func (c *coverage) add(shard string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lacking[shard] = time.Time{}
}

func (c *coverage) has(shard string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	since, known := c.lacking[shard]
	return known && since.IsZero()
}

func (c *coverage) setWithoutCheckpoints(withoutCheckpoints bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.withoutCheckpoints = withoutCheckpoints
}

// lacks returns the shards that are not covered, and since when.
func (c *coverage) lacks(shards []string) map[string]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.withoutCheckpoints {
		return nil
	}
	all := map[string]time.Time{}
	for _, shard := range shards {
		since, known := c.lacking[shard]
		if !known {
			since = time.Now()
			c.lacking[shard] = since
		}
		if !since.IsZero() {
			all[shard] = since
		}
	}
	return all
}
