package replicas

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/bubble"
)

// federation is a running Dual with both servers, and records the events of handlers.
type federation struct {
	*Dual[*corev1.ConfigMap]
	own, cache *scripted
	notified   map[client.Key]string

	mu         sync.Mutex
	stateOf    map[string]ShardState
	hasContent map[logicalcluster.Name]bool
}

func contents(obj *corev1.ConfigMap) []string { return []string{obj.Data["content"]} }

func federate(t *testing.T, own, cache *scripted, f func(t *testing.T, d *federation)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		d := &federation{own: own, cache: cache, notified: map[client.Key]string{}, stateOf: map[string]ShardState{}, hasContent: map[logicalcluster.Name]bool{}}
		options := client.InformerOptions[*corev1.ConfigMap]{Indexers: map[string]client.IndexFunc[*corev1.ConfigMap]{"content": contents}}
		mine := kinds.ConfigMaps.Informer(own.factory(t).Wildcard(), options)
		others := kinds.ConfigMaps.Informer(cache.factory(t).Shard("*").Wildcard(), OfOthers("self", options))
		d.Dual = NewDual(mine, others, DualOptions{Owns: d.owns, ShardState: d.shardState})
		d.AddEventHandler(recordingTo(t, d.notified))
		running(t, d)
		f(t, d)
	})
}

func (d *federation) owns(cluster logicalcluster.Name) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hasContent[cluster]
}

func (d *federation) shardState(shard string) ShardState {
	d.mu.Lock()
	defer d.mu.Unlock()
	if stateOf, known := d.stateOf[shard]; known {
		return stateOf
	}
	return Active
}

func (d *federation) expected(stateOf func(string) ShardState, hasContent map[logicalcluster.Name]bool) map[client.Key]*corev1.ConfigMap {
	seen := map[client.Key]*corev1.ConfigMap{}
	for _, obj := range d.own.objects {
		seen[client.KeyOf(obj)] = obj
	}
	copies := map[client.Key][]*corev1.ConfigMap{}
	for key, obj := range d.cache.objects {
		if mine := seen[client.KeyOf(obj)]; mine == nil && key.Shard != "self" && stateOf(key.Shard) != Removed && !hasContent[key.Cluster] {
			copies[client.KeyOf(obj)] = append(copies[client.KeyOf(obj)], obj)
		}
	}
	for key, of := range copies {
		slices.SortFunc(of, func(a, b *corev1.ConfigMap) int {
			if x, y := stateOf(a.Annotations[request.ShardAnnotation]), stateOf(b.Annotations[request.ShardAnnotation]); x != y {
				return cmp.Compare(y, x)
			}
			if x, y := a.DeletionTimestamp != nil, b.DeletionTimestamp != nil; x != y {
				return map[bool]int{true: 1, false: -1}[x]
			}
			if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
				return b.CreationTimestamp.Compare(a.CreationTimestamp.Time)
			}
			return cmp.Compare(a.Annotations[request.ShardAnnotation], b.Annotations[request.ShardAnnotation])
		})
		seen[key] = of[0]
	}
	return seen
}

func all(*corev1.ConfigMap) bool { return true }

func keysAndContents(objects []*corev1.ConfigMap, selects func(*corev1.ConfigMap) bool) (found []string) {
	for _, obj := range objects {
		if selects(obj) {
			found = append(found, client.KeyOf(obj).String()+contentOf(obj))
		}
	}
	return found
}

