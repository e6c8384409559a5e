package merge

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// unreachableTimeout is how long a watch waits for an unreachable shard before it ends or continues without it.
	unreachableTimeout = 5 * time.Second
	// responseTimeout is the maximum time until a shard begins to respond to one attempt.
	responseTimeout = 10 * time.Second
	// retryPause is the delay between attempts to watch a shard, and unservedPause the delay after a shard did
	// not serve the resource.
	retryPause, unservedPause = 250 * time.Millisecond, 5 * time.Second
)

// notice is sent by a feed to its watch.
type notice struct {
	feed *feed
	kind noticeKind
	// frame is the event, and revision its resource version.
	frame    frame
	revision uint64
	// err is why the shard is unreachable, or the error that ends the watch.
	err error
}

type noticeKind int

const (
	// began is sent when the shard responds. Events follow.
	began noticeKind = iota
	// event is an event of the shard.
	event
	// initialEnd is sent after all initial events.
	initialEnd
	// unserved is sent if the shard currently does not serve the resource.
	unserved
	// shardUnreachable is sent if the shard is unreachable. The feed retries.
	shardUnreachable
	// failed is sent if the feed cannot continue.
	failed
)

// frame is one event of a watch in JSON.
type frame struct {
	Type   watch.EventType `json:"type"`
	Object json.RawMessage `json:"object"`
}

// feed reads the watch of one shard, and resumes it when it ends. It reads an event only after the previous one was
// received.
type feed struct {
	shard   Shard
	request *Request
	// at is the position from which the feed resumes, if known is true. Otherwise it starts with initial events.
	at    uint64
	known bool
	// notOlder is the minimum position of initial events.
	notOlder uint64
	// initialSent is set once initial events have been sent.
	initialSent bool
	// responded is set once the shard has responded. It belongs to the watch.
	responded bool
	// columns are those of hidden events, which the client has not received yet. They belong to the watch.
	columns []byte
	out     chan<- notice
	// open is closed when events may follow, and release when those after the initial events may follow.
	open, release <-chan struct{}
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
		case isCode(err, http.StatusNotFound) && !f.initialSent:
			pause = unservedPause
			if !f.send(ctx, notice{kind: unserved, err: err}) {
				return
			}
		case status != nil && status.ErrStatus.Code != http.StatusTooManyRequests:
			f.send(ctx, notice{kind: failed, err: status})
			return
		case !f.known && f.initialSent:
			f.send(ctx, notice{kind: failed, err: missing{f.shard.Name: errors.New("the watch ended during the initial events")}.status()})
			return
		case lost.IsZero():
			lost = time.Now()
		case time.Since(lost) > unreachableTimeout && !warned:
			warned = true
			if !f.send(ctx, notice{kind: shardUnreachable, err: err}) {
				return
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// send sends a notice, and returns false if ctx ends before.
func (f *feed) send(ctx context.Context, n notice) bool {
	n.feed = f
	select {
	case f.out <- n:
		return true
	case <-ctx.Done():
		return false
	}
}

// watch reads one watch of the shard until it ends. It calls responded when the shard has responded.
func (f *feed) watch(ctx context.Context, responded func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(responseTimeout, cancel)
	query := f.request.with(queryVersion, "", queryMatch, "", queryInitial, "", queryTimeout, "", queryBookmarks, "true", queryLimit, "", queryContinue, "")
	switch {
	case f.known:
		query.Set(queryVersion, strconv.FormatUint(f.at, 10))
	default:
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
	if !f.send(ctx, notice{kind: began}) || !wait(ctx, f.open) {
		return ctx.Err()
	}
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
	n := notice{kind: event, frame: next, revision: revision}
	if !f.known {
		f.initialSent = true
		if next.Type == watch.Bookmark && endsInitial(next.Object, f.request.Tables) {
			n.kind = initialEnd
		}
	}
	if !f.send(ctx, n) {
		return ctx.Err()
	}
	switch {
	case n.kind == initialEnd:
		f.at, f.known = revision, true
		if !wait(ctx, f.release) {
			return ctx.Err()
		}
	case f.known:
		f.at = revision
	}
	return nil
}

// wait waits until a channel is closed, and returns false if ctx ends before.
func wait(ctx context.Context, closed <-chan struct{}) bool {
	select {
	case <-closed:
		return true
	case <-ctx.Done():
		return false
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
