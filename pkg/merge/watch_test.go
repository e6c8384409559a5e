package merge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/merge"
)

const timeout = 30 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// initial are the parameters of a watch with initial events and bookmarks.
var initial = []string{
	"sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan", "allowWatchBookmarks", "true",
}

type event struct {
	Type   string
	Object object
}

func (e event) String() string { return e.Type + " " + e.Object.Metadata.Name }

// stream is a merged watch over HTTP.
type stream struct {
	t       *testing.T
	header  http.Header
	decoder *json.Decoder
	stop    func()
}

func (w *world) watch(pairs ...string) *stream {
	w.t.Helper()
	return w.watched(w.request(pairs...))
}

func (w *world) watched(r *merge.Request) *stream {
	w.t.Helper()
	r.Query.Set("watch", "true")
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, req *http.Request) {
		switch err := r.Watch(req.Context(), out).(type) { //nolint:errorlint // it must be unwrapped
		case nil:
		case *apierrors.StatusError:
			status(out, err)
		default:
			status(out, apierrors.NewInternalError(err))
		}
	}))
	ctx, cancel := context.WithTimeout(w.t.Context(), timeout)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, http.NoBody)
	require.NoError(w.t, err)
	res, err := server.Client().Do(req)
	require.NoError(w.t, err)
	s := &stream{t: w.t, header: res.Header, decoder: json.NewDecoder(res.Body), stop: func() {
		cancel()
		_ = res.Body.Close()
		server.Close()
	}}
	w.t.Cleanup(s.stop)
	if res.StatusCode != http.StatusOK {
		var response object
		require.NoError(w.t, s.decoder.Decode(&response))
		require.EqualValues(w.t, res.StatusCode, response.Code)
		s.header = http.Header{"Code": {http.StatusText(res.StatusCode)}}
	}
	return s
}

func (s *stream) next() event {
	s.t.Helper()
	var e event
	require.NoError(s.t, s.decoder.Decode(&e))
	return e
}

func (s *stream) expect(want ...string) (last event) {
	s.t.Helper()
	var got []string
	for range want {
		last = s.next()
		got = append(got, last.String())
	}
	require.ElementsMatch(s.t, want, got)
	return last
}

func (s *stream) fails(code int32) {
	s.t.Helper()
	e := s.next()
	require.Equal(s.t, "ERROR", e.Type)
	require.Equal(s.t, code, e.Object.Code)
	require.Equal(s.t, "Status", e.Object.Kind)
	require.Error(s.t, s.decoder.Decode(&e), "the error must be the last event")
}

func TestWatchesResumeFromAnyEvent(t *testing.T) {
	a, b := newFake(t, "a", "1"), newFake(t, "b", "1")
	w := newWorld(t, a, b)
	s := w.watch("resourceVersion", w.list().Metadata.ResourceVersion, "allowWatchBookmarks", "true")
	var received []event
	for _, f := range []*fake{a, b, b, a, b} {
		name := string(rune('2' + len(received)))
		f.add(name)
		received = append(received, s.expect("ADDED "+f.name+"/"+name))
	}
	a.happens("DELETED", "1")
	received = append(received, s.expect("DELETED a/1"))
	b.happens("BOOKMARK", "")
	received = append(received, s.expect("BOOKMARK "))
	last := []uint64{3, 3}
	for i, e := range received {
		at := positions(t, e.Object.Metadata.ResourceVersion, "a", "b")
		require.True(t, at[0] >= last[0] && at[1] >= last[1] && at[0]+at[1] == last[0]+last[1]+1, "exactly one position must advance by one: %v after %v", at, last)
		last = at
		resumed := w.watch("resourceVersion", e.Object.Metadata.ResourceVersion)
		var rest []string
		for _, later := range received[i+1:] {
			if later.Type != "BOOKMARK" {
				rest = append(rest, later.String())
			}
		}
		resumed.expect(rest...)
		resumed.stop()
	}
	require.Equal(t, []uint64{6, 7}, last)
}

