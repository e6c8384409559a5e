// Package usage counts the stored objects and bytes per logical cluster, and in total against the quota of
// etcd. It watches etcd, so that it includes writes by any process and of any resource.
package usage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/request"
)

const (
	// page and keysPage are the numbers of keys that are read at a time with and without values of up to a megabyte.
	page, keysPage = 100, 10000
	retry          = time.Second
)

// Usage is the usage of one logical cluster.
type Usage struct {
	// Objects is the number of objects except Events, which expire.
	Objects int64
	// Bytes is the size of keys and values in etcd, including Events but not the history.
	Bytes int64
}

// Counter counts the objects in the etcd of a shard, including each write after some milliseconds.
type Counter struct {
	client *clientv3.Client
	// root is the prefix of all keys, with a slash at its end.
	root string
	// events is the prefix of Events, relative to root.
	events string
	// separate are the prefixes of resources that are also counted separately, relative to root, without a slash at the end.
	separate map[string]bool

	mu sync.RWMutex
	counts

	following following
	listening listening
	quota     *quota
}

type counts struct {
	clusters map[logicalcluster.Name]Usage // nil until the first scan is complete
	kinds    map[kindIn]Usage
	// prefixes are the numbers of keys by the prefix up to the logical cluster.
	prefixes map[string]int
}

// kindIn is a resource in a logical cluster, by the prefix of its keys.
type kindIn struct {
	cluster logicalcluster.Name
	prefix  string
}

type objectKey struct {
	kindIn // with a prefix only if the resource is counted separately

	// before is the key up to the logical cluster, without the prefix of all keys.
	before string
	event  bool
}

// NewUsageMeter returns a counter of the keys below prefix. events is the storage.ResourcePrefix of Events. separate
// are resources of named groups that are also counted separately.
func NewUsageMeter(client *clientv3.Client, prefix, events string, separate ...schema.GroupResource) *Counter {
	c := &Counter{
		client: client, root: prefix + "/", events: strings.TrimPrefix(events, "/") + "/", separate: map[string]bool{}, quota: newQuota(),
		following: following{again: make(chan struct{}, 1), moved: make(chan struct{})},
		listening: listening{listeners: map[*func(key string)]struct{}{}},
	}
	for _, of := range separate {
		c.separate[of.Group+"/"+of.Resource] = true
	}
	return c
}

// CompactEarly enables compaction of all but the last seconds of history while etcd is nearly full, before Run.
func (c *Counter) CompactEarly() { c.quota.history.enabled = true }

// Of returns the usage of a logical cluster. Like other methods, it returns false until the initial scan is complete.
func (c *Counter) Of(cluster logicalcluster.Name) (Usage, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.clusters[cluster], c.clusters != nil
}

// OfKind returns the usage of a resource in a logical cluster, or false if it is not counted separately.
func (c *Counter) OfKind(cluster logicalcluster.Name, resource schema.GroupResource) (Usage, bool) {
	prefix := resource.Group + "/" + resource.Resource
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.kinds[kindIn{cluster, prefix}], c.clusters != nil && c.separate[prefix]
}

// Prefixes returns the prefixes of keys up to the logical cluster, e.g. "/core/secrets/".
func (c *Counter) Prefixes() ([]string, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Sorted(maps.Keys(c.prefixes)), c.clusters != nil
}

// All returns the usage of each logical cluster.
func (c *Counter) All() (map[logicalcluster.Name]Usage, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return maps.Clone(c.clusters), c.clusters != nil
}

// Total returns the usage of all logical clusters.
func (c *Counter) Total() (total Usage, known bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, u := range c.clusters {
		total.Objects += u.Objects
		total.Bytes += u.Bytes
	}
	return total, c.clusters != nil
}

// Storage returns the bytes in use of etcd's file, including history, and its quota. Both are 0 if unknown.
func (c *Counter) Storage() (inUse, quota int64) { return c.quota.inUse.Load(), c.quota.limit.Load() }

// Full reports whether etcd is so near its quota that the remaining space is reserved for system requests.
func (c *Counter) Full() bool { return c.quota.full.Load() }

// HistoryFull reports whether etcd is full, and writes have replaced so many bytes since the last compaction that
// others must wait for the next one.
func (c *Counter) HistoryFull() bool {
	h := &c.quota.history
	return c.Full() && h.superseded.Load()-h.compacted.Load() >= 2*c.quota.enough.Load()
}

