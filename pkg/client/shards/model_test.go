package shards_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/client/shards"
)

// observer is a handler that checks its events.
type observer struct {
	t *testing.T

	mu       sync.Mutex
	notified map[client.Key]configMap
	versions map[string]int
	deleted  map[types.UID]bool
	left     map[string]bool
}

func (o *observer) handler() client.Handler[configMap] {
	return client.Handler[configMap]{
		OnAdd: func(obj configMap, _ bool) {
			o.mu.Lock()
			defer o.mu.Unlock()
			_, registry := o.notified[client.KeyOf(obj)]
			o.check(!registry, "added twice: %s", client.KeyOf(obj))
			o.is(obj)
		},
		OnUpdate: func(old, obj configMap) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.check(equality.Semantic.DeepEqual(o.notified[client.KeyOf(obj)], old), "the old object was not notified: %s", client.KeyOf(obj))
			o.check(old.UID == obj.UID, "the update replaces another object: %s", client.KeyOf(obj))
			o.check(old.ResourceVersion != obj.ResourceVersion || old.Labels["at"] != obj.Labels["at"], "the update changes nothing: %s", client.KeyOf(obj))
			o.is(obj)
		},
		OnDelete: func(last configMap, _ bool) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.check(o.deleted[last.UID], "%s was not deleted", client.KeyOf(last))
			o.isNot(last)
		},
		OnLeave: func(last configMap, why client.Leave) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.check(why == client.ShardRemoved && o.left[last.Labels["at"]], "%s left: %s", client.KeyOf(last), why)
			o.isNot(last)
		},
	}
}

func (o *observer) is(obj configMap) {
	version, err := strconv.Atoi(obj.ResourceVersion)
	o.check(err == nil, "version %q", obj.ResourceVersion)
	at := string(obj.UID) + "@" + obj.Labels["at"]
	o.check(version >= o.versions[at], "%s went back from %d to %d", at, o.versions[at], version)
	o.versions[at], o.notified[client.KeyOf(obj)] = version, obj
}

func (o *observer) isNot(obj configMap) {
	registry := o.notified[client.KeyOf(obj)]
	o.check(registry != nil && registry.UID == obj.UID, "the object was not notified: %s", client.KeyOf(obj))
	delete(o.notified, client.KeyOf(obj))
}

func (o *observer) check(ok bool, format string, args ...any) {
	if !ok {
		o.t.Errorf(format, args...)
	}
}

type kept struct {
	uid     types.UID
	content string
}

type modelled struct {
	*clienttest.Server
	name               string
	addresses          []string
	announced, failing bool
	clusters           map[logicalcluster.Name]map[string]kept
}

type model struct {
	*world
	*observer
	r      *rand.Rand
	multi  *shards.Multi[configMap]
	shards []*modelled
	next   int
}

// TestModel adds, disconnects, moves and removes shards at random while objects change and logical clusters are
// migrated. It checks the events of handlers, and the final state.
func TestModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			m := &model{
				world: newWorld(t), r: rand.New(rand.NewPCG(seed, 1)),
				observer: &observer{t: t, notified: map[client.Key]configMap{}, versions: map[string]int{}, deleted: map[types.UID]bool{}, left: map[string]bool{}},
			}
			for i := range 4 {
				s := &modelled{Server: clienttest.New(t, kinds.Scheme), name: fmt.Sprintf("shard-%d", i), clusters: map[logicalcluster.Name]map[string]kept{}}
				s.addresses = []string{s.URL, alias(t, s.Server)}
				m.shards = append(m.shards, s)
			}
			m.multi, _ = startMulti(t, m.source, options{}, func(multi *shards.Multi[configMap]) { multi.AddEventHandler(m.handler()) })
			for range 12 {
				for range 25 {
					m.step(t)
				}
				m.converge(t)
			}
		})
	}
}

func (m *model) write(t *testing.T, s *modelled, cluster logicalcluster.Name, name string, uid types.UID) {
	t.Helper()
	m.next++
	obj := object(cluster, name, fmt.Sprint(m.next), uid)
	obj.Labels = map[string]string{"at": s.name}
	put(t, s.Server, obj)
	if s.clusters[cluster] == nil {
		s.clusters[cluster] = map[string]kept{}
	}
	s.clusters[cluster][name] = kept{uid, obj.Data["content"]}
}

func (m *model) erase(t *testing.T, s *modelled, cluster logicalcluster.Name, name string) {
	t.Helper()
	remove(t, s.Server, cluster, name)
	delete(s.clusters[cluster], name)
	if len(s.clusters[cluster]) == 0 {
		delete(s.clusters, cluster)
	}
}

