package replicas

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/test/bubble"
)

// TestCacheUnreachable checks that a reader retains its objects.
func TestCacheUnreachable(t *testing.T) {
	for name, stuck := range map[string]bool{"connection refused": false, "no response": true} {
		t.Run(name, func(t *testing.T) {
			s, a := world(t)
			reading(t, a, func(t *testing.T, r *cacheReader) {
				a.set(!stuck, stuck)
				pass(time.Minute)
				r.has(t, s.state())
				a.set(false, false)
				r.receives(t, 3*time.Second)
				s.write("x05", "second")
				s.sync(t, a)
				r.receives(t, time.Second, "update x05@1021")
			})
		})
	}
}

// TestCacheBehind: nothing older than the known state is delivered from a cache that lags behind.
func TestCacheBehind(t *testing.T) {
	s, a := world(t)
	reading(t, a, func(t *testing.T, r *cacheReader) {
		restore := a.keep()
		s.write("x01", "second")
		s.remove("x02")
		s.write("x20", "first")
		s.remove("x03")
		s.write("x03", "another")
		s.sync(t, a)
		pass(time.Second)
		r.has(t, s.state())
		r.takeEvents()

		a.replace(t, restore)
		r.receives(t, 10*time.Second) // it has x01 as it was, x02 still, and x20 not yet
		r.has(t, s.state())

		// New objects are delivered in the meantime, old ones are not.
		s.write("x30", "first")
		s.push(t, a, "x30", "x01")
		r.receives(t, 5*time.Second, "add x30@1026")
		// The deletion of an old version in the cache is not a deletion of the object.
		s.push(t, a, "x03")
		r.receives(t, 5*time.Second)
		r.has(t, s.state())

		s.remove("x05")
		s.sync(t, a)
		r.receives(t, 5*time.Second, "delete x05@1006")
		r.has(t, s.state())
	})
}

// TestRetainedObjects: when the cache has caught up, objects that it does not have are deleted, and additional ones are
// added.
func TestRetainedObjects(t *testing.T) {
	s, a := world(t)
	reading(t, a, func(t *testing.T, r *cacheReader) {
		restore := a.keep()
		s.write("x20", "first")
		s.write("x21", "first")
		s.sync(t, a)
		pass(time.Second)
		r.takeEvents()
		a.replace(t, restore)
		pass(10 * time.Second)
		s.remove("x20")
		s.push(t, a)
		r.receives(t, 10*time.Second) // there is no new checkpoint of the shard yet
		s.checkpoint(a)
		r.receives(t, 5*time.Second, "delete x20@1021")
		r.has(t, s.state())
	})
}

func TestCacheWiped(t *testing.T) {
	s, a := world(t)
	reading(t, a, func(t *testing.T, r *cacheReader) {
		a.wipe(t)
		r.receives(t, time.Minute)
		r.has(t, s.state())
		s.remove("x01")
		s.write("x02", "second")
		s.push(t, a)
		r.receives(t, time.Minute, "update x02@1022")
		s.checkpoint(a)
		r.receives(t, 5*time.Second, "delete x01@1002")
		r.has(t, s.state())
	})
}

// TestRemovedShard: checkpoints of removed shards are not awaited.
func TestRemovedShard(t *testing.T) {
	s, a := world(t)
	reading(t, a, func(t *testing.T, r *cacheReader) {
		a.wipe(t)
		r.receives(t, 10*time.Second)
		r.Pause(func() { r.cache.removed = func(shard string) bool { return shard == s.name } })
		pass(5 * time.Second)
		require.Len(t, r.takeEvents(), 20)
		r.has(t, map[client.Key]string{})
	})
}

// TestShardRollback: versions of different epochs are not compared.
func TestShardRollback(t *testing.T) {
	s, a := world(t)
	reading(t, a, func(t *testing.T, r *cacheReader) {
		restore := a.keep()
		pass(time.Millisecond)
		s.epoch, s.version = uuid.Must(uuid.NewV7()).String(), 500
		s.remove("x01")
		s.write("x02", "again")
		s.push(t, a)
		pass(time.Second)
		s.checkpoint(a)
		r.cache.Note(s.name, a.written[s.name]) // as the informer of checkpoints does
		pass(5 * time.Second)
		require.ElementsMatch(t, []string{"delete x01@1002", "back x02@502", "update x02@502"}, r.takeEvents())
		r.has(t, s.state())

		// A cache without the new epoch lags behind, whatever its versions are.
		a.replace(t, restore)
		r.receives(t, 10*time.Second)
		r.has(t, s.state())
		s.write("x03", "again")
		s.sync(t, a)
		pass(5 * time.Second)
		require.ElementsMatch(t, []string{"back x03@503", "update x03@503"}, r.takeEvents())
		r.has(t, s.state())
	})
}

