package inprocess

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

const (
	// unflushed is how much of an answer is kept back until it is flushed or complete, so
	// that a short one is read at once and has a length.
	unflushed = 32 << 10
	// unread is how much of an answer waits for who reads it; the handler waits then.
	unread = 256 << 10
	// kept is how large a buffer may be that stays between two reads of a stream.
	kept = 64 << 10
)

// errAborted is what a client sees of an answer that its handler gave up.
var errAborted = fmt.Errorf("the server gave the answer up: %w", io.ErrUnexpectedEOF)

// answer is what a handler writes and a client reads. It is an http.ResponseWriter for the one
// and the body of a response for the other.
type answer struct {
	client context.Context //nolint:containedctx // the caller's
	ctx    context.Context //nolint:containedctx // of the request
	cancel context.CancelFunc
	header http.Header // the handler's own

	mu   sync.Mutex
	cond sync.Cond
	// status is 0, and sent nil, until the handler has said them.
	status int
	sent   http.Header
	// written is what the client has not taken, of which it may have what is there when shown
	// is set.
	written []byte
	shown   bool
	// spare is a buffer for later.
	spare []byte
	// err is why nothing more is written: io.EOF after the end. What was written before the end
	// is read, and of an answer that was cut off nothing is.
	err error
	cut bool

	reading []byte // of the client alone
}

func newAnswer(client, ctx context.Context, cancel context.CancelFunc) *answer {
	a := &answer{client: client, ctx: ctx, cancel: cancel, header: http.Header{}}
	a.cond.L = &a.mu
	return a
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeHeader(status)
}

func (a *answer) writeHeader(status int) {
	if a.status == 0 && status >= http.StatusOK { // what comes before is not told
		a.status, a.sent = status, a.header.Clone()
	}
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeHeader(http.StatusOK)
	for done := 0; ; {
		if a.err != nil {
			return done, a.err
		}
		n := min(len(p)-done, unread-len(a.written))
		a.written = append(a.written, p[done:done+n]...)
		done += n
		if len(a.written) >= unflushed {
			a.show()
		}
		if done == len(p) {
			return done, nil
		}
		a.cond.Wait()
	}
}

// show lets the client have what is there. The caller holds the lock.
func (a *answer) show() {
	a.shown = true
	a.cond.Broadcast()
}

// Flush implements http.Flusher.
func (a *answer) Flush() { _ = a.FlushError() }

// FlushError is for http.ResponseController.
func (a *answer) FlushError() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return a.err
	}
	a.writeHeader(http.StatusOK)
	a.show()
	return nil
}

// SetWriteDeadline is for http.ResponseController, by which an answer that takes too long is
// given up. A time to come is for what a connection still has to send, and there is none.
func (a *answer) SetWriteDeadline(deadline time.Time) error {
	if !deadline.IsZero() && !deadline.After(time.Now()) {
		a.fail(os.ErrDeadlineExceeded)
	}
	return nil
}

// CloseNotify implements http.CloseNotifier, which upstream's writers expect together with
// http.Flusher.
func (a *answer) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	context.AfterFunc(a.ctx, func() { gone <- true })
	return gone
}

// fail cuts the answer off, for both sides, and ends the request.
func (a *answer) fail(err error) {
	a.mu.Lock()
	if !a.cut {
		a.err, a.cut = err, true
	}
	a.show()
	a.mu.Unlock()
	a.cancel()
}

// finish is for when the handler has returned, with err if it gave up.
func (a *answer) finish(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.err != nil:
		return
	case err != nil:
		a.err = err
	case a.client.Err() != nil: // it may have returned because of that
		a.err, a.cut = context.Cause(a.client), true
	default:
		a.writeHeader(http.StatusOK)
		a.err = io.EOF
	}
	a.show()
}

// response returns what the client gets, when the handler has flushed, written much, or
// returned.
func (a *answer) response(r *http.Request) (*http.Response, error) {
	unlink := context.AfterFunc(a.client, func() { a.fail(context.Cause(a.client)) })
	a.mu.Lock()
	defer a.mu.Unlock()
	for !a.shown {
		a.cond.Wait()
	}
	if a.cut || a.status == 0 {
		unlink()
		return nil, a.err
	}
	length := int64(-1)
	if a.err == io.EOF { //nolint:errorlint // our own
		length = int64(len(a.written))
	} else if n, err := strconv.ParseInt(a.sent.Get("Content-Length"), 10, 64); err == nil {
		length = n
	}
	return &http.Response{
		Status: strconv.Itoa(a.status) + " " + http.StatusText(a.status), StatusCode: a.status, Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: a.sent, ContentLength: length, Body: &body{answer: a, unlink: unlink}, Request: r,
	}, nil
}

// body is the client's side of an answer. Read and Close are not called at the same time by
// more than one goroutine each.
type body struct {
	*answer
	unlink func() bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if len(b.reading) == 0 {
		if err := b.take(); err != nil {
			return 0, err
		}
	}
	n := copy(p, b.reading)
	b.reading = b.reading[n:]
	return n, nil
}

// take waits for what can be read.
func (a *answer) take() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for !a.shown || len(a.written) == 0 {
		if a.err != nil {
			break
		}
		a.cond.Wait()
	}
	if a.cut || len(a.written) == 0 {
		return a.err
	}
	if cap(a.spare) > kept {
		a.spare = nil
	}
	a.reading, a.written, a.spare = a.written, a.spare[:0], a.written
	a.shown = a.err != nil
	a.cond.Broadcast() // there is room
	return nil
}

// Close implements io.Closer. The request ends, as with a stream that a client closes.
func (b *body) Close() error {
	b.unlink()
	b.fail(http.ErrBodyReadAfterClose)
	return nil
}
