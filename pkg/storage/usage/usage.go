// Package usage counts what is stored: by each logical cluster, and in all,
// against the quota of the etcd. It sees what etcd sees, so that nothing passes
// it by, whichever process or resource it was written by.
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
	// page is how many keys are read at a time with their values, which may be of
	// more than a megabyte each, and keysPage how many without.
	page, keysPage = 100, 10000
	// retry is how long the counter waits after etcd has failed it.
	retry = time.Second
)

// Usage is what one logical cluster stores. The zero value is that of one that
// stores nothing.
type Usage struct {
	// Objects are all but Events, which come and go by themselves.
	Objects int64
	// Bytes are the keys and values in etcd, those of Events too, without the
	// history that etcd keeps until it is compacted.
	Bytes int64
}

// Counter counts what a shard's etcd holds. It is up to date with a write some
// milliseconds after that is acknowledged. Its methods may be called from any
// goroutine.
type Counter struct {
	client *clientv3.Client
	// root is the prefix of all keys, with a slash at its end.
	root string
	// events are the prefix of Events, relative to root.
	events string
	// apart are the prefixes of what is also counted apart, relative to root and without a slash at the end.
	apart map[string]bool

	mu sync.RWMutex
	counts

	following following
	listening listening
	changed   func()
	quota     *quota
}

// counts is what is stored.
type counts struct {
	clusters map[logicalcluster.Name]Usage // nil until all is counted
	kinds    map[kindIn]Usage
	// prefixes counts the keys of each prefix up to the logical cluster.
	prefixes map[string]int
}

// kindIn is a resource in a logical cluster, by the prefix of its keys.
type kindIn struct {
	cluster logicalcluster.Name
	prefix  string
}

// place is what the key of an object says.
type place struct {
	kindIn // the prefix is of what is counted apart, and otherwise empty

	// before is the key up to the logical cluster, without the prefix of all keys.
	before string
	event  bool
}

// New returns a counter of what has keys below prefix. events is the prefix of
// Events below that, as storage.ResourcePrefix returns it, and apart are resources of groups with a name that
// are also counted by themselves.
func New(client *clientv3.Client, prefix, events string, apart ...schema.GroupResource) *Counter {
	c := &Counter{
		client: client, root: prefix + "/", events: strings.TrimPrefix(events, "/") + "/", apart: map[string]bool{}, changed: func() {}, quota: newQuota(), following: newFollowing(),
	}
	for _, of := range apart {
		c.apart[of.Group+"/"+of.Resource] = true
	}
	return c
}

// CompactEarly has the counter, once it runs, compact all history but that of some seconds while the
// etcd is nearly full.
func (c *Counter) CompactEarly() { c.quota.history.enabled = true }

// Of returns what the logical cluster stores, and false as long as the counter
// does not know yet: it reads all once when it starts.
func (c *Counter) Of(cluster logicalcluster.Name) (Usage, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.clusters[cluster], c.clusters != nil
}

// OfKind returns what a logical cluster stores of a resource. It is false for a resource that is not counted apart,
// and as long as the counter does not know yet.
func (c *Counter) OfKind(cluster logicalcluster.Name, resource schema.GroupResource) (Usage, bool) {
	prefix := resource.Group + "/" + resource.Resource
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.kinds[kindIn{cluster, prefix}], c.clusters != nil && c.apart[prefix]
}

// Prefixes returns what comes before the logical cluster in the keys of objects, such as
// "/core/secrets/", and false as long as the counter does not know yet.
func (c *Counter) Prefixes() ([]string, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Sorted(maps.Keys(c.prefixes)), c.clusters != nil
}

// All returns what each logical cluster stores, and false as long as the counter does
// not know yet.
func (c *Counter) All() (map[logicalcluster.Name]Usage, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return maps.Clone(c.clusters), c.clusters != nil
}

// Total returns what all logical clusters store, and false as long as the counter does not
// know yet.
func (c *Counter) Total() (total Usage, known bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, u := range c.clusters {
		total.Objects += u.Objects
		total.Bytes += u.Bytes
	}
	return total, c.clusters != nil
}

