package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/bubble"
)

// scriptedCache is a cache that has replicas and marks of shards.
type scriptedCache struct {
	*scripted

	lock sync.Mutex
	// away has it answer nothing, and stuck not even an error.
	away, stuck bool
	marked      map[string]Mark
}

func newScriptedCache() *scriptedCache {
	c := &scriptedCache{scripted: newScripted(), marked: map[string]Mark{}}
	c.sharded = true
	c.next = func() fault {
		c.lock.Lock()
		defer c.lock.Unlock()
		if c.away || c.stuck {
			return unavailable
		}
		return ""
	}
	return c
}

func (c *scriptedCache) marks(ctx context.Context) (map[string]Mark, error) {
	c.lock.Lock()
	away, stuck, marks := c.away, c.stuck, maps.Clone(c.marked)
	c.lock.Unlock()
	switch {
	case stuck:
		<-ctx.Done()
		return nil, ctx.Err()
	case away:
		return nil, errors.New("told to be away")
	default:
		return marks, nil
	}
}

// said returns the marks, or nothing if it is away.
func (c *scriptedCache) said() map[string]Mark {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.away || c.stuck {
		return nil
	}
	return maps.Clone(c.marked)
}

// set changes whether it answers. Who goes away breaks its streams, who is stuck does not.
func (c *scriptedCache) set(away, stuck bool) {
	c.lock.Lock()
	c.away, c.stuck = away, stuck
	c.lock.Unlock()
	if away {
		c.end(nil)
	}
}

// wipe has it lose all of its data, with versions that tell.
func (c *scriptedCache) wipe() {
	c.end(nil)
	c.mu.Lock()
	c.revision += 1000
	c.objects, c.history, c.compacted = map[Key]*corev1.ConfigMap{}, nil, c.revision
	c.mu.Unlock()
	c.lock.Lock()
	c.marked = map[string]Mark{}
	c.lock.Unlock()
}

// replace has its data be replaced, for which it has to be away for longer than marks are believed.
func (c *scriptedCache) replace(by func()) {
	c.lock.Lock()
	away, stuck := c.away, c.stuck
	c.lock.Unlock()
	c.set(true, false)
	pass(marksMaxAge)
	by()
	c.set(away, stuck)
}

// keep returns a function that restores what the cache has now, as shardplane snapshot restore does: no
// version from before can be resumed from.
func (c *scriptedCache) keep() (restore func()) {
	restoreObjects := c.backup()
	c.lock.Lock()
	defer c.lock.Unlock()
	marked := maps.Clone(c.marked)
	return func() {
		c.mu.Lock()
		latest := c.revision
		c.mu.Unlock()
		restoreObjects()
		c.mu.Lock()
		c.revision = latest + 1000
		c.history, c.compacted = nil, c.revision
		c.mu.Unlock()
		c.lock.Lock()
		defer c.lock.Unlock()
		c.marked = maps.Clone(marked)
	}
}

// scriptedShard is a shard whose objects are pushed when a test says so.
type scriptedShard struct {
	name, epoch string
	version     int
	objects     map[string]shardObject
}

type shardObject struct {
	version      int
	uid, content string
}

func newScriptedShard(name string) *scriptedShard {
	return &scriptedShard{name: name, epoch: uuid.Must(uuid.NewV7()).String(), version: 1000, objects: map[string]shardObject{}}
}

func (s *scriptedShard) write(name, content string) {
	s.version++
	obj, ok := s.objects[name]
	if !ok {
		obj.uid = fmt.Sprintf("%s-%d", s.name, s.version)
	}
	obj.version, obj.content = s.version, content
	s.objects[name] = obj
}

func (s *scriptedShard) remove(name string) {
	s.version++
	delete(s.objects, name)
}

func (s *scriptedShard) key(name string) Key {
	return Key{Shard: s.name, Cluster: "c", Namespace: "default", Name: name}
}

// push brings replicas up to date, all of them unless they are named.
func (s *scriptedShard) push(c *scriptedCache, names ...string) {
	if len(names) == 0 {
		for name := range s.objects {
			names = append(names, name)
		}
		for key := range c.state() {
			if _, ok := s.objects[key.Name]; !ok && key.Shard == s.name {
				names = append(names, key.Name)
			}
		}
	}
	for _, name := range names {
		obj, ok := s.objects[name]
		key := s.key(name)
		c.mu.Lock()
		replica := c.objects[key]
		c.mu.Unlock()
		switch version := strconv.Itoa(obj.version); {
		case !ok:
			c.remove(key)
		case replica == nil || originalVersion(replica) != version || replica.UID != types.UID(obj.uid):
			if replica != nil && replica.UID != types.UID(obj.uid) {
				c.remove(key)
			}
			c.put(key, obj.content, func(cm *corev1.ConfigMap) {
				cm.UID, cm.CreationTimestamp = types.UID(obj.uid), metav1.Unix(1, 0)
				cm.Annotations[request.OriginalVersionAnnotation], cm.Annotations[request.OriginalUIDAnnotation] = version, obj.uid
			})
		}
	}
}