func (m *model) step(t *testing.T) {
	t.Helper()
	s := m.shards[m.r.IntN(len(m.shards))]
	switch n := m.r.IntN(100); {
	case n < 50:
		m.change(t, s)
	case n < 60:
		m.move(t, s)
	case n < 70:
		m.mu.Lock()
		m.left[s.name] = s.announced // its objects leave a moment later
		m.mu.Unlock()
		if s.announced {
			m.withdraw(t, s.name)
			eventually(t, func() bool { return m.multi.Of(s.name) == nil }, s.name+" is removed")
		} else {
			m.announce(t, s.name, s.addresses[0])
			eventually(t, func() bool { return m.multi.Of(s.name) != nil }, s.name+" is added")
		}
		s.announced = !s.announced
	case n < 80:
		if s.announced {
			m.announce(t, s.name, s.addresses[m.r.IntN(2)])
		}
	case n < 85:
		s.failing = !s.failing
		s.Fail(map[bool]int{true: http.StatusServiceUnavailable}[s.failing])
		s.Break()
	case n < 90:
		s.Break()
	case n < 95:
		s.Compact()
	default:
		m.root.Break()
	}
}

func (m *model) change(t *testing.T, s *modelled) {
	t.Helper()
	registry := slices.Sorted(maps.Keys(s.clusters))
	if len(registry) == 0 || m.r.IntN(10) == 0 {
		m.next++
		m.write(t, s, logicalcluster.Name(fmt.Sprintf("c%d", m.next)), "x", types.UID(fmt.Sprintf("uid-%d", m.next)))
		return
	}
	cluster := registry[m.r.IntN(len(registry))]
	name := fmt.Sprintf("x%d", m.r.IntN(4))
	object, exists := s.clusters[cluster][name]
	switch {
	case exists && m.r.IntN(3) == 0:
		m.mu.Lock()
		m.deleted[object.uid] = true
		m.mu.Unlock()
		m.erase(t, s, cluster, name)
	case exists:
		m.write(t, s, cluster, name, object.uid)
	default:
		m.next++
		m.write(t, s, cluster, name, types.UID(fmt.Sprintf("uid-%d", m.next)))
	}
}

// move migrates a logical cluster from one shard to another, or cancels the migration.
func (m *model) move(t *testing.T, from *modelled) {
	t.Helper()
	to := m.shards[m.r.IntN(len(m.shards))]
	registry := slices.Sorted(maps.Keys(from.clusters))
	if to == from || len(registry) == 0 || !to.announced || !from.announced || to.failing || from.failing {
		return
	}
	cluster := registry[m.r.IntN(len(registry))]
	m.same(t, from)
	objects := maps.Clone(from.clusters[cluster])
	for name, object := range objects {
		m.write(t, to, cluster, name, object.uid)
	}
	m.same(t, to)
	ends := from
	if m.r.IntN(4) == 0 {
		ends = to
	}
	switch m.r.IntN(3) {
	case 0:
		ends.Break()
	case 1:
		ends.Compact()
	}
	for name := range objects {
		m.erase(t, ends, cluster, name)
	}
	m.same(t, ends) // otherwise the other one might be removed before
}

func (m *model) same(t *testing.T, s *modelled) {
	t.Helper()
	want := map[client.Key]kept{}
	for cluster, objects := range s.clusters {
		for name, object := range objects {
			want[keyOf(cluster, name)] = object
		}
	}
	eventually(t, func() bool {
		informer := m.multi.Of(s.name)
		if informer == nil {
			return false
		}
		got := map[client.Key]kept{}
		for _, obj := range informer.Lister().List(nil) {
			got[client.KeyOf(obj)] = kept{obj.UID, obj.Data["content"]}
		}
		return maps.Equal(got, want)
	}, s.name)
}

func (m *model) converge(t *testing.T) {
	t.Helper()
	want := map[client.Key]string{}
	for _, s := range m.shards {
		if s.announced && s.failing {
			require.NotNil(t, m.multi.Of(s.name), "an unreachable shard was removed")
		}
		s.failing = false
		s.Fail(0)
		if !s.announced {
			continue
		}
		m.same(t, s)
		for cluster, objects := range s.clusters {
			for name, object := range objects {
				want[keyOf(cluster, name)] = s.name + " " + string(object.uid)
			}
		}
	}
	waitSynced(t, m.multi, shards.All)
	got := map[client.Key]string{}
	for _, obj := range m.multi.Lister().List(nil) {
		key := client.KeyOf(obj)
		got[key] = obj.Labels["at"] + " " + string(obj.UID)
		found, shard, err := m.multi.Lister().Find(key)
		require.NoError(t, err)
		require.Equal(t, obj, found)
		require.Equal(t, obj.Labels["at"], shard)
		require.Equal(t, shard, m.multi.Lister().ShardOf(key.Cluster))
	}
	require.Equal(t, want, got)
	require.Equal(t, len(want), m.multi.Lister().Len())
	m.mu.Lock()
	defer m.mu.Unlock()
	require.Len(t, m.notified, len(want))
	for key, obj := range m.notified {
		require.Equal(t, want[key], obj.Labels["at"]+" "+string(obj.UID))
	}
}