// TestShardWatchesResume verifies that a shard's watch resumes.
func TestShardWatchesResume(t *testing.T) {
	t.Parallel()
	a, b := newFake(t, "a", "1"), newFake(t, "b", "1")
	w := newWorld(t, a, b)
	s := w.watch("resourceVersion", w.list().Metadata.ResourceVersion)
	b.add("2")
	s.expect("ADDED b/2")
	b.set(func() { b.down = true })
	b.add("3")
	a.add("2")
	s.expect("ADDED a/2")
	b.set(func() { b.down = false })
	s.expect("ADDED b/3")
	b.set(func() { b.response = apierrors.NewTooManyRequests("", 1) })
	b.add("4")
	b.set(func() { b.response = nil })
	s.expect("ADDED b/4")
	b.set(func() { b.compacted = len(b.history) + 1 })
	s.fails(http.StatusGone)
}

func TestInitialEvents(t *testing.T) {
	a, b := newFake(t, "a", "1", "2"), newFake(t, "b", "1")
	w := newWorld(t, a, b)
	s := w.watch(initial...)
	s.expect("ADDED a/1", "ADDED a/2", "ADDED b/1")
	end := s.next()
	require.Equal(t, "BOOKMARK", end.Type)
	require.Equal(t, "true", end.Object.Metadata.Annotations["k8s.io/initial-events-end"])
	require.Equal(t, []uint64{4, 3}, positions(t, end.Object.Metadata.ResourceVersion, "a", "b"))
	b.add("2")
	s.expect("ADDED b/2")

	again := w.watch(append(slices.Clone(initial), "resourceVersion", end.Object.Metadata.ResourceVersion)...)
	again.expect("ADDED a/1", "ADDED a/2", "ADDED b/1", "ADDED b/2", "BOOKMARK ")
	require.Equal(t, "3", b.requests[len(b.requests)-1].Get("resourceVersion"), "the request must contain the position of the shard")

	// Without bookmarks and sendInitialEvents.
	plain := w.watch()
	plain.expect("ADDED a/1", "ADDED a/2", "ADDED b/1", "ADDED b/2")
	a.add("3")
	plain.expect("ADDED a/3")

	// The version of an initial object has no positions of other shards.
	first := w.watch().next()
	other := map[string]string{"a": "b", "b": "a"}[first.Object.Metadata.Name[:1]]
	require.Zero(t, positions(t, first.Object.Metadata.ResourceVersion, other)[0])

	require.Equal(t, "Unprocessable Entity", w.watch("sendInitialEvents", "true").header.Get("Code"))
	require.Equal(t, "Unprocessable Entity", w.watch("resourceVersionMatch", "NotOlderThan").header.Get("Code"))

	a.set(func() { a.cut = 1 })
	interrupted := w.watch()
	e := interrupted.next()
	for e.Type != "ERROR" {
		e = interrupted.next()
	}
	require.EqualValues(t, http.StatusServiceUnavailable, e.Object.Code, "the watch must fail, because objects would be sent twice")
}

// TestInitialVersions verifies that a client which resumes from any initial event receives the remaining ones, because
// the version only includes a shard after all of its initial events.
func TestInitialVersions(t *testing.T) {
	t.Parallel()
	const each = 50
	var names []string
	for n := range each {
		names = append(names, fmt.Sprint(n))
	}
	// All objects of b are sent between the first of a and the others.
	a, b := newFake(t, "a", names...), newFake(t, "b", names...)
	first, all := make(chan struct{}), make(chan struct{})
	a.gates, b.gates = map[int]<-chan struct{}{1: all}, map[int]<-chan struct{}{0: first}
	w := newWorld(t, a, b)
	s, left := w.watch(), map[string]int{"a": each, "b": each}
	for range 2 * each {
		e := s.next()
		own := e.Object.Metadata.Name[:1]
		left[own]--
		switch {
		case own == "a" && left["a"] == each-1:
			close(first)
		case own == "b" && left["b"] == 0:
			close(all)
		}
		other := map[string]string{"a": "b", "b": "a"}[own]
		if seen := positions(t, e.Object.Metadata.ResourceVersion, other)[0]; left[other] > 0 {
			require.Zero(t, seen, "%d initial events of %s follow %s", left[other], other, e)
		}
	}
}

