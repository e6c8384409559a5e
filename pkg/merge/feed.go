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
	// awayTimeout is how long a watch waits for a shard that does not answer, before it ends
	// or goes on without it.
	awayTimeout = 5 * time.Second
	// answerTimeout is how long one attempt may take until a shard begins to answer.
	answerTimeout = 10 * time.Second
	// retryPause is the time between attempts to watch a shard, and unservedPause that after
	// a shard said that it does not serve the resource.
	retryPause, unservedPause = 250 * time.Millisecond, 5 * time.Second
)

// notice is what a feed tells the watch that it is a part of.
type notice struct {
	feed *feed
	what what
	// frame is the event, and revision its version.
	frame    frame
	revision uint64
	// err is why the shard is away, or the answer that ends the watch.
	err error
}

type what int

const (
	// began says that the shard answers; events follow.
	began what = iota
	// event is an event of the shard.
	event
	// initialEnd says that all that there was at the beginning has been told.
	initialEnd
	// unserved says that the shard does not serve the resource, for now.
	unserved
	// isAway says that the shard does not answer, and is asked again.
	isAway
	// failed says that there is no going on.
	failed
)

// frame is one event of a watch in JSON.
type frame struct {
	Type   watch.EventType `json:"type"`
	Object json.RawMessage `json:"object"`
}

// feed reads the watch of one shard, and resumes it where it ends. It reads an event
// only when the one before has been taken.
type feed struct {
	shard   Shard
	request *Request
	// at is the position up to which all has been told, if there is one: from there
	// it resumes. Without, it begins with all that there is.
	at    uint64
	known bool
	// notOlder is the position that initial events must not be older than.
	notOlder uint64
	// told is set once some of the initial events have been.
	told bool
	// answers is set once the shard has. It belongs to the watch that this is a part of.
	answers bool
	// columns are those of hidden events, which the client has not received yet. They belong to
	// the watch, too.
	columns []byte
	out     chan<- notice
	// open is closed when events may follow, and release when those after the initial may.
	open, release <-chan struct{}
}

// run watches until ctx ends or there is no going on.
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
		case isCode(err, http.StatusNotFound) && !f.told:
			pause = unservedPause
			if !f.tell(ctx, notice{what: unserved, err: err}) {
				return
			}
		case status != nil && status.ErrStatus.Code != http.StatusTooManyRequests:
			f.tell(ctx, notice{what: failed, err: status})
			return
		case !f.known && f.told:
			f.tell(ctx, notice{what: failed, err: missing{f.shard.Name: errors.New("the watch broke amid the initial events")}.status()})
			return
		case lost.IsZero():
			lost = time.Now()
		case time.Since(lost) > awayTimeout && !warned:
			warned = true
			if !f.tell(ctx, notice{what: isAway, err: err}) {
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

// tell hands a notice over, and reports whether that was possible.
func (f *feed) tell(ctx context.Context, n notice) bool {
	n.feed = f
	select {
	case f.out <- n:
		return true
	case <-ctx.Done():
		return false
	}
}

// watch reads one watch of the shard to its end. answers is called when it has begun.
func (f *feed) watch(ctx context.Context, answers func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late := time.AfterFunc(answerTimeout, cancel)
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
		return fmt.Errorf("%w: %w", errAway, err)
	}
	if err := check(res); err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	answers()
	if !f.tell(ctx, notice{what: began}) || !wait(ctx, f.open) {
		return ctx.Err()
	}
	decoder := json.NewDecoder(bufio.NewReaderSize(res.Body, copyBytes))
	for {
		var next frame
		if err := decoder.Decode(&next); err != nil {
			return fmt.Errorf("%w: the watch ended: %w", errAway, err)
		}
		if err := f.take(ctx, next); err != nil {
			return err
		}
	}
}

// take hands one event over.
func (f *feed) take(ctx context.Context, next frame) error {
	if next.Type == watch.Error {
		var status metav1.Status
		if err := json.Unmarshal(next.Object, &status); err != nil {
			return fmt.Errorf("%w: %w", errAway, err)
		}
		return judge(&apierrors.StatusError{ErrStatus: status})
	}
	revision, err := revisionOf(next.Object)
	if err != nil {
		return fmt.Errorf("%w: %w", errAway, err)
	}
	n := notice{what: event, frame: next, revision: revision}
	if !f.known {
		f.told = true
		if next.Type == watch.Bookmark && endsInitial(next.Object, f.request.Tables) {
			n.what = initialEnd
		}
	}
	if !f.tell(ctx, n) {
		return ctx.Err()
	}
	switch {
	case n.what == initialEnd:
		f.at, f.known = revision, true
		if !wait(ctx, f.release) {
			return ctx.Err()
		}
	case f.known:
		f.at = revision
	}
	return nil
}

// wait waits until a channel is closed, and reports whether it was before the end.
func wait(ctx context.Context, closed <-chan struct{}) bool {
	select {
	case <-closed:
		return true
	case <-ctx.Done():
		return false
	}
}

// revisionOf returns the resource version of an object.
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