// TestWithoutCheckpoints: caches without checkpoints, and shards without one, are trusted.
func TestWithoutCheckpoints(t *testing.T) {
	s, a := world(t)
	a.written = map[string]Checkpoint{}
	reading(t, a, func(t *testing.T, r *cacheReader) {
		s.remove("x01")
		a.replace(t, func(t *testing.T) {
			t.Helper()
			s.push(t, a)
			a.keep()(t) // the informer cannot resume from an older version
		})
		r.receives(t, 10*time.Second, "delete x01@1002")
		r.has(t, s.state())
	})
}

// TestCacheModel: a cache lags behind, is unreachable, wiped and restored from a backup at random while objects are
// added, changed and deleted. The reader delivers no event twice and none that is outdated, no deletion of an existing
// object, and in the end the current state.
func TestCacheModel(t *testing.T) {
	for seed := range bubble.Seeds(200, 40) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			shards := []*scriptedShard{newScriptedShard("s"), newScriptedShard("t")}
			c := newScriptedCache()
			reading(t, c, func(t *testing.T, r *cacheReader) {
				last, before, removed := map[client.Key]int{}, map[client.Key]string{}, map[string]int{}
				hasCheckpoint, read := map[string]bool{}, map[string]bool{}
				var restore func(t *testing.T)
				for range 100 {
					s := shards[random.IntN(2)]
					name := fmt.Sprintf("x%d", random.IntN(6))
					versions := map[string]int{}
					for _, s := range shards {
						versions[s.name] = r.checkpointVersion(s.name)
					}
					switch random.IntN(13) {
					case 12:
						if restore != nil {
							c.replace(t, restore)
							restore = nil
						} else {
							restore = c.keep()
						}
					case 0, 1, 2:
						s.write(name, strconv.Itoa(s.version))
					case 3:
						uid := s.objects[name].uid
						s.remove(name)
						removed[uid] = s.version
					case 4, 5:
						s.push(t, c, name)
					case 6, 7:
						s.sync(t, c)
					case 8:
						c.set(random.IntN(2) == 0, random.IntN(3) == 0)
					case 9:
						if random.IntN(4) == 0 {
							c.replace(t, c.wipe)
						} else {
							c.Break()
						}
					default:
						pass(time.Duration(random.IntN(20_000)) * time.Millisecond)
					}
					bubble.Wait()
					known := r.known()
					for key, content := range before {
						uid, _, _ := strings.Cut(content, "@")
						if strings.HasPrefix(known[key], uid+"@") {
							continue
						}
						delete(last, key)
						for _, s := range shards {
							require.False(t, hasCheckpoint[s.name] && s.objects[key.Name].uid == uid, "%s was notified as deleted, but the shard has it", content)
						}
					}
					for key, content := range known {
						uid, after, _ := strings.Cut(content, "@")
						// A deletion is known if a later checkpoint was received.
						at, deleted := removed[uid]
						require.False(t, deleted && read[key.Shard] && at <= versions[key.Shard] && before[key] == "", "%s was notified, but had been deleted", content)
						text, _, _ := strings.Cut(after, "=")
						version, err := strconv.Atoi(text)
						require.NoError(t, err)
						require.False(t, hasCheckpoint[key.Shard] && version < last[key], "%s was replaced by an older version", key)
						last[key] = version
					}
					before = known
					for key := range known {
						read[key.Shard] = true
					}
					for name, checkpoint := range c.observedCheckpoints() { // as the informer of checkpoints does
						r.cache.Note(name, checkpoint)
						hasCheckpoint[name] = true
					}
				}
				c.set(false, false)
				for _, s := range shards {
					s.sync(t, c)
				}
				pass(2 * time.Minute)
				want := shards[0].state()
				maps.Copy(want, shards[1].state())
				r.has(t, want)
				events := fmt.Sprint(r.takeEvents())
				for _, wrong := range []string{"back ", "again ", "wrong: "} {
					require.NotContains(t, events, wrong)
				}
			})
		})
	}
}

// TestSlowCheckpoints: informers that start together need checkpoints. With a slow cache they share one read besides the one
// in progress.
func TestSlowCheckpoints(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const slow = 2 * time.Second
		reads := 0 // one at a time
		cache := NewCache("a", nil, func(context.Context, *client.Factory) (map[string]Checkpoint, error) {
			reads++
			version := strconv.Itoa(reads)
			<-time.After(slow)
			return map[string]Checkpoint{"s": {Epoch: "e", Versions: map[string]string{"x": version}}}, nil
		})
		var all sync.WaitGroup
		read := func(want string) {
			for range 20 {
				all.Go(func() {
					checkpoints, err := cache.currentCheckpoints(t.Context(), time.Time{})
					assert.NoError(t, err)
					assert.Equal(t, want, checkpoints["s"].Versions["x"])
				})
			}
		}
		began := time.Now()
		read("1")
		pass(slow * 3 / 4)
		read("2") // the result must be at most a second old
		all.Wait()
		require.Equal(t, 2*slow, time.Since(began))
		require.Equal(t, 2, reads)
	})
}
