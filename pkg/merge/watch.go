package merge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// minWatchTime is how long a watch lasts at least, and at most twice that, if the client
	// does not say.
	minWatchTime = 30 * time.Minute
	// lookInterval is how often a watch looks whether there are other shards now.
	lookInterval = time.Second
)

// merged is a watch of all shards.
type merged struct {
	request *Request
	w       http.ResponseWriter
	out     *bufio.Writer
	// version is what all shards have told.
	version Vector
	feeds   map[uint32]*feed
	running sync.WaitGroup
	notices chan notice
	open    chan struct{}
	release chan struct{}
	// waiting are the shards whose first answer the head of the answer waits for, pending
	// those whose initial events the client waits for.
	waiting, pending map[uint32]struct{}
	unserved         error
	away             missing
	started          bool
	// initial says that the client has asked for initial events, and bookmarks for bookmarks.
	initial, bookmarks bool
	// last is the latest bookmark that has ended the initial events of a shard.
	last []byte
	// columns are those that the client of a Table has been told.
	columns []byte
}

// Watch answers with the watch of all shards, or returns an error, if it has not begun to
// answer. It ends with ctx.
func (r *Request) Watch(ctx context.Context, w http.ResponseWriter) error {
	m := &merged{
		request: r, w: w, out: bufio.NewWriterSize(w, copyBytes), feeds: map[uint32]*feed{}, notices: make(chan notice),
		open: make(chan struct{}), release: make(chan struct{}), waiting: map[uint32]struct{}{}, pending: map[uint32]struct{}{}, away: missing{},
		initial: isTrue(r.Query, queryInitial), bookmarks: isTrue(r.Query, queryBookmarks),
	}
	if err := r.checkWatch(m.initial); err != nil {
		return err
	}
	shards, err := r.shards()
	if err != nil {
		return err
	}
	from, err := r.start(shards)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, r.watchTime())
	defer m.running.Wait()
	defer cancel()
	if !m.initial {
		m.version = from
		close(m.release)
	}
	for _, s := range shards {
		m.start(ctx, s, from)
		m.waiting[s.Number] = struct{}{}
		if m.initial {
			m.pending[s.Number] = struct{}{}
		}
	}
	return m.run(ctx)
}

// checkWatch refuses what shards would refuse, and would be asked otherwise.
func (r *Request) checkWatch(initial bool) error {
	switch match := r.Query.Get(queryMatch); {
	case initial && match != string(metav1.ResourceVersionMatchNotOlderThan):
		return invalidOption(queryMatch, "sendInitialEvents requires resourceVersionMatch NotOlderThan")
	case !initial && match != "":
		return invalidOption(queryMatch, "resourceVersionMatch is forbidden for a watch without sendInitialEvents")
	}
	return nil
}

// watchTime returns how long a watch lasts.
func (r *Request) watchTime() time.Duration {
	if seconds, err := strconv.Atoi(r.Query.Get(queryTimeout)); err == nil && seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	return minWatchTime + rand.N(minWatchTime) //nolint:gosec // so that not all end at once
}

// start begins to follow a shard.
func (m *merged) start(ctx context.Context, s Shard, from Vector) {
	f := &feed{shard: s, request: m.request, out: m.notices, open: m.open, release: m.release}
	if revision, ok := from.Of(s.Number); ok && m.initial {
		f.notOlder = revision
	} else if ok {
		f.at, f.known = revision, true
	}
	m.feeds[s.Number] = f
	m.running.Go(func() { f.run(ctx) })
}

// run writes what the feeds tell until the watch ends.
func (m *merged) run(ctx context.Context) error {
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for {
		var err error
		select {
		case n := <-m.notices:
			err = m.take(n)
		case <-look.C:
			err = m.look(ctx)
		case <-ctx.Done():
			return nil
		}
		if err == nil {
			err = m.begin()
		}
		if err != nil {
			return m.fail(err)
		}
	}
}

// begin answers, once each shard has.
func (m *merged) begin() error {
	if m.started || len(m.waiting) > 0 {
		return nil
	}
	if m.unserved != nil && !slices.ContainsFunc(slices.Collect(maps.Values(m.feeds)), func(f *feed) bool { return f.answers }) && len(m.away) == 0 {
		return m.unserved
	}
	m.started = true
	header := m.w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Cache-Control", "no-cache, private")
	warn(header, m.away)
	m.w.WriteHeader(http.StatusOK)
	close(m.open)
	return m.flush()
}

// take does what a notice of a feed is about.
func (m *merged) take(n notice) error {
	number := n.feed.shard.Number
	switch n.what {
	case began:
		n.feed.answers = true
		delete(m.waiting, number)
		delete(m.away, n.feed.shard.Name)
	case unserved:
		m.unserved = n.err
		delete(m.waiting, number)
		return m.initialized(number, nil)
	case isAway:
		m.away[n.feed.shard.Name] = n.err
		if !m.request.Partial {
			return m.away.status()
		}
		delete(m.waiting, number)
		return m.initialized(number, nil)
	case failed:
		return n.err
	case initialEnd:
		m.version = m.version.With(number, n.revision)
		return m.initialized(number, n.frame.Object)
	case event:
		return m.event(n)
	}
	return nil
}

