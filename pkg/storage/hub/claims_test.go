package hub

import (
	"context"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/shardplane/shardplane/pkg/storage/claims"
	"github.com/shardplane/shardplane/test/bubble"
)

func newSet(members ...logicalcluster.Name) *claims.Set {
	s := claims.NewSet(nil, schema.GroupResource{}, "", 10)
	for _, m := range members {
		s.Allow(m, nil, 10)
	}
	return s
}

// watchClaims opens a watch of a set and waits until it receives events.
func (f *follower) watchClaims(set *claims.Set, key string) *Watcher {
	f.tb.Helper()
	request := claimsRequest(set, 10)
	request.Key = key
	w := f.open(request)
	f.live(w)
	return w
}

// claimsRequest returns a request for the objects of a set, with bookmarks.
func claimsRequest(set *claims.Set, version uint64) Request {
	return Request{Key: "/r/", Version: version, Claims: Claims{Set: set, Root: "/r/"}, Predicate: bookmarked}
}

var bookmarked = storage.SelectionPredicate{
	Label: labels.Everything(), Field: fields.Everything(), AllowWatchBookmarks: true,
}

func (f *follower) live(w *Watcher) {
	f.tb.Helper()
	f.eventually(func() bool { return w.joined && !w.behind })
}

func (f *follower) modify(name string, version int, l labels.Set) {
	obj := versioned(name, version)
	obj.Labels = l
	f.apply(f.eventOf(watch.Event{Type: watch.Modified, Object: obj}))
}

// TestClaimsShareEvents verifies that watchers of claim sets share one object with others, and that each selector is
// evaluated once.
func TestClaimsShareEvents(t *testing.T) {
	f := filled(t, "a/x", "b/x")
	pred, evaluations := selecting(t, "color=red")
	red, all, other := newSet(), newSet("a", "b"), newSet("b")
	red.Allow("a", pred.Label, 10)
	var same []*Watcher
	for range 3 {
		same = append(same, f.watchClaims(red, "/r/"))
	}
	same = append(same, f.watchClaims(all, "/r/"), f.watchClaims(all, "/r/a/"))
	silent := []*Watcher{f.watchClaims(other, "/r/"), f.watchClaims(all, "/r/b/"), f.watchClaims(red, "/r/b/")}
	plain := f.open(Request{Key: "/r/", Version: 10, Predicate: storage.Everything})
	f.live(plain)
	before := *evaluations

	f.modify("a/x", 11, labels.Set{"color": "red"})
	event := <-plain.ResultChan()
	for i, w := range same {
		got := <-w.ResultChan()
		require.Same(t, event.Object, got.Object)
		require.Equal(t, i < 3, got.Type == watch.Added)
	}
	require.Equal(t, 2, *evaluations-before, "evaluations before and after, for three watches")
	for _, w := range silent {
		require.Empty(t, w.ResultChan())
	}
	f.modify("a/x", 12, labels.Set{"color": "blue"})
	for _, w := range same[:3] {
		require.Equal(t, "DELETED a/x", next(t, w))
	}
	require.Equal(t, 4, *evaluations-before)
}

// TestClaimsWithinAVersion verifies the order of events with the same version before and after a change of the claims,
// for watchers that keep up and for those that do not.
func TestClaimsWithinAVersion(t *testing.T) {
	f := filled(t, "a/x", "a/y")
	set := newSet()
	w := f.watchClaims(set, "/r/")
	remove := func(name string) { f.apply(f.eventOf(watch.Event{Type: watch.Deleted, Object: versioned(name, 11)})) }
	remove("a/x")
	set.Allow("a", nil, 11)
	remove("a/y")
	require.Equal(t, "ADDED a/y", next(t, w))
	require.Equal(t, "BOOKMARK ", next(t, w))
	require.Equal(t, "DELETED a/y", next(t, w))
	require.Empty(t, w.ResultChan())
}

