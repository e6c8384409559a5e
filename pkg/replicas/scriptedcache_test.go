package replicas

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

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/bubble"
)

type scriptedCache struct {
	*scripted

	lock          sync.Mutex
	outage, stuck bool
	written       map[string]Checkpoint
}

func newScriptedCache() *scriptedCache {
	c := &scriptedCache{scripted: newScripted(), written: map[string]Checkpoint{}}
	c.Rollback(70_000) // versions of caches must not be compared
	c.next = func() int {
		c.lock.Lock()
		defer c.lock.Unlock()
		if c.outage || c.stuck {
			return unavailable()
		}
		return 0
	}
	return c
}

func (c *scriptedCache) checkpoints(ctx context.Context) (map[string]Checkpoint, error) {
	c.lock.Lock()
	outage, stuck, checkpoints := c.outage, c.stuck, maps.Clone(c.written)
	c.lock.Unlock()
	switch {
	case stuck:
		<-ctx.Done()
		return nil, ctx.Err()
	case outage:
		return nil, errors.New("injected failure")
	default:
		return checkpoints, nil
	}
}

func (c *scriptedCache) observedCheckpoints() map[string]Checkpoint {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.outage || c.stuck {
		return nil
	}
	return maps.Clone(c.written)
}

func (c *scriptedCache) set(outage, stuck bool) {
	c.lock.Lock()
	c.outage, c.stuck = outage, stuck
	c.lock.Unlock()
	if outage {
		c.Break()
	}
}

func (c *scriptedCache) wipe(t *testing.T) {
	t.Helper()
	c.become(t, nil)
	c.lock.Lock()
	defer c.lock.Unlock()
	c.written = map[string]Checkpoint{}
}

func (c *scriptedCache) replace(t *testing.T, by func(t *testing.T)) {
	t.Helper()
	c.lock.Lock()
	outage, stuck := c.outage, c.stuck
	c.lock.Unlock()
	c.set(true, false)
	pass(checkpointMaxAge)
	by(t)
	c.set(outage, stuck)
}

// keep returns a function that restores the present state, like shardplane snapshot restore.
func (c *scriptedCache) keep() (restore func(t *testing.T)) {
	c.mu.Lock()
	objects := maps.Clone(c.objects)
	c.mu.Unlock()
	c.lock.Lock()
	defer c.lock.Unlock()
	checkpoints := maps.Clone(c.written)
	return func(t *testing.T) {
		t.Helper()
		c.become(t, objects)
		c.lock.Lock()
		defer c.lock.Unlock()
		c.written = maps.Clone(checkpoints)
	}
}

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

func (s *scriptedShard) key(name string) client.Key {
	return client.Key{Shard: s.name, Cluster: "c", Namespace: "default", Name: name}
}

func (s *scriptedShard) push(t *testing.T, c *scriptedCache, names ...string) {
	t.Helper()
	c.mu.Lock()
	replicas := maps.Clone(c.objects)
	c.mu.Unlock()
	if len(names) == 0 {
		for name := range s.objects {
			names = append(names, name)
		}
		for key := range replicas {
			if _, ok := s.objects[key.Name]; !ok && key.Shard == s.name {
				names = append(names, key.Name)
			}
		}
	}
	for _, name := range names {
		obj, ok := s.objects[name]
		key := s.key(name)
		replica := replicas[key]
		switch version := strconv.Itoa(obj.version); {
		case !ok:
			c.remove(t, key)
		case replica == nil || replica.Annotations[request.OriginalVersionAnnotation] != version || replica.UID != types.UID(obj.uid):
			if replica != nil && replica.UID != types.UID(obj.uid) {
				c.remove(t, key)
			}
			c.put(t, key, obj.content, func(cm *corev1.ConfigMap) {
				cm.UID, cm.CreationTimestamp = types.UID(obj.uid), metav1.Unix(1, 0)
				cm.Annotations[request.OriginalVersionAnnotation], cm.Annotations[request.OriginalUIDAnnotation] = version, obj.uid
			})
		}
	}
}

func (s *scriptedShard) checkpoint(c *scriptedCache) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.written[s.name] = Checkpoint{Epoch: s.epoch, Versions: map[string]string{"configmaps": strconv.Itoa(s.version)}}
}

