package merge

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	// unreachableTimeout is how long a watch waits for an unreachable shard before it ends or continues without it.
	unreachableTimeout = 5 * time.Second
	// responseTimeout is the maximum time until a shard begins to respond to one attempt.
	responseTimeout = 10 * time.Second
	// retryPause is the delay between attempts to watch a shard, unservedPause if it does not serve the resource.
	retryPause, unservedPause = 250 * time.Millisecond, 5 * time.Second
)

// merged is a watch of all shards.
type merged struct {
	eventWriter
	// version contains the positions of all shards that were sent.
	version Vector
	feeds   map[uint32]*feed
	running sync.WaitGroup
	notices chan func() error
	// open is closed when events may follow, and release when those after the initial events may follow.
	open, release chan struct{}
	// waiting are the shards that must respond before the response starts, pending those without all initial events.
	waiting, pending map[uint32]struct{}
	unserved         error
	unreachable      missing
	started          bool
	// initial is true if the client requests initial events, bookmarks if it requests bookmarks.
	initial, bookmarks bool
	// last is the latest bookmark at the end of a shard's initial events.
	last []byte
}

// Watch responds with the watch of all shards until ctx ends. It returns an error if it has not started to respond.
func (r *Request) Watch(ctx context.Context, w http.ResponseWriter) error {
	m := &merged{
		eventWriter: eventWriter{request: r, w: w, out: bufio.NewWriterSize(w, copyBytes), hidden: map[uint32][]byte{}},
		feeds:       map[uint32]*feed{}, notices: make(chan func() error),
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
	obj := m.visible(f.shard.Number, next.Object)
	if obj == nil {
		return nil
	}
	return m.write(next.Type, obj, version)
}

// initialized records that the initial events of a shard are complete or not expected. After the last shard, it sends
// the bookmark that ends the initial events, based on the bookmark of a shard.
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

// frame is one event of a watch in JSON.
type frame struct {
	Type   watch.EventType `json:"type"`
	Object json.RawMessage `json:"object"`
}

// feed reads the watch of one shard, and resumes it when it ends. It waits until each event was received.
type feed struct {
	shard Shard
	// merged is the watch of the feed. The feed uses its constant fields only, and all others in functions that it sends.
	merged *merged
	// at is the position from which the feed resumes, if known is true. Otherwise it starts with initial events.
	at    uint64
	known bool
	// notOlder is the minimum position of initial events.
	notOlder uint64
	// initialSent is set once initial events have been sent.
	initialSent bool
	// responded is set once the shard has responded. It belongs to the watch.
	responded bool
}

// run watches until ctx ends or the feed cannot continue.
func (f *feed) run(ctx context.Context) {
	lost := time.Now()
	warned := false
	for {
		err := f.watch(ctx, func() { lost, warned = time.Time{}, false })
		if ctx.Err() != nil {
			return
		}
		pause := retryPause
		switch status := statusOf(err); {
		case apierrors.IsNotFound(err) && !f.initialSent:
			pause = unservedPause
			f.send(ctx, func() error { return f.merged.notServed(f, err) })
		case status != nil && status.ErrStatus.Code != http.StatusTooManyRequests:
			f.send(ctx, func() error { return status })
			return
		case !f.known && f.initialSent:
			f.send(ctx, func() error {
				return missing{f.shard.Name: errors.New("the watch ended during the initial events")}.status()
			})
			return
		case lost.IsZero():
			lost = time.Now()
		case time.Since(lost) > unreachableTimeout && !warned:
			warned = true
			f.send(ctx, func() error { return f.merged.lost(f, err) })
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// send calls a function in the goroutine of the watch, which ends if it returns an error, unless ctx ends before.
func (f *feed) send(ctx context.Context, notice func() error) {
	select {
	case f.merged.notices <- notice:
	case <-ctx.Done():
	}
}

// watch reads one watch of the shard until it ends. It calls responded when the shard has responded.
func (f *feed) watch(ctx context.Context, responded func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(responseTimeout, cancel)
	query := f.merged.request.with(queryVersion, "", queryMatch, "", queryInitial, "", queryTimeout, "", queryBookmarks, "true", queryLimit, "", queryContinue, "")
	if f.known {
		query.Set(queryVersion, strconv.FormatUint(f.at, 10))
	} else {
		query.Set(queryInitial, "true")
		query.Set(queryMatch, string(metav1.ResourceVersionMatchNotOlderThan))
		if f.notOlder > 0 {
			query.Set(queryVersion, strconv.FormatUint(f.notOlder, 10))
		}
	}
	res, err := f.shard.Get(ctx, query)
	if !late.Stop() && err == nil {
		_ = res.Body.Close()
		err = context.DeadlineExceeded
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errUnreachable, err)
	}
	if err := check(res); err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	responded()
	f.send(ctx, func() error { return f.merged.began(f) })
	wait(ctx, f.merged.open)
	decoder := json.NewDecoder(bufio.NewReaderSize(res.Body, copyBytes))
	for {
		var next frame
		if err := decoder.Decode(&next); err != nil {
			return fmt.Errorf("%w: the watch ended: %w", errUnreachable, err)
		}
		if err := f.take(ctx, next); err != nil {
			return err
		}
	}
}

// take sends one event.
func (f *feed) take(ctx context.Context, next frame) error {
	if next.Type == watch.Error {
		var status metav1.Status
		if err := json.Unmarshal(next.Object, &status); err != nil {
			return fmt.Errorf("%w: %w", errUnreachable, err)
		}
		return classify(&apierrors.StatusError{ErrStatus: status})
	}
	revision, err := revisionOf(next.Object)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnreachable, err)
	}
	if f.known {
		f.at = revision
		f.send(ctx, func() error { return f.merged.event(f, next, revision) })
		return ctx.Err()
	}
	f.initialSent = true
	if next.Type != watch.Bookmark || !endsInitial(next.Object, f.merged.request.Tables) {
		f.send(ctx, func() error { return f.merged.event(f, next, revision) })
		return ctx.Err()
	}
	f.at, f.known = revision, true
	f.send(ctx, func() error { return f.merged.initialEnd(f, next.Object, revision) })
	wait(ctx, f.merged.release)
	return ctx.Err()
}

// wait waits until a channel is closed or ctx ends.
func wait(ctx context.Context, closed <-chan struct{}) {
	select {
	case <-closed:
	case <-ctx.Done():
	}
}

func revisionOf(raw []byte) (uint64, error) {
	spans := versionIn(raw)
	if len(spans) == 0 {
		return 0, fmt.Errorf("%w: an event without a version", errJSON)
	}
	version, err := spans[0].plain(raw)
	if err != nil {
		return 0, err
	}
	revision, err := strconv.ParseUint(version, 10, 64)
	if err != nil || revision == 0 {
		return 0, fmt.Errorf("%w: an event of version %q", errJSON, version)
	}
	return revision, nil
}
