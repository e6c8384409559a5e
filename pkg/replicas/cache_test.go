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

// TestCacheAway checks that a reader keeps what it knows.
func TestCacheAway(t *testing.T) {
	for name, stuck := range map[string]bool{"away": false, "cut off": true} {
		t.Run(name, func(t *testing.T) {
			s, a := world(t)
			reading(t, a, func(t *testing.T, r *cacheReader) {
				a.set(!stuck, stuck)
				pass(time.Minute)
				r.has(t, s.state())
				a.set(false, false)
				pass(3 * time.Second)
				require.Empty(t, r.news())
				s.write("x05", "second")
				s.sync(t, a)
				pass(time.Second)
				require.Equal(t, []string{"update x05@1021"}, r.news())
			})
		})
	}
}

// TestCacheBehind holds that a cache that is behind shows nothing that is older than what was known.
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
		r.news()

		a.replace(t, restore)
		pass(10 * time.Second)
		require.Empty(t, r.news(), "it has x01 as it was, x02 still, and x20 not yet")
		r.has(t, s.state())

		// New things are told meanwhile, and nothing old.
		s.write("x30", "first")
		s.push(t, a, "x30", "x01")
		pass(5 * time.Second)
		require.Equal(t, []string{"add x30@1026"}, r.news())
		// What is deleted of old objects is no deletion of theirs.
		s.push(t, a, "x03")
		pass(5 * time.Second)
		require.Empty(t, r.news())
		r.has(t, s.state())

		s.remove("x05")
		s.sync(t, a)
		pass(5 * time.Second)
		require.Equal(t, []string{"delete x05@1006"}, r.news())
		r.has(t, s.state())
	})
}

// TestHeldObjectsGo holds that what a cache did not have is gone when the cache has caught up, and
// what it had too much is there if it stays.
func TestHeldObjectsGo(t *testing.T) {
	s, a := world(t)
	reading(t, a, func(t *testing.T, r *cacheReader) {
		restore := a.keep()
		s.write("x20", "first")
		s.write("x21", "first")
		s.sync(t, a)
		pass(time.Second)
		r.news()
		a.replace(t, restore)
		pass(10 * time.Second)
		s.remove("x20")
		s.push(t, a)
		pass(10 * time.Second)
		require.Empty(t, r.news(), "the shard has not said that all is there")
		s.mark(a)
		pass(5 * time.Second)
		require.Equal(t, []string{"delete x20@1021"}, r.news())
		r.has(t, s.state())
	})
}

func TestCacheWiped(t *testing.T) {
	s, a := world(t)
	reading(t, a, func(t *testing.T, r *cacheReader) {
		a.wipe(t)
		pass(time.Minute)
		require.Empty(t, r.news())
		r.has(t, s.state())
		s.remove("x01")
		s.write("x02", "second")
		s.push(t, a)
		pass(time.Minute)
		require.Equal(t, []string{"update x02@1022"}, r.news())
		s.mark(a)
		pass(5 * time.Second)
		require.Equal(t, []string{"delete x01@1002"}, r.news())
		r.has(t, s.state())
	})
}

// TestRemovedShard holds that nobody waits for the marks of a shard that was removed.
func TestRemovedShard(t *testing.T) {
	s, a := world(t)
	reading(t, a, func(t *testing.T, r *cacheReader) {
		a.wipe(t)
		pass(10 * time.Second)
		require.Empty(t, r.news())
		r.Pause(func() { r.cache.removed = func(shard string) bool { return shard == s.name } })
		pass(5 * time.Second)
		require.Len(t, r.news(), 20)
		r.has(t, map[client.Key]string{})
	})
}

// TestShardSetBack holds that versions of another epoch are not compared.
func TestShardSetBack(t *testing.T) {
	s, a := world(t)
	reading(t, a, func(t *testing.T, r *cacheReader) {
		restore := a.keep()
		pass(time.Millisecond)
		s.epoch, s.version = uuid.Must(uuid.NewV7()).String(), 500
		s.remove("x01")
		s.write("x02", "again")
		s.push(t, a)
		pass(time.Second)
		s.mark(a)
		r.cache.Note(s.name, a.marked[s.name]) // as the informer of marks does
		pass(5 * time.Second)
		require.ElementsMatch(t, []string{"delete x01@1002", "back x02@502", "update x02@502"}, r.news())
		r.has(t, s.state())

		// A cache that has not heard of it is behind, whatever its versions are.
		a.replace(t, restore)
		pass(10 * time.Second)
		require.Empty(t, r.news())
		r.has(t, s.state())
		s.write("x03", "again")
		s.sync(t, a)
		pass(5 * time.Second)
		require.ElementsMatch(t, []string{"back x03@503", "update x03@503"}, r.news())
		r.has(t, s.state())
	})
}

