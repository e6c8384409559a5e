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

// frame is one event of a watch in JSON.
type frame struct {
	Type   watch.EventType `json:"type"`
	Object json.RawMessage `json:"object"`
}

// feed reads the watch of one shard, and resumes it when it ends. It reads an event only after the previous one was
// received.
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
	// columns are those of hidden events, which the client has not received yet. They belong to the watch.
	columns []byte
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