// Filling reports whether so much of etcd's quota is in use that the largest users must stop writing.
func (c *Counter) Filling() bool { return c.quota.filling.Load() }

// Listen calls changed with the key of each written object, after it was counted, until stop has returned. It must not
// block. The key is empty after a scan, because writes may have been missed.
func (c *Counter) Listen(changed func(key string)) (stop func()) {
	l := &c.listening
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listeners[&changed] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.listeners, &changed)
	}
}

// Follow notifies a follower of all objects until stop has returned. There is at most one at a time.
func (c *Counter) Follow(f Follower) (stop func()) {
	w := &c.following
	w.mu.Lock()
	defer w.mu.Unlock()
	w.requested = &f
	select {
	case w.again <- struct{}{}:
	default:
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.requested == &f {
			w.requested, w.active, w.revision = nil, nil, 0
		}
	}
}

// progressInterval is the interval of progress requests in WaitFor.
const progressInterval = 50 * time.Millisecond

// WaitFor waits until the follower has been notified of all writes up to a revision, or ctx is done.
func (c *Counter) WaitFor(ctx context.Context, revision uint64) error {
	w := &c.following
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	for first := true; ; first = false {
		w.mu.Lock()
		reached, moved := uint64(w.revision) >= revision, w.moved //nolint:gosec // revisions are positive
		w.mu.Unlock()
		if reached {
			return nil
		}
		if first {
			c.requestProgress(ctx)
		}
		select {
		case <-moved:
		case <-ticker.C:
			c.requestProgress(ctx)
		case <-ctx.Done():
			return errors.Join(errors.New("not all stored objects are counted yet"), ctx.Err())
		}
	}
}

// requestProgress requests progress of the watch. WaitFor repeats it if it fails.
func (c *Counter) requestProgress(ctx context.Context) {
	_ = c.client.RequestProgress(streamContext(ctx))
}

// Run counts until ctx ends.
func (c *Counter) Run(ctx context.Context) error {
	ctx = streamContext(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { c.quota.watch(ctx, c.client) })
	for ctx.Err() == nil {
		revision, err := c.scan(ctx)
		if err == nil {
			err = c.follow(ctx, revision)
		}
		if ctx.Err() != nil {
			break
		}
		if err == nil {
			continue // a new follower
		}
		klog.FromContext(ctx).Info("Failed to watch stored objects, counting them again", "err", err)
		select {
		case <-time.After(retry):
		case <-ctx.Done():
		}
	}
	return nil
}

// scan counts the stored objects, and returns their revision. etcd iterates over all keys of a range to return their
// number. Therefore, pages with values end at keys that are known from a larger page without values.
func (c *Counter) scan(ctx context.Context) (int64, error) {
	c.following.begin()
	all := counts{map[logicalcluster.Name]Usage{}, map[kindIn]Usage{}, map[string]int{}}
	var revision int64
	end := clientv3.GetPrefixRangeEnd(c.root)
	for from, more := c.root, true; more; {
		keys, err := c.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(keysPage), clientv3.WithRev(revision), clientv3.WithKeysOnly())
		if err != nil {
			return 0, fmt.Errorf("counting stored objects: %w", err)
		}
		if revision == 0 { // the revision of the first page; later headers contain the latest revision
			revision = keys.Header.Revision
		}
		for some := range slices.Chunk(keys.Kvs, page) {
			last := string(some[len(some)-1].Key) + "\x00"
			if err := c.scanRange(ctx, from, last, revision, all); err != nil {
				return 0, err
			}
			from = last
		}
		more = keys.More
	}
	c.mu.Lock()
	c.counts = all
	c.mu.Unlock()
	c.quota.history.superseded.Add(c.quota.enough.Load()) // an estimate of the missed updates
	c.following.complete(revision)
	c.listening.notify("")
	return revision, nil
}

func (c *Counter) scanRange(ctx context.Context, from, end string, revision int64, all counts) error {
	response, err := c.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithRev(revision))
	if err != nil {
		return fmt.Errorf("counting stored objects: %w", err)
	}
	for _, kv := range response.Kvs {
		if at, ok := c.parse(kv.Key); ok {
			all.add(at, 1, len(kv.Key)+len(kv.Value))
			c.following.notify(c.relative(kv.Key), nil, kv.Value, kv.ModRevision)
		}
	}
	return nil
}

