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

	mu       sync.RWMutex
	clusters map[logicalcluster.Name]Usage // nil until all is counted

	following following
	listening listening
	changed   func()
	quota     *quota
}

// New returns a counter of what has keys below prefix. events is the prefix of
// Events below that, as storage.ResourcePrefix returns it.
func New(client *clientv3.Client, prefix, events string) *Counter {
	return &Counter{
		client: client, root: prefix + "/", events: strings.TrimPrefix(events, "/") + "/", changed: func() {}, quota: newQuota(), following: newFollowing(),
	}
}

// Of returns what the logical cluster stores, and false as long as the counter
// does not know yet: it reads all once when it starts.
func (c *Counter) Of(cluster logicalcluster.Name) (Usage, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.clusters[cluster], c.clusters != nil
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
	clusters := map[logicalcluster.Name]Usage{}
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
			if err := c.scanRange(ctx, from, last, revision, clusters); err != nil {
				return 0, err
			}
			from = last
		}
		more = keys.More
	}
	c.mu.Lock()
	c.clusters = clusters
	c.mu.Unlock()
	c.following.complete(revision)
	c.listening.tell("")
	c.changed()
	return revision, nil
}

// scanRange counts what there is between two keys, at a revision.
func (c *Counter) scanRange(ctx context.Context, from, end string, revision int64, clusters map[logicalcluster.Name]Usage) error {
	response, err := c.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithRev(revision))
	if err != nil {
		return fmt.Errorf("counting what is stored: %w", err)
	}
	for _, kv := range response.Kvs {
		if cluster, event, ok := c.parse(kv.Key); ok {
			add(clusters, cluster, event, 1, len(kv.Key)+len(kv.Value))
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
		cluster, event, ok := c.parse(e.Kv.Key)
		if !ok {
			continue
		}
		if err := c.count(e, cluster, event); err != nil {
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

func (c *Counter) count(e *clientv3.Event, cluster logicalcluster.Name, event bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case e.IsCreate():
		add(c.clusters, cluster, event, 1, len(e.Kv.Key)+len(e.Kv.Value))
	case e.PrevKv == nil:
		// etcd was compacted before it looked up what was there.
		return errors.New("the value before a write is gone")
	case e.Type == clientv3.EventTypeDelete:
		add(c.clusters, cluster, event, -1, -len(e.PrevKv.Key)-len(e.PrevKv.Value))
	default:
		add(c.clusters, cluster, event, 0, len(e.Kv.Value)-len(e.PrevKv.Value))
	}
	return nil
}

// relative returns a key without the prefix of all keys.
func (c *Counter) relative(key []byte) string { return string(key[len(c.root)-1:]) }

func add(clusters map[logicalcluster.Name]Usage, cluster logicalcluster.Name, event bool, objects int64, bytes int) {
	u := clusters[cluster]
	if !event {
		u.Objects += objects
	}
	u.Bytes += int64(bytes)
	if u == (Usage{}) {
		delete(clusters, cluster)
		return
	}
	clusters[cluster] = u
}

// parse returns whose object has the key, which is
// <root><group>/<resource>/[:<identity>/]<cluster>/…, and whether it is an Event. It is
// false for keys that are no object's.
func (c *Counter) parse(key []byte) (cluster logicalcluster.Name, event, ok bool) {
	rest, ok := strings.CutPrefix(string(key), c.root)
	if !ok {
		return "", false, false
	}
	event = strings.HasPrefix(rest, c.events)
	segments := strings.SplitN(rest, "/", 5)
	if len(segments) > 3 && strings.HasPrefix(segments[2], ":") {
		segments = segments[1:]
	}
	if len(segments) < 4 {
		return "", false, false
	}
	cluster = logicalcluster.Name(segments[2])
	return cluster, event, request.ValidClusterName(cluster)
}
