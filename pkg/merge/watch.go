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
	// minWatchTime is the minimum duration of a watch without timeoutSeconds; the maximum is twice as long.
	minWatchTime = 30 * time.Minute
	// shardsInterval is the interval at which a watch checks for new shards.
	shardsInterval = time.Second
)

// merged is a watch of all shards.
type merged struct {
	request *Request
	w       http.ResponseWriter
	out     *bufio.Writer
	// version contains the positions of all shards that were sent.
	version Vector
	feeds   map[uint32]*feed
	running sync.WaitGroup
	notices chan func() error
	// open is closed when events may follow, and release when those after the initial events may follow.
	open, release chan struct{}
	// waiting are the shards that must respond before the response starts, pending those with incomplete
	// initial events.
	waiting, pending map[uint32]struct{}
	unserved         error
	unreachable      missing
	started          bool
	// initial is true if the client requests initial events, bookmarks if it requests bookmarks.
	initial, bookmarks bool
	// last is the latest bookmark at the end of a shard's initial events.
	last []byte
	// columns are the columns of a Table that the client has received.
	columns []byte
}

// Watch responds with the watch of all shards until ctx ends. It returns an error if it has not started to respond.
func (r *Request) Watch(ctx context.Context, w http.ResponseWriter) error {
	m := &merged{
		request: r, w: w, out: bufio.NewWriterSize(w, copyBytes), feeds: map[uint32]*feed{}, notices: make(chan func() error),
		open: make(chan struct{}), release: make(chan struct{}), waiting: map[uint32]struct{}{}, pending: map[uint32]struct{}{}, unreachable: missing{},
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

// checkWatch rejects invalid options like the shards, because the query is changed for them.
func (r *Request) checkWatch(initial bool) error {
	switch match := r.Query.Get(queryMatch); {
	case initial && match != string(metav1.ResourceVersionMatchNotOlderThan):
		return invalidOption(queryMatch, "sendInitialEvents requires resourceVersionMatch NotOlderThan")
	case !initial && match != "":
		return invalidOption(queryMatch, "resourceVersionMatch is forbidden for a watch without sendInitialEvents")
	}
	return nil
}

// watchTime returns the duration of a watch.
func (r *Request) watchTime() time.Duration {
	if seconds, err := strconv.Atoi(r.Query.Get(queryTimeout)); err == nil && seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	return minWatchTime + rand.N(minWatchTime) //nolint:gosec // so that not all watches end at the same time
}

// start starts to watch a shard.
func (m *merged) start(ctx context.Context, s Shard, from Vector) {
	f := &feed{shard: s, merged: m}
	if revision, ok := from[s.Number]; ok && m.initial {
		f.notOlder = revision
	} else if ok {
		f.at, f.known = revision, true
	}
	m.feeds[s.Number] = f
	m.running.Go(func() { f.run(ctx) })
}

// run processes the notices of the feeds until the watch ends.
func (m *merged) run(ctx context.Context) error {
	ticker := time.NewTicker(shardsInterval)
	defer ticker.Stop()
	for {
		var err error
		select {
		case notice := <-m.notices:
			err = notice()
		case <-ticker.C:
			err = m.checkShards(ctx)
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

// begin starts the response once each shard has responded.
func (m *merged) begin() error {
	if m.started || len(m.waiting) > 0 {
		return nil
	}
	if m.unserved != nil && !slices.ContainsFunc(slices.Collect(maps.Values(m.feeds)), func(f *feed) bool { return f.responded }) && len(m.unreachable) == 0 {
		return m.unserved
	}
	m.started = true
	header := m.w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Cache-Control", "no-cache, private")
	warn(header, m.unreachable)
	m.w.WriteHeader(http.StatusOK)
	close(m.open)
	return m.flush()
}

// began records that a shard has responded. Its events follow.
func (m *merged) began(f *feed) error {
	f.responded = true
	delete(m.waiting, f.shard.Number)
	delete(m.unreachable, f.shard.Name)
	return nil
}

// notServed records that a shard currently does not serve the resource. The feed retries.
func (m *merged) notServed(f *feed, err error) error {
	m.unserved = err
	delete(m.waiting, f.shard.Number)
	return m.initialized(f.shard.Number, nil)
}

// lost records that a shard is unreachable. The feed retries.
func (m *merged) lost(f *feed, err error) error {
	m.unreachable[f.shard.Name] = err
	if !m.request.Partial {
		return m.unreachable.status()
	}
	delete(m.waiting, f.shard.Number)
	return m.initialized(f.shard.Number, nil)
}

// initialEnd records that a shard has sent all initial events, with a bookmark.
func (m *merged) initialEnd(f *feed, bookmark []byte, revision uint64) error {
	m.version = m.version.With(f.shard.Number, revision)
	return m.initialized(f.shard.Number, bookmark)
}

// event writes an event with the current version of the stream. A client cannot resume from initial events: the
// position of the shard is only included after all of them.
func (m *merged) event(f *feed, next frame, revision uint64) error {
	version := m.version.With(f.shard.Number, revision)
	if _, ok := m.version[f.shard.Number]; ok {
		m.version = version
	}
	if next.Type == watch.Bookmark {
		return m.bookmark(next.Object)
	}
	obj := m.visible(f, next.Object)
	if obj == nil {
		return nil
	}
	return m.write(next.Type, obj, version)
}

// visible returns the object of an event, or nil if it is hidden. A shard sends the columns of a Table only with its
// first event, so the columns of a hidden event are sent with the next one.
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
	case rows > 0 && rows == hidden: // events have one row
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

// withoutRowObjects removes the objects from the rows of a Table if the client has not requested them.
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

// initialized records that the initial events of a shard are complete or not expected. After the last shard, it sends
// the bookmark that ends the initial events, based on that of a shard.
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
	case len(m.unreachable) > 0:
		return m.unreachable.status() // no shard has sent initial events
	default:
		return m.unserved
	}
	close(m.release)
	return m.bookmark(m.last)
}

// bookmark sends the positions of all shards, and the missing shards.
func (m *merged) bookmark(like []byte) error {
	if !m.bookmarks {
		return nil
	}
	if len(m.unreachable) > 0 {
		var err error
		if like, err = annotated(like, m.request.Tables, MissingAnnotation, strings.Join(m.unreachable.names(), ",")); err != nil {
			return err
		}
	}
	return m.write(watch.Bookmark, like, m.version)
}

// checkShards starts to watch new shards, and ends the watch if a shard was removed.
func (m *merged) checkShards(ctx context.Context) error {
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
		return expired("a shard was removed: list again")
	}
	return nil
}

// fail ends the watch with an error response, or with an event if the response has started.
func (m *merged) fail(err error) error {
	status := statusOf(err)
	if status == nil {
		status = apierrors.NewInternalError(err)
	}
	if !m.started {
		return status
	}
	response := status.Status()
	response.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	raw, err := json.Marshal(response)
	if err != nil {
		return nil //nolint:nilerr // the watch ends
	}
	_ = m.frame(watch.Error, raw)
	return nil
}

var errClient = errors.New("the client does not read the response")

// write sends an object with a version.
func (m *merged) write(event watch.EventType, raw []byte, version Vector) error {
	if !m.request.Tables || !isTable(raw) {
		return m.frame(event, splice(raw, versionIn(raw), version.String()))
	}
	raw = splice(raw, tableVersionsIn(raw), version.String())
	if start, end, ok := find(raw, columnDefinitions); ok {
		// Each shard sends its columns first; the client needs them once.
		switch columns := raw[start:end]; {
		case m.columns == nil:
			m.columns = bytes.Clone(columns)
		case bytes.Equal(m.columns, columns):
			raw = slices.Concat(raw[:start], null, raw[end:])
		}
	}
	return m.frame(event, m.withoutRowObjects(raw))
}

// frame sends an event.
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