// TestClaimsOfSlowReaders verifies that a watcher which is behind first receives earlier events, filtered by the claims
// at that time.
func TestClaimsOfSlowReaders(t *testing.T) {
	f := filled(t, "a/x", "b/x")
	set := newSet("a")
	w := f.watchClaims(set, "/r/")
	for i := range buffered + 1 {
		f.modify("a/x", 11+i, nil)
	}
	require.True(t, f.locked(func() bool { return w.behind }))
	f.modify("b/x", 500, nil)
	f.apply(f.eventOf(watch.Event{Type: watch.Deleted, Object: versioned("a/x", 501)}))
	set.Deny("a", 501)
	set.Allow("b", nil, 501)
	f.modify("b/x", 502, nil)
	for i := range buffered + 1 {
		nextIs(t, w, 11+i, "MODIFIED a/x")
	}
	nextIs(t, w, 501, "DELETED a/x")
	nextIs(t, w, 501, "BOOKMARK ")
	nextIs(t, w, 500, "ADDED b/x")
	nextIs(t, w, 501, "BOOKMARK ")
	nextIs(t, w, 502, "MODIFIED b/x")
}

// TestClaimsWaitForTheHub verifies that a change is applied when the hub has reached its version, and that a pending
// change without watchers does not block.
func TestClaimsWaitForTheHub(t *testing.T) {
	f := filled(t, "a/x")
	set := newSet()
	w := f.watchClaims(set, "/r/")
	set.Allow("a", nil, 15)
	f.modify("a/x", 12, nil)
	require.True(t, f.locked(func() bool { return len(w.pendingUpdates) == 0 }))
	f.apply(f.eventOf(watch.Event{Type: watch.Bookmark, Object: bookmarkAt(15)}))
	nextIs(t, w, 12, "ADDED a/x")
	nextIs(t, w, 15, "BOOKMARK ")
	f.modify("a/x", 16, nil)
	nextIs(t, w, 16, "MODIFIED a/x")
	set.Deny("a", 20) // the hub is closed meanwhile
}

// TestClaimsHideLaterObjects verifies that a watch that resumes receives deletions after a revoked claim, but no objects
// that no replica can have shown.
func TestClaimsHideLaterObjects(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := filled(t, "a/seen")
		set := newSet("a")
		f.watchClaims(set, "/r/").Stop()
		f.modify("a/seen", 11, nil)
		set.Deny("a", 11)
		f.modify("a/lagged", 12, nil)
		<-time.After(20 * time.Second)
		f.modify("a/later", 13, nil)
		f.modify("a/seen", 14, nil)
		w := f.open(claimsRequest(set, 11))
		nextIs(t, w, 11, "DELETED a/lagged")
		nextIs(t, w, 11, "DELETED a/seen")
		nextIs(t, w, 14, "BOOKMARK ")
	})
}

// TestOldClaimChangesAreNotSent verifies that old changes are not sent to later watches, even without bookmarks.
func TestOldClaimChangesAreNotSent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := filled(t, "b/x", "z")
		set := newSet("a")
		f.watchClaims(set, "/r/").Stop()
		f.modify("z", 11, nil)
		set.Allow("b", nil, 11)
		<-time.After(20 * time.Second)
		from := func(version uint64) watch.Interface {
			request := claimsRequest(set, version)
			request.Predicate = storage.Everything
			return f.open(request)
		}
		require.Equal(t, "b/x", (<-from(11).ResultChan()).Object.(metav1.Object).GetName())
		f.modify("z", 12, nil)
		w := from(12)
		f.modify("b/x", 13, nil)
		nextIs(t, w, 13, "MODIFIED b/x")
	})
}