func (s *scriptedShard) mark(c *scriptedCache) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.marked[s.name] = Mark{Epoch: s.epoch, Versions: map[string]string{"configmaps": strconv.Itoa(s.version)}}
}

// sync pushes all, and says so.
func (s *scriptedShard) sync(c *scriptedCache) {
	s.push(c)
	s.mark(c)
}

func (s *scriptedShard) state() map[Key]string {
	all := map[Key]string{}
	for name, obj := range s.objects {
		all[s.key(name)] = fmt.Sprintf("%s@%d=%s", obj.uid, obj.version, obj.content)
	}
	return all
}

// cacheReader is an informer of a cache, and what it has told.
type cacheReader struct {
	*Informer[*corev1.ConfigMap]
	cache *ReplicaCache

	lock   sync.Mutex
	told   map[Key]string
	events []string
}

func (r *cacheReader) log(kind string, obj *corev1.ConfigMap) {
	r.lock.Lock()
	defer r.lock.Unlock()
	key := r.KeyOf(obj)
	_, known := r.told[key]
	if known != (kind != "add") {
		r.events = append(r.events, fmt.Sprintf("wrong: %s %s, which was known: %t", kind, key.Name, known))
	}
	r.events = append(r.events, fmt.Sprintf("%s %s@%s", kind, key.Name, obj.ResourceVersion))
	if r.told[key] = contentOf(obj); kind == "delete" {
		delete(r.told, key)
	}
}

// marked returns up to where a shard has said to be complete, as far as is known.
func (r *cacheReader) marked(shard string) int {
	mark, _ := r.cache.marked(shard)
	version, _ := strconv.Atoi(mark.Versions["configmaps"])
	return version
}

// news returns what was told since it was called last.
func (r *cacheReader) news() []string {
	bubble.Wait()
	r.lock.Lock()
	defer r.lock.Unlock()
	events := r.events
	r.events = nil
	return events
}

// known returns what was told, and not taken back.
func (r *cacheReader) known() map[Key]string {
	r.lock.Lock()
	defer r.lock.Unlock()
	return maps.Clone(r.told)
}

func (r *cacheReader) has(t *testing.T, want map[Key]string) {
	t.Helper()
	bubble.Wait()
	have := map[Key]string{}
	for _, obj := range r.Lister().List(nil) {
		have[r.KeyOf(obj)] = contentOf(obj)
	}
	require.Equal(t, want, have)
	require.Equal(t, want, r.known())
}

// reading runs f with a reader of a cache, in a bubble.
func reading(t *testing.T, cache *scriptedCache, f func(t *testing.T, r *cacheReader)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := &cacheReader{told: map[Key]string{}}
		r.Informer, r.cache = cache.reader()
		r.AddEventHandler(Handler[*corev1.ConfigMap]{
			OnAdd: func(obj *corev1.ConfigMap, _ bool) { r.log("add", obj) },
			OnUpdate: func(old, obj *corev1.ConfigMap) {
				switch {
				case older(obj.ResourceVersion, old.ResourceVersion) && r.marked(r.KeyOf(obj).Shard) > 0:
					r.log("back", obj)
				case obj.ResourceVersion == old.ResourceVersion:
					r.log("again", obj)
				}
				r.log("update", obj)
			},
			OnDelete: func(last *corev1.ConfigMap, _ bool) { r.log("delete", last) },
		})
		ctx, cancel := context.WithCancel(t.Context())
		group := &Group{}
		group.Add(r.Informer)
		ended := make(chan error, 1)
		go func() { ended <- group.Run(ctx) }()
		defer func() {
			cancel()
			require.NoError(t, <-ended)
		}()
		pass(time.Second)
		require.True(t, r.HasSynced(), r.LastError())
		r.news()
		f(t, r)
	})
}

// reader returns an informer of the cache that does not run yet.
func (c *scriptedCache) reader() (*Informer[*corev1.ConfigMap], *ReplicaCache) {
	informer, cache := c.informer(InformerOptions[*corev1.ConfigMap]{}), newReplicaCache("a", c.marks)
	informer.followCache(cache, func(shard string) (listerWatcher, error) { return c.of(shard), nil })
	return informer, cache
}

// of returns the source of one shard's part.
func (c *scriptedCache) of(shard string) listerWatcher {
	part := newScripted()
	part.next = c.next
	c.mu.Lock()
	defer c.mu.Unlock()
	part.revision = c.revision
	for key, obj := range c.objects {
		if key.Shard == shard {
			part.objects[key] = obj
		}
	}
	return listerWatcher{list: part.list, watch: part.watch}
}

// world is a shard with twenty objects in a cache.
func world() (*scriptedShard, *scriptedCache) {
	s, c := newScriptedShard("s"), newScriptedCache()
	for i := range 20 {
		s.write(fmt.Sprintf("x%02d", i), "first")
	}
	c.revision = 70_000 // nothing is to go by the versions of caches
	c.compacted = c.revision
	s.sync(c)
	return s, c
}