func (d *federation) agrees(t *testing.T) {
	t.Helper()
	bubble.Wait()
	require.NoError(t, d.Complete())
	notified := map[client.Key]string{}
	for key, obj := range d.expected(allActive, nil) {
		notified[key] = contentOf(obj)
	}
	require.Equal(t, notified, d.notified)
	late := map[client.Key]string{}
	d.AddEventHandler(recordingTo(t, late)).Remove()
	require.Equal(t, notified, late)

	want := d.expected(d.shardState, d.hasContent)
	for i := range 30 {
		key := scriptedKey(i)
		obj, err := d.Get(key.Cluster, key.Namespace, key.Name)
		if want[key] == nil {
			require.True(t, apierrors.IsNotFound(err), "%s: %v", key, err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, contentOf(want[key]), contentOf(obj), key)
	}
	objects := slices.Collect(maps.Values(want))
	for i := range 3 {
		cluster := scriptedKey(i).Cluster
		in := func(obj *corev1.ConfigMap) bool { return logicalcluster.From(obj) == cluster }
		require.ElementsMatch(t, keysAndContents(objects, in), keysAndContents(d.In(cluster), all))
	}
	for i := range 5 {
		found, err := d.ByIndex("content", fmt.Sprint(i))
		require.NoError(t, err)
		has := func(obj *corev1.ConfigMap) bool { return obj.Data["content"] == fmt.Sprint(i) }
		require.ElementsMatch(t, keysAndContents(objects, has), keysAndContents(found, all))
		require.True(t, slices.IsSortedFunc(found, func(a, b *corev1.ConfigMap) int {
			return compareBools(a.Annotations[request.ShardAnnotation] == "", b.Annotations[request.ShardAnnotation] == "")
		}), "own objects must come first")
	}
}

// TestDualModel makes both servers fail at random while shards and logical clusters are added and removed. Then
// lookups and events must correspond to the rules.
func TestDualModel(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := &random{rand: rand.New(rand.NewPCG(seed, 2))}
			own, cache := newScripted(), newScripted()
			write := func() {
				server, key := own, scriptedKey(r.IntN(30))
				if r.IntN(4) > 0 {
					server, key.Shard = cache, []string{"blue", "green", "self"}[r.IntN(3)]
				}
				if r.IntN(3) == 0 {
					server.remove(t, key)
					return
				}
				server.put(t, key, fmt.Sprint(r.IntN(5)), func(obj *corev1.ConfigMap) {
					if key.Shard != "" && r.IntN(4) == 0 {
						obj.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
					}
				})
			}
			for range 60 {
				write()
			}
			own.next, cache.next = randomly(r, 4), randomly(r, 4)
			federate(t, own, cache, func(t *testing.T, d *federation) {
				for range 150 {
					switch r.IntN(10) {
					case 0:
						own.Break()
					case 1:
						cache.Compact()
					case 2:
						pass(time.Duration(r.IntN(2000)) * time.Millisecond)
					case 3:
						d.mu.Lock()
						d.stateOf[[]string{"blue", "green"}[r.IntN(2)]] = ShardState(r.IntN(3))
						d.hasContent[scriptedKey(r.IntN(3)).Cluster] = r.IntN(2) == 0
						d.mu.Unlock()
					case 4:
						key := scriptedKey(r.IntN(30))
						if obj, err := d.Get(key.Cluster, key.Namespace, key.Name); err == nil {
							require.Equal(t, key, client.KeyOf(obj))
						}
					default:
						write()
					}
				}
				for _, server := range []*scripted{own, cache} {
					server.respond(good)
				}
				pass(time.Minute) // longer than any timeout
				write()
				d.agrees(t)
			})
		})
	}
}

// TestDualEvents checks the events of handlers when another copy becomes the preferred one.
func TestDualEvents(t *testing.T) {
	own, cache := newScripted(), newScripted()
	federate(t, own, cache, func(t *testing.T, d *federation) {
		var events []string
		d.AddEventHandler(client.Handler[*corev1.ConfigMap]{
			OnAdd: func(obj *corev1.ConfigMap, _ bool) { events = append(events, "add "+obj.Data["content"]) },
			OnUpdate: func(old, obj *corev1.ConfigMap) {
				events = append(events, old.Data["content"]+" -> "+obj.Data["content"])
			},
			OnDelete: func(last *corev1.ConfigMap, tombstone bool) {
				events = append(events, fmt.Sprint("delete ", last.Data["content"], " ", tombstone))
			},
		})
		notified := func(want ...string) {
			t.Helper()
			bubble.Wait()
			require.Equal(t, want, events)
			events = nil
		}
		pass(time.Second)
		key := scriptedKey(0)
		at := func(shard string) client.Key { return replicaKey(shard, 0) }
		original := func(uid string) func(*corev1.ConfigMap) {
			return func(obj *corev1.ConfigMap) {
				obj.UID, obj.Annotations[request.OriginalUIDAnnotation] = types.UID(uid), uid
			}
		}
		cache.put(t, at("self"), "the own replica")
		cache.put(t, at("blue"), "blue 0", original("uid-1"))
		notified("add blue 0")
		cache.put(t, at("blue"), "blue", original("uid-1"))
		notified("blue 0 -> blue")
		own.put(t, key, "own")
		notified("blue -> own") // with uid-1, the first of the server: it has moved here
		cache.put(t, at("blue"), "blue 2", original("uid-1"))
		cache.put(t, at("green"), "green", original("other"))
		notified()
		own.remove(t, key)
		notified("delete own true", "add green") // the younger copy, of another object
		cache.remove(t, at("green"))
		notified("delete green true", "add blue 2")
		cache.remove(t, at("blue"))
		notified("delete blue 2 false")
		cache.remove(t, at("self"))
		notified()
	})
}