// Storage returns how many bytes of the etcd's file are in use, history included, and its
// quota, each 0 as long as that is not known.
func (c *Counter) Storage() (inUse, quota int64) { return c.quota.inUse.Load(), c.quota.limit.Load() }

// OnChange has f called after each change, by one goroutine, so that it must return
// at once. Call it before Run.
func (c *Counter) OnChange(f func()) { c.changed = f }

// Full reports whether the etcd is so near its quota that what is left belongs to
// the system. Once it reaches the quota, it refuses all writes but deletes.
func (c *Counter) Full() bool { return c.quota.full.Load() }

// Filling reports whether so much of the etcd's quota is in use that those who use most have to stop.
func (c *Counter) Filling() bool { return c.quota.filling.Load() }

// Listen has changed called with the key of each object that is written, by one goroutine, so
// that it must return at once, and with none when any may have been written unseen. When stop has
// returned, it is called no more. It costs the counter nothing to read.
func (c *Counter) Listen(changed func(key string)) (stop func()) {
	l := &c.listening
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listeners == nil {
		l.listeners = map[*func(key string)]struct{}{}
	}
	l.listeners[&changed] = struct{}{}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.listeners, &changed)
	}
}

// Follow has a follower told of everything until stop is called, and of nothing once that has
// returned. There is one at a time.
func (c *Counter) Follow(f Follower) (stop func()) {
	w := &c.following
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wanted = &f
	select {
	case w.again <- struct{}{}:
	default:
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.wanted == &f {
			w.wanted, w.told, w.revision = nil, nil, 0
		}
	}
}

// askAgain is how often somebody who waits has etcd asked how far the watch is.
const askAgain = 50 * time.Millisecond

// WaitFor waits until the follower was told of all that was written up to a revision, as long as
// ctx lets it.
func (c *Counter) WaitFor(ctx context.Context, revision uint64) error {
	w := &c.following
	ticker := time.NewTicker(askAgain)
	defer ticker.Stop()
	for first := true; ; first = false {
		w.mu.Lock()
		told, moved := uint64(w.revision) >= revision, w.moved //nolint:gosec // revisions are positive
		w.mu.Unlock()
		if told {
			return nil
		}
		if first {
			c.askProgress(ctx)
		}
		select {
		case <-moved:
		case <-ticker.C:
			c.askProgress(ctx)
		case <-ctx.Done():
			return errors.Join(errors.New("not all that is stored is known yet"), ctx.Err())
		}
	}
}

// askProgress has etcd tell how far the watch is. Should it not, the one who waits asks again.
func (c *Counter) askProgress(ctx context.Context) {
	_ = c.client.RequestProgress(streamContext(ctx))
}

// Run counts until ctx ends.
func (c *Counter) Run(ctx context.Context) error {
	// A stream of its own: etcd tells the progress of a stream to all watches on it.
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
			continue // somebody wants to follow
		}
		klog.InfoS("Cannot follow what logical clusters store, counting it again", "err", err)
		select {
		case <-time.After(retry):
		case <-ctx.Done():
		}
	}
	return nil
}

// scan counts what is there, and returns the revision that it saw. With a limit etcd looks at
// all keys up to the end of the range for each page, to say how many there are: so the
// ends of pages with values are among keys that it has told before.
func (c *Counter) scan(ctx context.Context) (int64, error) {
	c.following.begin()
	all := counts{map[logicalcluster.Name]Usage{}, map[kindIn]Usage{}, map[string]int{}}
	var revision int64
	end := clientv3.GetPrefixRangeEnd(c.root)
	for from, more := c.root, true; more; {
		keys, err := c.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(keysPage), clientv3.WithRev(revision), clientv3.WithKeysOnly())
		if err != nil {
			return 0, fmt.Errorf("counting what is stored: %w", err)
		}
		if revision == 0 { // of the first page; the header always has the latest
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
	c.quota.history.superseded.Add(c.quota.enough.Load()) // there may be as much that it has not seen
	c.following.complete(revision)
	c.listening.tell("")
	c.changed()
	return revision, nil
}

// scanRange counts what there is between two keys, at a revision.
func (c *Counter) scanRange(ctx context.Context, from, end string, revision int64, all counts) error {
	response, err := c.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithRev(revision))
	if err != nil {
		return fmt.Errorf("counting what is stored: %w", err)
	}
	for _, kv := range response.Kvs {
		if at, ok := c.parse(kv.Key); ok {
			all.add(at, 1, len(kv.Key)+len(kv.Value))
			c.following.tell(c.relative(kv.Key), nil, kv.Value, kv.ModRevision)
		}
	}
	return nil
}

