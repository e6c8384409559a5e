package replicas

import (
	"context"
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

// TestCompleteByMarks holds that what is not found is known to be missing when a mark of each other shard is
// covered, and not before.
func TestCompleteByMarks(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, cache := world(t)
		others, replicas := cache.reader(t)
		unknown := errors.New("nobody knows")
		d := NewDual(kinds.ConfigMaps.Informer(newScripted().factory(t).Wildcard(), client.InformerOptions[*corev1.ConfigMap]{}), others, DualOptions{
			Checkpointed: func() ([]string, error) { return []string{"s", "t"}, unknown },
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.Run(ctx) }()
		defer func() {
			cancel()
			require.NoError(t, <-ended)
		}()
		look := func() error {
			_, err := d.Get("c", "default", "none")
			return err
		}
		pass(3 * time.Second)
		require.NoError(t, d.Read())
		require.ErrorIs(t, look(), client.ErrIncomplete)
		require.ErrorIs(t, look(), unknown, "which shards there are")

		unknown = nil
		require.ErrorIs(t, look(), client.ErrIncomplete)
		pass(time.Minute)
		require.ErrorContains(t, look(), "configmaps of 1 shards, t first, since 2000-01-01T00:00:0")
		require.ErrorContains(t, look(), `nothing says yet that all of theirs is here (read from cache "a")`)
		require.NoError(t, d.Complete(s.name))
		require.ErrorIs(t, d.Complete("t"), client.ErrIncomplete)
		_, err := d.Get("c", "default", "x01")
		require.NoError(t, err)

		// A mark that says nothing of the resource is none for it.
		other := newScriptedShard("t")
		mark := func(versions map[string]string) {
			cache.lock.Lock()
			cache.marked["t"] = Checkpoint{Epoch: other.epoch, Versions: versions}
			cache.lock.Unlock()
			replicas.Note("t", Checkpoint{Epoch: other.epoch, Versions: versions})
			pass(5 * time.Second)
		}
		mark(map[string]string{"secrets": "5"})
		require.ErrorIs(t, look(), client.ErrIncomplete)
		other.write("y", "first")
		other.push(t, cache)
		mark(map[string]string{"secrets": "5", "configmaps": "1001"})
		require.True(t, apierrors.IsNotFound(look()), look())
		require.NoError(t, d.Complete())
	})
}

// TestRestoredIsComplete holds that what was saved is as complete as it was, while the cache does not answer and when
// it comes back without its data.
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
		replicas.Note(s.name, a.marked[s.name])
		require.NoError(t, NewSaved(informer).Restore(saved))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- informer.Run(ctx) }()
		defer func() {
			cancel()
			require.NoError(t, <-ended)
		}()
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