// TestWithoutMarks holds that caches without marks, and shards without a mark, are believed.
func TestWithoutMarks(t *testing.T) {
	s, a := world(t)
	a.marked = map[string]Checkpoint{}
	reading(t, a, func(t *testing.T, r *cacheReader) {
		s.remove("x01")
		a.replace(t, func(t *testing.T) {
			t.Helper()
			s.push(t, a)
			a.keep()(t) // no version from before can be resumed from
		})
		pass(10 * time.Second)
		require.Equal(t, []string{"delete x01@1002"}, r.news())
		r.has(t, s.state())
	})
}

// TestCacheModel has a cache be behind, away, wiped and restored from a backup at random while objects come,
// change and go: a reader is told nothing twice and nothing older, nothing as deleted that is there, and nothing
// that has gone anew, and in the end it has what the shards have. As long as it knows no mark of a shard, the cache is
// believed.
func TestCacheModel(t *testing.T) {
	for seed := range bubble.Seeds(200, 40) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			dice := rand.New(rand.NewPCG(seed, 1))
			shards := []*scriptedShard{newScriptedShard("s"), newScriptedShard("t")}
			c := newScriptedCache()
			reading(t, c, func(t *testing.T, r *cacheReader) {
				last, before, removed := map[client.Key]int{}, map[client.Key]string{}, map[string]int{}
				marked, read := map[string]bool{}, map[string]bool{}
				var restore func(t *testing.T)
				for range 100 {
					s := shards[dice.IntN(2)]
					name := fmt.Sprintf("x%d", dice.IntN(6))
					said := map[string]int{}
					for _, s := range shards {
						said[s.name] = r.marked(s.name)
					}
					switch dice.IntN(13) {
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
						c.set(dice.IntN(2) == 0, dice.IntN(3) == 0)
					case 9:
						if dice.IntN(4) == 0 {
							c.replace(t, c.wipe)
						} else {
							c.Break()
						}
					default:
						pass(time.Duration(dice.IntN(20_000)) * time.Millisecond)
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
							require.False(t, marked[s.name] && s.objects[key.Name].uid == uid, "%s was told as deleted, and the shard has it", content)
						}
					}
					for key, content := range known {
						uid, after, _ := strings.Cut(content, "@")
						// Who has read something of the shard knows that it has gone by a mark that was heard before.
						at, gone := removed[uid]
						require.False(t, gone && read[key.Shard] && at <= said[key.Shard] && before[key] == "", "%s is told, and had gone", content)
						text, _, _ := strings.Cut(after, "=")
						version, err := strconv.Atoi(text)
						require.NoError(t, err)
						require.False(t, marked[key.Shard] && version < last[key], "%s goes back", key)
						last[key] = version
					}
					before = known
					for key := range known {
						read[key.Shard] = true
					}
					for name, mark := range c.said() { // as the informer of marks does
						r.cache.Note(name, mark)
						marked[name] = true
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
				news := fmt.Sprint(r.news())
				for _, wrong := range []string{"back ", "again ", "wrong: "} {
					require.NotContains(t, news, wrong)
				}
			})
		})
	}
}

// TestSlowMarks: all informers that begin at once need marks. With a cache that takes long to answer they wait
// for one reading more than is going on, and not for one after the other.
func TestSlowMarks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const slow = 2 * time.Second
		reads := 0 // one goes on at a time
		cache := newCache("a", func(context.Context) (map[string]Checkpoint, error) {
			reads++
			version := strconv.Itoa(reads)
			<-time.After(slow)
			return map[string]Checkpoint{"s": {Epoch: "e", Versions: map[string]string{"x": version}}}, nil
		})
		var all sync.WaitGroup
		ask := func(want string) {
			for range 20 {
				all.Go(func() {
					marks, err := cache.currentMarks(t.Context(), time.Time{})
					assert.NoError(t, err)
					assert.Equal(t, want, marks["s"].Versions["x"])
				})
			}
		}
		began := time.Now()
		ask("1")
		pass(slow * 3 / 4)
		ask("2") // what they read is to be no older than a second
		all.Wait()
		require.Equal(t, 2*slow, time.Since(began))
		require.Equal(t, 2, reads)
	})
}
