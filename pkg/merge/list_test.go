package merge_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/merge"
)

func (w *world) listed(r *merge.Request) (object, http.Header) {
	w.t.Helper()
	out := httptest.NewRecorder()
	require.NoError(w.t, r.List(w.t.Context(), out))
	var list object
	require.NoError(w.t, json.Unmarshal(out.Body.Bytes(), &list), out.Body.String())
	return list, out.Header()
}

func (w *world) list(pairs ...string) object {
	w.t.Helper()
	list, _ := w.listed(w.request(pairs...))
	return list
}

func (w *world) refused(code int32, pairs ...string) metav1.Status {
	w.t.Helper()
	out := httptest.NewRecorder()
	err := w.request(pairs...).List(w.t.Context(), out)
	var status *apierrors.StatusError
	require.ErrorAs(w.t, err, &status)
	require.Equal(w.t, code, status.ErrStatus.Code, status.ErrStatus.Message)
	require.Empty(w.t, out.Body.String())
	return status.ErrStatus
}

// positions returns the revisions of shards in a version, or 0.
func positions(t *testing.T, version string, shards ...string) []uint64 {
	t.Helper()
	v, err := merge.ParseVersion(version)
	require.NoError(t, err, version)
	all := make([]uint64, len(shards))
	for i, name := range shards {
		all[i] = v[merge.NumberOf(name)]
	}
	return all
}

func TestWholeLists(t *testing.T) {
	a, b := newFake(t, "a", "1", "2"), newFake(t, "b", "1", "2", "3")
	w := newWorld(t, b, a)
	list := w.list()
	require.Equal(t, "ThingList", list.Kind)
	require.Equal(t, "a/1 a/2 b/1 b/2 b/3", list.names())
	require.Equal(t, []uint64{4, 5}, positions(t, list.Metadata.ResourceVersion, "a", "b"))
	require.Equal(t, []uint64{3, 5}, positions(t, list.Items[0].Metadata.ResourceVersion, "a", "b"), "an object must have its own revision")
	require.Equal(t, []uint64{4, 4}, positions(t, list.Items[3].Metadata.ResourceVersion, "a", "b"))

	a.add("3")
	require.Equal(t, "a/1 a/2 b/1 b/2 b/3", w.list("resourceVersion", list.Metadata.ResourceVersion, "resourceVersionMatch", "Exact").names())
	for _, version := range []string{"", "0", list.Metadata.ResourceVersion} {
		require.Equal(t, "a/1 a/2 a/3 b/1 b/2 b/3", w.list("resourceVersion", version).names())
	}
	w.refused(http.StatusGone, "resourceVersion", "4")
	w.refused(http.StatusBadRequest, "resourceVersion", "four")
	w.refused(http.StatusBadRequest, "resourceVersion", "m1.four")

	w.set(a)
	w.refused(http.StatusGone, "resourceVersion", list.Metadata.ResourceVersion)
	w.set(a, b, newFake(t, "c", "1"))
	require.Equal(t, "a/1 a/2 a/3 b/1 b/2 b/3 c/1", w.list("resourceVersion", list.Metadata.ResourceVersion).names())
	require.Equal(t, "a/1 a/2 b/1 b/2 b/3", w.list("resourceVersion", list.Metadata.ResourceVersion, "resourceVersionMatch", "Exact").names(), "shards that are not in the version must have no objects")
}

func TestPages(t *testing.T) {
	a, b, c := newFake(t, "a", "1", "2"), newFake(t, "b"), newFake(t, "c", "1", "2", "3")
	w := newWorld(t, a, b, c)
	page := w.list("limit", "1")
	require.Equal(t, "a/1", page.names())
	require.Nil(t, page.Metadata.RemainingItemCount)
	version := page.Metadata.ResourceVersion
	a.add("3")
	b.add("1")
	c.happens("DELETED", "3")
	var got []string
	for page.Metadata.Continue != "" {
		page = w.list("limit", "2", "continue", page.Metadata.Continue)
		require.Equal(t, version, page.Metadata.ResourceVersion)
		got = append(got, page.names())
	}
	require.Equal(t, []string{"a/2 c/1", "c/2 c/3"}, got, "all pages must have the state of the first page")
	require.Equal(t, "a/1 a/2 c/1", w.list("limit", "3", "resourceVersion", version).names(), "a limited list must have the exact version")
	require.Equal(t, "a/1 a/2 a/3", w.list("limit", "3", "resourceVersion", version, "resourceVersionMatch", "NotOlderThan").names())

	token := w.list("limit", "1").Metadata.Continue
	w.refused(http.StatusBadRequest, "continue", token, "labelSelector", "x=y")
	w.refused(http.StatusBadRequest, "continue", token, "resourceVersion", version)
	w.refused(http.StatusUnprocessableEntity, "continue", token, "resourceVersionMatch", "Exact")
	w.refused(http.StatusBadRequest, "continue", token[:len(token)-1])
	w.refused(http.StatusBadRequest, "continue", "1-1")
	require.Equal(t, "a/2 a/3 b/1 c/1 c/2", w.list("continue", token).names(), "an unlimited page must contain all remaining objects")
	w.set(a, b)
	w.refused(http.StatusGone, "continue", token)
}