// TestDualUnseenDeletion: a replica that was never stored, because it was not selected at its last event, is deleted.
// Handlers are notified of it, but its shard still has another replica, which lookups must find.
func TestDualUnseenDeletion(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		own, cache := newScripted(), newScripted()
		stored, unseen := replicaKey("blue", 0), replicaKey("blue", 1)
		cache.put(t, stored, "stored")
		cache.put(t, unseen, "unseen")
		var keepAll atomic.Bool
		keep := func(obj *corev1.ConfigMap) bool { return keepAll.Load() || obj.Name == stored.Name }
		mine := kinds.ConfigMaps.Informer(own.factory(t).Wildcard(), client.InformerOptions[*corev1.ConfigMap]{})
		others := kinds.ConfigMaps.Informer(cache.factory(t).Shard("*").Wildcard(), OfOthers("self", client.InformerOptions[*corev1.ConfigMap]{Keep: keep}))
		d := NewDual(mine, others, DualOptions{})
		var deleted []string
		d.AddEventHandler(client.Handler[*corev1.ConfigMap]{
			OnDelete: func(last *corev1.ConfigMap, _ bool) { deleted = append(deleted, last.Name) },
		})
		running(t, d)
		pass(time.Second)
		require.Equal(t, 1, others.Lister().Len())
		keepAll.Store(true)
		cache.remove(t, unseen)
		bubble.Wait()
		require.Equal(t, []string{unseen.Name}, deleted)
		found, err := d.Get(stored.Cluster, stored.Namespace, stored.Name)
		require.NoError(t, err)
		require.Equal(t, "stored", found.Data["content"])
	})
}

// TestDualShowsDeletion: a replica shows the deletion of its object, and a replica that is not being deleted is
// preferred.
func TestDualShowsDeletion(t *testing.T) {
	own, cache := newScripted(), newScripted()
	key := scriptedKey(0)
	deleted := func(since string) func(*corev1.ConfigMap) {
		return func(obj *corev1.ConfigMap) { obj.Annotations[request.DeletingAnnotation] = since }
	}
	federate(t, own, cache, func(t *testing.T, d *federation) {
		shown := func(content string, at *metav1.Time) {
			t.Helper()
			pass(time.Second)
			obj, err := d.Get(key.Cluster, key.Namespace, key.Name)
			require.NoError(t, err)
			require.Equal(t, content, obj.Data["content"])
			require.True(t, at.Equal(obj.DeletionTimestamp), "%v", obj.DeletionTimestamp)
		}
		blue, green := replicaKey("blue", 0), replicaKey("green", 0)
		cache.put(t, green, "green")
		cache.put(t, blue, "blue", deleted("2026-01-02T03:04:05Z"))
		shown("green", nil)
		cache.remove(t, green)
		shown("blue", &metav1.Time{Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)})
		cache.put(t, blue, "blue", deleted("some time"))
		pass(time.Second)
		replica, ok := d.Others().Lister().Lookup(blue)
		require.True(t, ok)
		shown("blue", &replica.CreationTimestamp)
	})
}

// TestDualWithoutOthers checks the results while the cache server is unreachable when a shard starts, and later.
func TestDualWithoutOthers(t *testing.T) {
	own, cache := newScripted(), newScripted()
	mine, theirs := scriptedKey(0), scriptedKey(1)
	own.put(t, mine, "own")
	cache.put(t, replicaKey("blue", 1), "blue")
	cache.next = unavailable
	federate(t, own, cache, func(t *testing.T, d *federation) {
		d.hasContent["held"] = true
		require.ErrorIs(t, d.Complete(), client.ErrIncomplete)
		pass(time.Minute)
		require.NoError(t, d.WaitForSync(t.Context()), "the own shard must be sufficient")
		require.ErrorContains(t, d.Complete(), "injected failure")
		_, err := d.Get(mine.Cluster, mine.Namespace, mine.Name)
		require.NoError(t, err)
		_, err = d.Get(theirs.Cluster, theirs.Namespace, theirs.Name)
		require.ErrorIs(t, err, client.ErrIncomplete)
		_, err = d.Get("held", "", "x")
		require.True(t, apierrors.IsNotFound(err), "objects of own logical clusters must not be found: %v", err)

		cache.respond(good)
		pass(time.Minute)
		d.agrees(t)

		// Objects are retained if they were loaded before.
		cache.respond(unavailable)
		cache.Break()
		pass(time.Minute)
		require.NoError(t, d.Complete())
		_, err = d.Get(theirs.Cluster, theirs.Namespace, theirs.Name)
		require.NoError(t, err)
		cache.respond(good)
	})
}

// TestDualAlone: a Dual without others returns its own objects.
func TestDualAlone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		own := newScripted()
		own.put(t, scriptedKey(0), "own")
		d := NewDual(kinds.ConfigMaps.Informer(own.factory(t).Wildcard(), client.InformerOptions[*corev1.ConfigMap]{}), nil, DualOptions{})
		notified := map[client.Key]string{}
		d.AddEventHandler(recordingTo(t, notified))
		require.ErrorIs(t, d.Complete(), client.ErrIncomplete)
		running(t, d)
		require.NoError(t, d.WaitForSync(t.Context()))
		require.NoError(t, d.Complete())
		require.Len(t, notified, 1)
		_, err := d.Get("c1", "default", "x")
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		_, err = d.ByIndex("none", "x")
		require.ErrorContains(t, err, "Indexers")
	})
}