// event writes one event, with the version that the stream has come to. An initial one leads
// nobody on: until all of them are told, nothing of the shard counts as seen.
func (m *merged) event(n notice) error {
	version := m.version.With(n.feed.shard.Number, n.revision)
	if _, ok := m.version.Of(n.feed.shard.Number); ok {
		m.version = version
	}
	if n.frame.Type == watch.Bookmark {
		return m.bookmark(n.frame.Object)
	}
	obj := m.visible(n.feed, n.frame.Object)
	if obj == nil {
		return nil
	}
	return m.write(n.frame.Type, obj, version)
}

// visible returns the object of an event, or nil if it is hidden. Each shard sends the columns of
// a Table with its first event only, so that those of a hidden event are sent with the next one.
func (m *merged) visible(f *feed, raw []byte) []byte {
	if !m.request.Tables || !isTable(raw) {
		if m.request.isHidden(raw) {
			return nil
		}
		return raw
	}
	rows, hidden := 0, 0
	if at, _, ok := find(raw, "rows"); ok {
		elements(raw, at, func(start, end int) {
			rows++
			if m.request.isHidden(raw[start:end], "object") {
				hidden++
			}
		})
	}
	start, end, ok := find(raw, columnDefinitions)
	none := !ok || bytes.Equal(raw[start:end], null)
	switch {
	case rows > 0 && rows == hidden: // an event has one row
		if !none {
			f.columns = bytes.Clone(raw[start:end])
		}
		return nil
	case ok && none && f.columns != nil:
		raw = slices.Concat(raw[:start], f.columns, raw[end:])
	}
	f.columns = nil
	return raw
}

// withoutRowObjects removes the objects from the rows of a Table if the client does not want them.
func (m *merged) withoutRowObjects(raw []byte) []byte {
	at, _, ok := find(raw, "rows")
	if !ok || !m.request.withoutObjects() {
		return raw
	}
	out, last := []byte(nil), 0
	elements(raw, at, func(start, end int) {
		out = append(append(out, raw[last:start]...), m.request.withoutObject(raw[start:end])...)
		last = end
	})
	return append(out, raw[last:]...)
}

// initialized notes that nothing more is to be waited for of a shard before the end of the initial
// events. With the last one they end, by a bookmark that is like that of a shard.
func (m *merged) initialized(number uint32, like []byte) error {
	if _, ok := m.pending[number]; !ok {
		return nil
	}
	delete(m.pending, number)
	if like != nil {
		m.last = like
	}
	if len(m.pending) > 0 {
		return nil
	}
	switch {
	case m.last != nil:
	case len(m.away) > 0:
		return m.away.status() // of no shard anything was told
	default:
		return m.unserved
	}
	close(m.release)
	return m.bookmark(m.last)
}

// bookmark tells the client what it has seen of all shards, and which are missing.
func (m *merged) bookmark(like []byte) error {
	if !m.bookmarks {
		return nil
	}
	if len(m.away) > 0 {
		var err error
		if like, err = annotated(like, m.request.Tables, MissingAnnotation, strings.Join(m.away.names(), ",")); err != nil {
			return err
		}
	}
	return m.write(watch.Bookmark, like, m.version)
}

// look follows shards that are new, and ends the watch if one has gone.
func (m *merged) look(ctx context.Context) error {
	shards, err := m.request.shards()
	if err != nil {
		return err
	}
	for _, s := range shards {
		if m.feeds[s.Number] == nil {
			m.start(ctx, s, Vector{})
		}
	}
	if len(shards) < len(m.feeds) {
		return expired("a shard has gone: begin anew")
	}
	return nil
}

// fail ends the watch: with an answer, or with an event if it has answered.
func (m *merged) fail(err error) error {
	status := statusOf(err)
	if status == nil {
		status = apierrors.NewInternalError(err)
	}
	if !m.started {
		return status
	}
	answer := status.Status()
	answer.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	raw, err := json.Marshal(answer)
	if err != nil {
		return nil //nolint:nilerr // the watch ends
	}
	_ = m.frame(watch.Error, raw)
	return nil
}

var errClient = errors.New("the client does not read")

// write writes an object with a version.
func (m *merged) write(event watch.EventType, raw []byte, version Vector) error {
	if !m.request.Tables || !isTable(raw) {
		return m.frame(event, splice(raw, versionIn(raw), version.String()))
	}
	raw = splice(raw, tableVersionsIn(raw), version.String())
	if start, end, ok := find(raw, columnDefinitions); ok {
		// Each shard tells its columns first; a client wants them once.
		switch columns := raw[start:end]; {
		case m.columns == nil:
			m.columns = bytes.Clone(columns)
		case bytes.Equal(m.columns, columns):
			raw = slices.Concat(raw[:start], []byte("null"), raw[end:])
		}
	}
	return m.frame(event, m.withoutRowObjects(raw))
}

// frame writes an event, and has the client get it.
func (m *merged) frame(event watch.EventType, raw []byte) error {
	_, _ = m.out.WriteString(`{"type":"` + string(event) + `","object":`)
	_, _ = m.out.Write(raw)
	_, _ = m.out.WriteString("}\n")
	return m.flush()
}

func (m *merged) flush() error {
	if err := m.out.Flush(); err != nil {
		return errClient
	}
	if err := http.NewResponseController(m.w).Flush(); err != nil {
		return errClient
	}
	return nil
}