// TestClaimsResumeAfterAnyEvent verifies that a watch which resumes after changed claims reaches the current state, even
// if it is interrupted repeatedly after any event.
func TestClaimsResumeAfterAnyEvent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFollower(t)
		f.fill("z")
		f.follow(1)
		version := 1
		modify := func(l labels.Set, names ...string) {
			for _, name := range names {
				version++
				f.modify(name, version, l)
			}
		}
		set := claims.NewSet(nil, schema.GroupResource{}, "", 1)
		set.Allow("a", nil, 1)
		set.Allow("c", nil, 1)
		f.watch(1) // so that the hub keeps events
		modify(nil, "a/changed", "a/changes", "a/deleted", "a/leaves", "a/stays", "b/changed", "b/changes", "b/stays", "c/changed", "c/deleted")
		began := uint64(version)
		has := map[string]string{}
		require.Equal(t, began, f.applyEvents(set, 1, 1000, has))
		require.Len(t, has, 7)

		red := labels.Set{"color": "red"}
		pred, _ := selecting(t, "color=red")
		modify(red, "a/changed", "c/changed")
		set.Allow("a", pred.Label, 1)
		set.Allow("b", nil, 1)
		<-time.After(20 * time.Second)
		modify(nil, "c/changed")
		set.Advance(uint64(version)) // later watches do not receive the changes

		modify(red, "a/changes", "b/changed", "c/changed", "a/deleted", "a/leaves", "b/changed", "a/new", "b/new", "c/new", "a/leaves", "a/changed")
		for _, name := range []string{"a/deleted", "c/deleted"} {
			version++
			last := versioned(name, version)
			last.Labels = red
			f.apply(f.eventOf(watch.Event{Type: watch.Deleted, Object: last}))
		}
		modify(nil, "a/leaves", "c/changed")
		modify(red, "b/changes", "a/changed")
		want := map[string]string{}
		f.objects.snapshot().from("/r/", func(it item) bool {
			if obj := it.obj.(*metav1.PartialObjectMetadata); obj.Name != "z" && (obj.Name[0] != 'a' || obj.Labels["color"] == "red") {
				want[obj.Name] = obj.ResourceVersion
			}
			return true
		})
		for first := range 30 {
			for second := range 20 {
				state := maps.Clone(has)
				at := f.applyEvents(set, began, first, state)
				at = f.applyEvents(set, at, second, state)
				require.EqualValues(t, version, f.applyEvents(set, at, 1000, state))
				require.Equal(t, want, state, "cut after %d and then after %d", first, second)
			}
		}
	})
}

// applyEvents applies at most the given number of events of a watch to a state, and returns the version to resume from.
func (f *follower) applyEvents(set *claims.Set, version uint64, most int, state map[string]string) uint64 {
	f.tb.Helper()
	w := f.open(claimsRequest(set, version))
	defer w.Stop()
	for range most {
		bubble.Wait()
		select {
		case e := <-w.ResultChan():
			obj := e.Object.(metav1.Object)
			var err error
			version, err = f.cfg.Versioner.ParseResourceVersion(obj.GetResourceVersion())
			require.NoError(f.tb, err)
			switch e.Type {
			case watch.Bookmark:
			case watch.Deleted:
				delete(state, obj.GetName())
			default:
				state[obj.GetName()] = obj.GetResourceVersion()
			}
		default:
			return version
		}
	}
	return version
}

// TestClaimsAfterAPause verifies that a suspended process sends no claimed objects in open or new watches and
// lists until it has read the claims again.
func TestClaimsAfterAPause(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := filled(t, "a/x", "b/x")
		source := &claims.Source{}
		source.Heartbeat()
		set := claims.NewSet(source, schema.GroupResource{}, "", 10)
		set.Allow("a", nil, 10)
		request := claimsRequest(set, 10)
		open := func() watch.Interface {
			w := f.open(request)
			bubble.Wait()
			return w
		}
		live, quiet, behind := open(), open(), open()
		for i := range buffered + 2 {
			f.modify("a/x", 11+i, nil)
			if i < buffered+1 {
				require.NotEmpty(t, next(t, live))
				require.NotEmpty(t, next(t, quiet))
			}
		}
		bubble.Wait()
		<-time.After(time.Minute)
		f.modify("a/x", 500, nil)
		for _, w := range []watch.Interface{live, quiet, behind} {
			last := ""
			for e := range w.ResultChan() {
				last = e.Object.(metav1.Object).GetResourceVersion()
			}
			require.NotEqual(t, "500", last)
		}
		_, err := f.Watch(t.Context(), request)
		require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
		_, err = f.restrictionAt(t.Context(), request.Claims, 500)
		require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
		source.Restart(time.Now())
		_, err = f.restrictionAt(t.Context(), request.Claims, 500)
		require.NoError(t, err)
		request.Version = 140
		w := open()
		require.Equal(t, "MODIFIED a/x", next(t, w))
		w.Stop()
	})
}

