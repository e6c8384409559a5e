package garbagecollector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/usage"
)

type changed struct {
	follower usage.Follower
	stopped  bool
	// revisions are the revisions of reads, by key.
	revisions map[string]uint64
}

func (s *changed) Follow(f usage.Follower) func() {
	s.follower = f
	return func() { s.stopped = true }
}

func (*changed) WaitFor(context.Context, uint64) error                 { return nil }
func (*changed) Revision(context.Context) (uint64, error)              { return 7, nil }
func (*changed) Keys(context.Context, string, int64) ([]string, error) { return nil, nil }

func (*changed) Header(_ context.Context, key string, stored []byte) (h storage.Header, err error) {
	if string(stored) == "unreadable" {
		return h, errors.New("decrypting " + key)
	}
	err = json.Unmarshal(stored, &h)
	return h, err
}

func (s *changed) CachedHeader(_ context.Context, key string, revision uint64) (storage.Header, error) {
	s.revisions[key] = revision
	return storage.Header{}, nil
}

func (*changed) ReadHeader(context.Context, string) (storage.Header, error) {
	return storage.Header{}, nil
}

func startFeed(t *testing.T) (*changed, *feed) {
	t.Helper()
	s := &changed{revisions: map[string]uint64{}}
	f := newFeed(s, newGraph(), &parked{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.run(ctx)
	require.True(t, s.stopped)
	return s, f
}

func owns(uid string) []byte {
	return fmt.Appendf(nil, `{"uid":"d-%s","ownerReferences":[{"apiVersion":"v1","kind":"Secret","name":"o","uid":%q}]}`, uid, uid)
}

func dependentsOf(f *feed, uid types.UID) (items []Item) {
	for _, d := range f.graph.dependentsOf(ownerOf("c", uid)) {
		items = append(items, d.item)
	}
	return items
}

// TestFeedRestarts: during a resync the graph keeps its state, because owners would seem to have no dependents. Then it
// is replaced, and all items are examined.
func TestFeedRestarts(t *testing.T) {
	s, f := startFeed(t)
	s.follower.Begin()
	s.follower.Changed("/core/secrets/c/n/a", nil, owns("o"), 1)
	s.follower.Changed("/core/secrets/c/n/b", nil, owns("other"), 2)
	s.follower.Changed("/core/events/c/n/e", nil, owns("o"), 2)
	require.Empty(t, dependentsOf(f, "o"), "the graph must not change before the resync is complete")
	s.follower.Complete(3)
	require.Equal(t, []Item{"/core/secrets/c/n/a"}, dependentsOf(f, "o"))
	require.Len(t, f.graph.take().items, 2)

	s.follower.Begin()
	require.Equal(t, []Item{"/core/secrets/c/n/a"}, dependentsOf(f, "o"))
	s.follower.Changed("/core/secrets/c/n/a", nil, owns("o"), 1)
	s.follower.Complete(9)
	require.Equal(t, []Item{"/core/secrets/c/n/a"}, dependentsOf(f, "o"))
	require.Empty(t, dependentsOf(f, "other"))
	require.Equal(t, 1, f.graph.size())
	require.Equal(t, []Item{"/core/secrets/c/n/a"}, f.graph.take().items)

	s.follower.Changed("/core/secrets/c/n/a", owns("o"), nil, 10)
	require.Empty(t, dependentsOf(f, "o"))
}

// TestFeedReadsObservedRevision: an object is read at the revision of the latest write of its resource, or of the last resync.
func TestFeedReadsObservedRevision(t *testing.T) {
	s, f := startFeed(t)
	s.follower.Begin()
	s.follower.Complete(5)
	s.follower.Changed("/core/secrets/c/n/a", nil, []byte(`{"uid":"x"}`), 8)
	for _, item := range []Item{"/core/secrets/d/n/b", "/core/pods/c/n/a"} {
		_, err := f.get(t.Context(), item)
		require.NoError(t, err)
	}
	require.Equal(t, map[string]uint64{"/core/secrets/d/n/b": 8, "/core/pods/c/n/a": 5}, s.revisions)
}

// TestUnreadableDependents: while an object in a logical cluster cannot be decoded, no owner there is considered without
// dependents.
func TestUnreadableDependents(t *testing.T) {
	s, f := startFeed(t)
	s.follower.Begin()
	s.follower.Changed("/core/secrets/c/n/a", nil, []byte("unreadable"), 1)
	s.follower.Complete(1)
	w := &shard{feed: f}
	catchUp := func(cluster string) error {
		return w.catchUp(t.Context(), Item("/core/secrets/"+cluster+"/n/x"), object{version: "5"})
	}
	require.ErrorIs(t, catchUp("c"), errUnreadable)
	require.ErrorContains(t, catchUp("c"), "/core/secrets/c/n/a")
	require.NoError(t, catchUp("other"))
	s.follower.Changed("/core/secrets/c/n/a", []byte("unreadable"), owns("o"), 2)
	require.NoError(t, catchUp("c"))
	require.Equal(t, []Item{"/core/secrets/c/n/a"}, dependentsOf(f, "o"))

	s.follower.Changed("/core/secrets/c/n/a", owns("o"), []byte("unreadable"), 3)
	require.ErrorIs(t, catchUp("c"), errUnreadable)
	require.NotEmpty(t, dependentsOf(f, "o"), "an unreadable object must remain a dependent")
	s.follower.Changed("/core/secrets/c/n/a", []byte("unreadable"), nil, 4)
	require.NoError(t, catchUp("c"), "a deleted unreadable object must not cause an error")
}

// TestRedefined: the feed reports logical clusters in which the served APIs may have changed.
func TestRedefined(t *testing.T) {
	s, f := startFeed(t)
	s.follower.Begin()
	s.follower.Complete(1)
	for _, key := range []string{"/core/secrets/a/n/x", "/apis.kcp.io/apibindings:-system/:1f/b/x", "/apiextensions.k8s.io/customresourcedefinitions/c/x"} {
		s.follower.Changed(key, nil, []byte(`{"uid":"u"}`), 2)
	}
	<-f.served
	require.Len(t, f.takeRedefined(), 2)
	require.Empty(t, f.takeRedefined())
}