// follow counts what is written after the revision, until ctx ends, the watch does, or
// somebody wants to be told of everything, which is no error.
func (c *Counter) follow(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := c.client.Watch(ctx, c.root, clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithRev(revision+1))
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
			c.changed()
		case <-c.following.again:
			return nil
		}
	}
}

// apply counts the events of one answer, and tells of them.
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
		c.following.tell(key, before, after, e.Kv.ModRevision)
		c.listening.tell(key)
	}
	switch n := len(response.Events); {
	case n > 0: // the header may be ahead of what is still to come
		c.following.move(response.Events[n-1].Kv.ModRevision)
	case response.IsProgressNotify():
		c.following.move(response.Header.Revision)
	}
	return nil
}

func (c *Counter) count(e *clientv3.Event, at place) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case e.IsCreate():
		c.add(at, 1, len(e.Kv.Key)+len(e.Kv.Value))
	case e.PrevKv == nil:
		// etcd was compacted before it looked up what was there.
		return errors.New("the value before a write is gone")
	case e.Type == clientv3.EventTypeDelete:
		c.add(at, -1, -len(e.PrevKv.Key)-len(e.PrevKv.Value))
	default:
		c.add(at, 0, len(e.Kv.Value)-len(e.PrevKv.Value))
	}
	return nil
}

// relative returns a key without the prefix of all keys.
func (c *Counter) relative(key []byte) string { return string(key[len(c.root)-1:]) }

func (c *counts) add(at place, objects int64, bytes int) {
	c.addPrefix(at.before, int(objects))
	if at.event {
		objects = 0
	}
	change := Usage{Objects: objects, Bytes: int64(bytes)}
	addTo(c.clusters, at.cluster, change)
	if at.prefix != "" {
		addTo(c.kinds, at.kindIn, change)
	}
}

// addPrefix counts keys with a prefix.
func (c *counts) addPrefix(before string, keys int) {
	switch n, known := c.prefixes[before]; {
	case keys == 0:
	case !known:
		c.prefixes[before] = keys
	case n+keys == 0:
		delete(c.prefixes, before)
	default:
		c.prefixes[before] = n + keys
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

// parse returns whose object has the key, which is
// <root><group>/<resource>/[:<identity>/]<cluster>/…, and of what it is. It is
// false for keys that are no object's.
func (c *Counter) parse(key []byte) (at place, ok bool) {
	rest, ok := strings.CutPrefix(string(key), c.root)
	if !ok {
		return place{}, false
	}
	at.event = strings.HasPrefix(rest, c.events)
	segments := strings.SplitN(rest, "/", 5)
	if len(segments) < 4 {
		return place{}, false
	}
	resource, _, _ := strings.Cut(segments[1], ":")
	if prefix := segments[0] + "/" + resource; c.apart[prefix] {
		at.prefix = prefix
	}
	before := len(c.root) + len(segments[0]) + len(segments[1]) + 2
	if strings.HasPrefix(segments[2], ":") {
		before += len(segments[2]) + 1
		segments = segments[1:]
	}
	if len(segments) < 4 {
		return place{}, false
	}
	at.cluster, at.before = logicalcluster.Name(segments[2]), c.relative(key[:before])
	return at, request.ValidClusterName(at.cluster)
}