// follow counts the changes after the revision until the watch or ctx ends, or a new follower needs a scan.
func (c *Counter) follow(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithCancel(ctx)
	watch := c.client.Watch(ctx, c.root, clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithRev(revision+1))
	// Two watches must not share a stream. Notifications of progress are for all watches of a stream, and the
	// response that creates a watch may overtake one. The next watch would then receive the progress of this one,
	// although it lacks events.
	defer func() {
		cancel()
		for range watch { // until the client has closed it, and its stream
		}
	}()
	for {
		select {
		case response, ok := <-watch:
			if !ok {
				return errors.New("the watch has ended")
			}
			if err := response.Err(); err != nil {
				return err
			}
			if err := c.apply(&response); err != nil {
				return err
			}
		case <-c.following.again:
			return nil
		}
	}
}

// apply counts the events of one response, and notifies the followers.
func (c *Counter) apply(response *clientv3.WatchResponse) error {
	for _, e := range response.Events {
		if e.Type == clientv3.EventTypePut {
			c.quota.wrote(len(e.Kv.Key) + len(e.Kv.Value))
		}
		if e.PrevKv != nil {
			c.quota.history.superseded.Add(int64(len(e.PrevKv.Key) + len(e.PrevKv.Value)))
		}
		at, ok := c.parse(e.Kv.Key)
		if !ok {
			continue
		}
		if err := c.count(e, at); err != nil {
			return err
		}
		before, after := []byte(nil), e.Kv.Value
		if e.PrevKv != nil {
			before = e.PrevKv.Value
		}
		if e.Type == clientv3.EventTypeDelete {
			after = nil
		}
		key := c.relative(e.Kv.Key)
		c.following.notify(key, before, after, e.Kv.ModRevision)
		c.listening.notify(key)
	}
	switch n := len(response.Events); {
	case n > 0: // the header may be ahead of pending events
		c.following.move(response.Events[n-1].Kv.ModRevision)
	case response.IsProgressNotify():
		c.following.move(response.Header.Revision)
	}
	return nil
}

func (c *Counter) count(e *clientv3.Event, at objectKey) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case e.IsCreate():
		c.add(at, 1, len(e.Kv.Key)+len(e.Kv.Value))
	case e.PrevKv == nil:
		// etcd was compacted before it read the previous value.
		return errors.New("the previous value of a write was compacted")
	case e.Type == clientv3.EventTypeDelete:
		c.add(at, -1, -len(e.PrevKv.Key)-len(e.PrevKv.Value))
	default:
		c.add(at, 0, len(e.Kv.Value)-len(e.PrevKv.Value))
	}
	return nil
}

func (c *Counter) relative(key []byte) string { return string(key[len(c.root)-1:]) }

func (c *counts) add(at objectKey, objects int64, bytes int) {
	if c.prefixes[at.before] += int(objects); c.prefixes[at.before] == 0 {
		delete(c.prefixes, at.before)
	}
	if at.event {
		objects = 0
	}
	change := Usage{Objects: objects, Bytes: int64(bytes)}
	addTo(c.clusters, at.cluster, change)
	if at.prefix != "" {
		addTo(c.kinds, at.kindIn, change)
	}
}

func addTo[K comparable](sums map[K]Usage, key K, change Usage) {
	sum := sums[key]
	sum.Objects += change.Objects
	sum.Bytes += change.Bytes
	if sum == (Usage{}) {
		delete(sums, key)
		return
	}
	sums[key] = sum
}

// parse parses a key of the form <root><group>/<resource>/[:<identity>/]<cluster>/…. It returns false for others.
func (c *Counter) parse(key []byte) (at objectKey, ok bool) {
	rest, ok := strings.CutPrefix(string(key), c.root)
	if !ok {
		return objectKey{}, false
	}
	at.event = strings.HasPrefix(rest, c.events)
	segments := strings.SplitN(rest, "/", 5)
	if len(segments) < 4 {
		return objectKey{}, false
	}
	resource, _, _ := strings.Cut(segments[1], ":")
	if prefix := segments[0] + "/" + resource; c.separate[prefix] {
		at.prefix = prefix
	}
	before := len(c.root) + len(segments[0]) + len(segments[1]) + 2
	if strings.HasPrefix(segments[2], ":") {
		before += len(segments[2]) + 1
		segments = segments[1:]
	}
	if len(segments) < 4 {
		return objectKey{}, false
	}
	at.cluster, at.before = logicalcluster.Name(segments[2]), c.relative(key[:before])
	return at, request.ValidClusterName(at.cluster)
}