func TestShardsAreAddedAndRemoved(t *testing.T) {
	t.Parallel()
	a, b := newFake(t, "a", "1"), newFake(t, "b", "1", "2")
	w := newWorld(t, a)
	s := w.watch("resourceVersion", w.list().Metadata.ResourceVersion)
	w.set(a, b)
	s.expect("ADDED b/1", "ADDED b/2")
	b.add("3")
	e := s.expect("ADDED b/3")
	require.Equal(t, []uint64{3, 5}, positions(t, e.Object.Metadata.ResourceVersion, "a", "b"))
	w.set(b)
	s.fails(http.StatusGone)
	require.Equal(t, "Gone", w.watch("resourceVersion", e.Object.Metadata.ResourceVersion).header.Get("Code"))
}

func TestWatchesOfUnservedResources(t *testing.T) {
	t.Parallel()
	a, b := newFake(t, "a", "1"), newFake(t, "b", "1")
	w := newWorld(t, a, b)
	b.set(func() { b.response = notServed() })
	s := w.watch(initial...)
	s.expect("ADDED a/1", "BOOKMARK ")
	b.set(func() { b.response = nil })
	s.expect("ADDED b/1")
	b.set(func() { b.response = apierrors.NewForbidden(notServedResource, "", nil) })
	s.fails(http.StatusForbidden)
	for _, f := range []*fake{a, b} {
		f.set(func() { f.response = notServed() })
	}
	require.Equal(t, "Not Found", w.watch().header.Get("Code"))
	require.Equal(t, "Not Found", w.watch("sendInitialEvents", "true", "resourceVersionMatch", "NotOlderThan").header.Get("Code"))
}

// TestWatchesWithUnreachableShard verifies that an unreachable shard ends a watch, or is in its bookmarks.
func TestWatchesWithUnreachableShard(t *testing.T) {
	t.Parallel()
	a, b := newFake(t, "a", "1"), newFake(t, "b", "1")
	w := newWorld(t, a, b)
	version := w.list().Metadata.ResourceVersion
	full := w.watch("resourceVersion", version)
	partial := w.watched(w.partial("resourceVersion", version, "allowWatchBookmarks", "true"))
	b.set(func() { b.down = true })
	full.fails(http.StatusServiceUnavailable)
	require.Equal(t, "Service Unavailable", w.watch("resourceVersion", version).header.Get("Code"))
	a.happens("BOOKMARK", "")
	e := partial.expect("BOOKMARK ")
	require.Equal(t, "b", e.Object.Metadata.Annotations[merge.MissingAnnotation])
	require.Equal(t, []uint64{4, 3}, positions(t, e.Object.Metadata.ResourceVersion, "a", "b"), "the position of the unreachable shard must be kept")

	begun := w.watched(w.partial(initial...))
	require.True(t, strings.HasSuffix(begun.header.Get("Warning"), `missing: b"`))
	end := begun.expect("ADDED a/1", "BOOKMARK ")
	require.Equal(t, []uint64{4, 0}, positions(t, end.Object.Metadata.ResourceVersion, "a", "b"))
	b.add("2")
	b.set(func() { b.down = false })
	partial.expect("ADDED b/2")
	begun.expect("ADDED b/1", "ADDED b/2")
	a.happens("BOOKMARK", "")
	require.NotContains(t, partial.expect("BOOKMARK ").Object.Metadata.Annotations, merge.MissingAnnotation)
}

// TestSlowReaders verifies that a client that does not read blocks the shards after a few events.
func TestSlowReaders(t *testing.T) {
	a := newFake(t, "a")
	w := newWorld(t, a, newFake(t, "b"))
	s := w.watch("resourceVersion", w.list().Metadata.ResourceVersion, "timeoutSeconds", "20")
	const events = 20000
	for range events {
		a.happens("MODIFIED", "1")
	}
	for i := range events {
		e := s.next()
		require.Equal(t, []uint64{uint64(i + 3)}, positions(t, e.Object.Metadata.ResourceVersion, "a"))
	}
}
