package replicas

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/bubble"
)

// TestCompleteByCheckpoints: lookups return NotFound only if a checkpoint of each other shard is covered.
func TestCompleteByCheckpoints(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, cache := world(t)
		others, replicas := cache.reader(t)
		unknown := errors.New("cannot list the shards")
		d := NewDual(kinds.ConfigMaps.Informer(newScripted().factory(t).Wildcard(), client.InformerOptions[*corev1.ConfigMap]{}), others, DualOptions{
			Checkpointed: func() ([]string, error) { return []string{"s", "t"}, unknown },
		})
		running(t, d)
		look := func() error {
			_, err := d.Get("c", "default", "none")
			return err
		}
		pass(3 * time.Second)
		require.NoError(t, d.Read())
		require.ErrorIs(t, look(), client.ErrIncomplete)
		require.ErrorIs(t, look(), unknown, "the lookup must fail without the list of shards")

		unknown = nil
		require.ErrorIs(t, look(), client.ErrIncomplete)
		pass(time.Minute)
		require.ErrorContains(t, look(), "configmaps of 1 shards, t first, since 2000-01-01T00:00:0")
		require.ErrorContains(t, look(), `waiting for checkpoints that cover their objects (read from cache "a")`)
		require.NoError(t, d.Complete(s.name))
		require.ErrorIs(t, d.Complete("t"), client.ErrIncomplete)
		_, err := d.Get("c", "default", "x01")
		require.NoError(t, err)

		// A checkpoint without the resource does not count.
		other := newScriptedShard("t")
		checkpoint := func(versions map[string]string) {
			cache.lock.Lock()
			cache.written["t"] = Checkpoint{Epoch: other.epoch, Versions: versions}
			cache.lock.Unlock()
			replicas.Note("t", Checkpoint{Epoch: other.epoch, Versions: versions})
			pass(5 * time.Second)
		}
		checkpoint(map[string]string{"secrets": "5"})
		require.ErrorIs(t, look(), client.ErrIncomplete)
		other.write("y", "first")
		other.push(t, cache)
		checkpoint(map[string]string{"secrets": "5", "configmaps": "1001"})
		require.True(t, apierrors.IsNotFound(look()), look())
		require.NoError(t, d.Complete())
	})
}

// TestRestoredIsComplete: restored objects are complete while the cache does not respond, and when it has lost its
// data.
func TestRestoredIsComplete(t *testing.T) {
	s, a := world(t)
	var saved []json.RawMessage
	reading(t, a, func(t *testing.T, r *cacheReader) {
		var err error
		saved, err = NewSaved(r.Informer).Save()
		require.NoError(t, err)
	})
	b := newScriptedCache()
	b.set(true, false)
	bubble.Test(t, func(t *testing.T) {
		informer, replicas := b.reader(t)
		replicas.Note(s.name, a.written[s.name])
		require.NoError(t, NewSaved(informer).Restore(saved))
		running(t, informer)
		pass(time.Minute)
		require.Empty(t, Lacks(informer, []string{s.name}))
		require.Contains(t, Lacks(informer, []string{"t"}), "t")
		b.set(false, false)
		pass(time.Minute)
		require.Empty(t, Lacks(informer, []string{s.name}))
		require.Equal(t, 20, informer.Lister().Len())
		s.remove("x01")
		s.sync(t, b)
		pass(10 * time.Second)
		require.Equal(t, 19, informer.Lister().Len())
	})
}
