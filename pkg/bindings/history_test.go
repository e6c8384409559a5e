package bindings

import (
	"context"
	"slices"
	"testing"
	"time"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

// accepted returns a binding that accepts a claim on all secrets, for all verbs.
func accepted(cluster string) *apisv1alpha2.APIBinding {
	b := accepting(cluster, "x", applied(claimOn(secrets, "", "*"), ""))
	b.Status.BoundResources = []apisv1alpha2.BoundAPIResource{boundTo(widgets, "one", "h")}
	return b
}

// newClaiming returns a shard with an export that claims all secrets.
func newClaiming(t *testing.T) *shard {
	t.Helper()
	w := newShard(t)
	w.claiming(claimOn(secrets, "", "*"))
	return w
}

func (w *shard) reached(verb string) *claims.Set {
	w.t.Helper()
	reach, err := w.Reach(w.t.Context(), ofProvider, wildcard, secrets, verb)
	require.NoError(w.t, err)
	return reach.Set
}

// requireEvents checks that a watch from before a revision must list again, and that one from the revision gets the former and
// the new selection: the list may be from a replica that did not have the change yet.
func (w *shard) requireEvents(set *claims.Set, cluster string, revision uint64, was, is bool) {
	w.t.Helper()
	_, err := set.Missed(revision-1, false)
	require.ErrorIs(w.t, err, claims.ErrCompacted)
	missed, err := set.Missed(revision, false)
	require.NoError(w.t, err)
	missed = slices.DeleteFunc(missed, func(c claims.Change) bool { return c.Cluster.String() != cluster })
	require.NotEmpty(w.t, missed)
	require.Equal(w.t, was, missed[0].Before.Held())
	require.Equal(w.t, is, missed[len(missed)-1].After.Held())
}

// TestSetsHaveAHistory: a set that is created by the first request contains recent changes, and rejects older revisions.
func TestSetsHaveAHistory(t *testing.T) {
	t.Parallel()
	w := newClaiming(t)
	w.server.Put(t, kinds.APIBindings.GroupVersionResource, accepted("removed"))
	w.server.Put(t, kinds.APIBindings.GroupVersionResource, accepted("old"))
	w.server.Delete(t, kinds.APIBindings.GroupVersionResource, "", "removed", "", "x")
	w.run()
	began := revisionOf(w.Informer().ResourceVersion())
	_, err := w.reached("list").Missed(began-1, false)
	require.ErrorIs(t, err, claims.ErrCompacted, "an older version must be rejected, because the history lacks deletions before the start")
	missed, err := w.reached("list").Missed(began, false)
	require.NoError(t, err)
	require.Empty(t, missed)
	require.True(t, w.reached("list").Selection("old").Held())

	at := revisionOf(w.server.Put(t, kinds.APIBindings.GroupVersionResource, accepted("new")))
	w.until(at)
	w.requireEvents(w.reached("watch"), "new", at, false, true)
	w.remove("new", "x")
	w.until(at + 1)
	w.requireEvents(w.reached("get"), "new", at+1, false, false)
	w.remove("old", "x")
	w.until(at + 2)
	w.requireEvents(w.reached("create"), "old", at+2, true, false)

	b := bindingOf("consumer", "x", boundTo(widgets, "one", "h"))
	at = revisionOf(w.server.Put(t, kinds.APIBindings.GroupVersionResource, b))
	w.until(at)
	_, err = w.WithBoundSchemas(t.Context(), "consumer")
	require.NoError(t, err)
	w.requireEvents(w.bound["consumer"].Set, "system:admin", at, false, true)
}

// until waits until the index has observed a revision.
func (w *shard) until(revision uint64) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return revisionOf(w.Informer().ResourceVersion()) >= revision
	}, deadline, tick)
}

// TestSetsAreMadeBetweenChanges: no binding changes while a set is created, because the set would have the change without
// its revision. WaitFor does not return before the sets have the change.
func TestSetsAreMadeBetweenChanges(t *testing.T) {
	t.Parallel()
	w := newClaiming(t).run()
	b := accepted("a")
	waited := make(chan error, 1)
	early := false
	func() {
		w.claimed.mu.Lock()
		defer w.claimed.mu.Unlock()
		b.ResourceVersion = w.server.Put(t, kinds.APIBindings.GroupVersionResource, b)
		for {
			if _, err := w.Informer().Lister().Get(client.Key{Cluster: "a", Name: "x"}); err == nil || t.Context().Err() != nil {
				break
			}
		}
		go func() { waited <- w.WaitFor(t.Context(), b) }()
		select {
		case err := <-waited:
			early = true
			waited <- err
		case <-time.After(20 * time.Millisecond): // the informer calls the index right after it has the object
		}
		early = early || len(w.records("a")) > 0
	}()
	require.False(t, early, "the index has a binding that is missing in the sets")
	require.NoError(t, <-waited)
	require.Len(t, w.records("a"), 1)
	w.remove("a", "x")
	require.Eventually(t, func() bool { return len(w.records("a")) == 0 }, deadline, tick)
}

// TestCatchUpTo: a request that needs all claims up to a version waits until the index has the latest change before it.
func TestCatchUpTo(t *testing.T) {
	t.Parallel()
	w := newClaiming(t)
	last := uint64(0)
	w.config.LastChange = func(context.Context, uint64) (uint64, error) { return last, nil }
	w.history.source.CatchUpBy(w.catchUpTo)
	w.run()
	set := w.reached("list")
	last = revisionOf(w.server.Put(t, kinds.APIBindings.GroupVersionResource, accepted("a")))
	require.NoError(t, set.CatchUp(t.Context(), last+100))
	require.True(t, set.Selection("a").Held())
	w.remove("a", "x")
	last++
	require.NoError(t, set.CatchUp(t.Context(), last))
	require.False(t, set.Selection("a").Held())
}