// TestCompactedPages verifies that a compacted page results in status 410 with a token for the latest version.
func TestCompactedPages(t *testing.T) {
	a, b := newFake(t, "a", "1", "2", "3"), newFake(t, "b", "1", "2")
	w := newWorld(t, a, b)
	begun := w.list("limit", "1").Metadata.Continue
	border := w.list("limit", "3").Metadata.Continue
	a.add("4")
	b.add("3")
	for _, f := range []*fake{a, b} {
		f.set(func() { f.compacted = len(f.history) })
	}
	again := w.refused(http.StatusGone, "limit", "2", "continue", begun).Continue
	page := w.list("limit", "2", "continue", again)
	require.Equal(t, "a/2 a/3", page.names())
	require.Equal(t, []uint64{6, 4}, positions(t, page.Metadata.ResourceVersion, "a", "b"))
	page = w.list("limit", "2", "continue", page.Metadata.Continue)
	require.Equal(t, "a/4", page.names(), "the page must end before a shard with compacted history")
	again = w.refused(http.StatusGone, "limit", "2", "continue", page.Metadata.Continue).Continue
	page = w.list("limit", "9", "continue", again)
	require.Equal(t, "b/1 b/2 b/3", page.names())
	require.Equal(t, []uint64{6, 5}, positions(t, page.Metadata.ResourceVersion, "a", "b"))
	require.Empty(t, page.Metadata.Continue)
	require.Equal(t, "b/1 b/2 b/3", w.list("continue", w.refused(http.StatusGone, "continue", border).Continue).names())
}

func TestListsWithUnreachableShard(t *testing.T) {
	a, b := newFake(t, "a", "1"), newFake(t, "b", "1")
	w := newWorld(t, a, b)
	begun := w.list("limit", "1").Metadata.Continue
	for name, unreachable := range map[string]func(){
		"down":        func() { b.down = true },
		"unavailable": func() { b.response = apierrors.NewServiceUnavailable("starting") },
		"broken":      func() { b.response = apierrors.NewInternalError(errors.New("oops")) },
	} {
		t.Run(name, func(t *testing.T) {
			b.set(unreachable)
			defer b.set(func() { b.down, b.response = false, nil })
			for _, pairs := range [][]string{nil, {"limit", "1"}, {"continue", begun}} {
				status := w.refused(http.StatusServiceUnavailable, pairs...)
				require.EqualValues(t, 1, status.Details.RetryAfterSeconds)
				require.Len(t, status.Details.Causes, 1)
				require.Equal(t, merge.CauseShardUnavailable, status.Details.Causes[0].Type)
				require.Equal(t, "b", status.Details.Causes[0].Field)
			}
			for _, pairs := range [][]string{nil, {"limit", "10"}} {
				list, header := w.listed(w.partial(pairs...))
				require.Equal(t, "a/1", list.names())
				require.Equal(t, []uint64{3, 0}, positions(t, list.Metadata.ResourceVersion, "a", "b"), "the version must not include the unreachable shard")
				require.Equal(t, `299 - "unreachable shards are missing: b"`, header.Get("Warning"))
			}
		})
	}
	t.Run("throttled", func(t *testing.T) {
		b.set(func() { b.response = apierrors.NewTooManyRequests("wait", 7) })
		defer b.set(func() { b.response = nil })
		require.EqualValues(t, 7, w.refused(http.StatusTooManyRequests).Details.RetryAfterSeconds)
	})
	t.Run("not served", func(t *testing.T) {
		b.set(func() { b.response = notServed() })
		require.Equal(t, "a/1", w.list().names())
		require.Equal(t, "a/1", w.list("limit", "2").names())
		a.set(func() { a.response = notServed() })
		w.refused(http.StatusNotFound)
	})
	t.Run("all unreachable", func(t *testing.T) {
		a.set(func() { a.down = true })
		b.set(func() { b.down = true })
		require.ErrorContains(t, w.partial().List(t.Context(), httptest.NewRecorder()), "a, b")
	})
}

func TestUnmergeableShards(t *testing.T) {
	a := newFake(t, "a")
	r := newWorld(t, a).request()
	r.Shards = func() ([]merge.Shard, error) {
		other := a.shard()
		other.Name = "b"
		return []merge.Shard{a.shard(), other}, nil
	}
	require.ErrorContains(t, r.List(t.Context(), httptest.NewRecorder()), "the same hash")
	r.Shards = func() ([]merge.Shard, error) { return make([]merge.Shard, merge.MaxShards+1), nil }
	require.True(t, apierrors.IsBadRequest(r.List(t.Context(), httptest.NewRecorder())))
	require.True(t, apierrors.IsBadRequest(r.Watch(t.Context(), httptest.NewRecorder())))
}