// TestClaimsAreEvicted verifies that the hub releases an empty set without watchers, and that a set belongs to one hub.
func TestClaimsAreEvicted(t *testing.T) {
	f := filled(t, "a/x")
	set := newSet("a", "b")
	w := f.watchClaims(set, "/r/")
	_, err := filled(t, "a/x").Watch(t.Context(), Request{Key: "/r/", Claims: Claims{Set: set, Root: "/r/"}})
	require.ErrorContains(t, err, "another storage")
	require.Len(t, f.claimed.in, 2)
	w.Stop()
	require.Len(t, f.claimed.of, 1, "the set must be kept for later watches")
	set.Deny("a", 10)
	set.Deny("b", 10)
	require.Empty(t, f.claimed.of)
	require.Empty(t, f.claimed.in)
	set.Allow("a", nil, 10)
	f.watchClaims(set, "/r/").Stop()
	require.Len(t, f.claimed.in, 1)
}

// TestClaimsEndSlowWatchers verifies that a watcher which does not read claim updates is ended and does not block others.
func TestClaimsEndSlowWatchers(t *testing.T) {
	f := newFollower(t)
	var names []string
	for i := range 2 * buffered {
		names = append(names, fmt.Sprintf("a/%d", i))
	}
	f.fill(names...)
	f.follow(10)
	set := newSet()
	w := f.watchClaims(set, "/r/")
	for i := range maxPendingUpdates + 3 {
		if i%2 == 0 {
			set.Allow("a", nil, 10)
		} else {
			set.Deny("a", 10)
		}
	}
	require.True(t, f.locked(func() bool { return w.stopped }))
	for range w.ResultChan() {
	}
}

// TestListsHaveAcceptedClaims verifies that a list includes all claims that were accepted before its version, and that
// watches from there receive missed changes.
func TestListsHaveAcceptedClaims(t *testing.T) {
	f := filled(t, "b/x", "z")
	var source claims.Source
	var accepts func(version uint64)
	source.CatchUpBy(func(_ context.Context, version uint64) error {
		accepts(version)
		return nil
	})
	for name, watched := range map[string]bool{"watched": true, "not watched": false} {
		t.Run(name, func(t *testing.T) {
			accepts = func(uint64) {}
			set := claims.NewSet(&source, schema.GroupResource{}, "", 5)
			in := Claims{Set: set, Root: "/r/"}
			if watched {
				f.watchClaims(set, "/r/")
			}
			shown := func() (all []string) {
				restriction, err := f.restrictionAt(t.Context(), in, 10)
				require.NoError(t, err)
				objects, _ := f.latest()
				restriction.walk(objects, "/r/", "/r/", func(it item) bool {
					all = append(all, it.key)
					return true
				})
				return all
			}
			require.Empty(t, shown())
			if watched {
				f.modify("z", int(f.Version())+1, nil) // the set is changed after the version of the list
			}
			accepts = func(version uint64) {
				require.EqualValues(t, 10, version)
				set.Allow("b", nil, 9)
			}
			require.Equal(t, []string{"/r/b/x"}, shown())
			missed, err := set.Missed(10, false)
			require.NoError(t, err)
			require.Len(t, missed, 1)
			accepts = func(uint64) { set.Deny("b", 10) }
			require.Empty(t, shown(), "objects of revoked claims must not be returned")
		})
	}
}