func (s *scriptedShard) sync(t *testing.T, c *scriptedCache) {
	t.Helper()
	s.push(t, c)
	s.checkpoint(c)
}

func (s *scriptedShard) state() map[client.Key]string {
	all := map[client.Key]string{}
	for name, obj := range s.objects {
		all[s.key(name)] = fmt.Sprintf("%s@%d=%s", obj.uid, obj.version, obj.content)
	}
	return all
}

type cacheReader struct {
	*client.Informer[*corev1.ConfigMap]
	cache *Cache

	lock     sync.Mutex
	notified map[client.Key]string
	events   []string
}

func (r *cacheReader) log(kind string, obj *corev1.ConfigMap) {
	r.lock.Lock()
	defer r.lock.Unlock()
	key := r.KeyOf(obj)
	_, known := r.notified[key]
	if known != (kind != "add") {
		r.events = append(r.events, fmt.Sprintf("wrong: %s %s, known before: %t", kind, key.Name, known))
	}
	r.events = append(r.events, fmt.Sprintf("%s %s@%s", kind, key.Name, obj.ResourceVersion))
	if r.notified[key] = contentOf(obj); kind == "delete" {
		delete(r.notified, key)
	}
}

func (r *cacheReader) checkpointVersion(shard string) int {
	checkpoint, _ := r.cache.checkpoint(shard)
	version, _ := strconv.Atoi(checkpoint.Versions["configmaps"])
	return version
}

func (r *cacheReader) takeEvents() []string {
	bubble.Wait()
	r.lock.Lock()
	defer r.lock.Unlock()
	events := r.events
	r.events = nil
	return events
}

// receives requires the events of a period.
func (r *cacheReader) receives(t *testing.T, d time.Duration, want ...string) {
	t.Helper()
	pass(d)
	require.Equal(t, want, r.takeEvents())
}

func (r *cacheReader) known() map[client.Key]string {
	r.lock.Lock()
	defer r.lock.Unlock()
	return maps.Clone(r.notified)
}

func (r *cacheReader) has(t *testing.T, want map[client.Key]string) {
	t.Helper()
	bubble.Wait()
	have := map[client.Key]string{}
	for _, obj := range r.Lister().List(nil) {
		have[r.KeyOf(obj)] = contentOf(obj)
	}
	require.Equal(t, want, have)
	require.Equal(t, want, r.known())
}

func reading(t *testing.T, cache *scriptedCache, f func(t *testing.T, r *cacheReader)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := &cacheReader{notified: map[client.Key]string{}}
		r.Informer, r.cache = cache.reader(t)
		r.AddEventHandler(client.Handler[*corev1.ConfigMap]{
			OnAdd: func(obj *corev1.ConfigMap, _ bool) { r.log("add", obj) },
			OnUpdate: func(old, obj *corev1.ConfigMap) {
				switch {
				case older(obj.ResourceVersion, old.ResourceVersion) && r.checkpointVersion(r.KeyOf(obj).Shard) > 0:
					r.log("back", obj)
				case obj.ResourceVersion == old.ResourceVersion:
					r.log("again", obj)
				}
				r.log("update", obj)
			},
			OnDelete: func(last *corev1.ConfigMap, _ bool) { r.log("delete", last) },
		})
		running(t, r)
		pass(time.Second)
		require.True(t, r.HasSynced(), r.LastError())
		r.takeEvents()
		f(t, r)
	})
}

func running(t *testing.T, informer interface{ Run(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- informer.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
}

func (c *scriptedCache) reader(t *testing.T) (*client.Informer[*corev1.ConfigMap], *Cache) {
	t.Helper()
	cache := NewCache("a", c.factory(t), func(ctx context.Context, _ *client.Factory) (map[string]Checkpoint, error) { return c.checkpoints(ctx) })
	return kinds.ConfigMaps.Informer(cache.Factory().Shard("*").Wildcard(), client.InformerOptions[*corev1.ConfigMap]{}), cache
}

func world(t *testing.T) (*scriptedShard, *scriptedCache) {
	t.Helper()
	s, c := newScriptedShard("s"), newScriptedCache()
	for i := range 20 {
		s.write(fmt.Sprintf("x%02d", i), "first")
	}
	s.sync(t, c)
	return s, c
}
