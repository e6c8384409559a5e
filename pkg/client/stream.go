package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
)

const (
	// pageSize is the limit of lists.
	pageSize = 500
	// firstWatch is the timeout of the first watch that resumes in a new process.
	firstWatch = 3 * time.Second
	minWatch   = 5 * time.Minute
	maxWatch   = 10 * time.Minute
	minDelay   = 50 * time.Millisecond
	maxDelay   = 2 * time.Second
	// initialEventsTimeout bounds the pause between initial events. The informer lists afterwards.
	initialEventsTimeout = 30 * time.Second
	// quietFailures is the number of consecutive failures per log message.
	quietFailures = 5
)

var (
	errInitialEvents = errors.New("the server did not complete the initial events of the watch")
	errEndedEarly    = errors.New("the watch ended before the initial events were complete")
	errWrongType     = errors.New("unexpected object from the server")
	errRolledBack    = errors.New("the server's data was restored from an older backup")
)

// stream follows a resource. It receives the initial state, by the watch itself if the server supports this, and then
// watches changes. A new watch resumes at the last received version. It restarts only if the server no longer has the
// history.
type stream struct {
	*connection
	sink sink

	// pages is set if the server rejected the initial state on a watch or did not complete it. It is reset after the
	// next complete state, because the server may only have been slow.
	pages    bool
	failures int
	// resumed counts watches that resumed before the informer was current.
	resumed int
	// progress is set when a connection delivered a complete initial state or an event after it.
	progress bool
	// requested are the ranges of the current connection. unsharded is set if the server rejected their selector.
	requested Ranges
	unsharded bool
}

// connect makes one connection and follows it to its end.
func (s *stream) connect(ctx context.Context) error {
	rv := s.ResourceVersion()
	if s.requestRanges != nil {
		if s.requested, s.unsharded = s.requestRanges(rv == ""), false; s.requested.Empty() {
			<-ctx.Done() // no selector selects nothing; the caller ends this stream
			return ctx.Err()
		}
		if rv != "" {
			if err := s.probe(ctx); err != nil {
				return err
			}
		}
	}
	if rv == "" && s.before != nil {
		if err := s.before(ctx); err != nil {
			return err
		}
	}
	if rv == "" && (s.pages || s.pagesOnly) {
		listed, err := s.list(ctx)
		if err != nil {
			return err
		}
		rv = listed
	}
	err := s.watch(ctx, rv)
	if rv != "" && apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		return errors.Join(err, s.checkRollback(ctx, rv))
	}
	return err
}

// ended handles the end of a connection, and returns the delay before the next attempt.
func (s *stream) ended(ctx context.Context, err error) time.Duration {
	logger := klog.FromContext(ctx).WithValues("informer", s.name)
	defer s.disconnected()
	if s.progress || err == nil {
		s.setError(nil)
	}
	if s.progress {
		s.failures = 0
	}
	if err != nil {
		s.setError(err)
		switch {
		case historyCompacted(err):
			s.setResourceVersion("")
		case s.ResourceVersion() == "" && !s.pages && watchListRefused(err):
			logger.V(2).Info("The server does not send the initial state on a watch, listing instead", "err", err)
			s.pages = true
		case rejected(err):
			// The server rejected the request, possibly because of the resourceVersion.
			s.setResourceVersion("")
		}
	}
	delay := min(minDelay<<min(s.failures, 10), maxDelay)
	delay = delay/2 + rand.N(delay/2)
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		// Add jitter.
		delay += time.Duration(seconds) * time.Second
	}
	s.failures++
	if err != nil && s.failures%quietFailures == 0 {
		logger.Info("Failed to follow the resource, retrying", "failures", s.failures, "err", err)
	} else {
		logger.V(4).Info("Connection ended", "failures", s.failures, "err", err)
	}
	return delay
}

func (s *stream) list(ctx context.Context) (string, error) {
	opts := s.options()
	opts.Limit = pageSize
	s.sink.begin()
	for {
		page, err := send(ctx, s, opts, s.source.list)
		if err != nil && opts.Continue != "" && apierrors.IsResourceExpired(err) {
			// The history was compacted while pages were read. Objects of previous pages may have been deleted.
			opts.Continue, opts.Limit = "", 0
			s.sink.begin()
			continue
		}
		if err != nil {
			return "", err
		}
		if err := s.checkList(ctx, page); err != nil {
			return "", err
		}
		if err := meta.EachListItemWithAlloc(page, func(item runtime.Object) error { return s.sink.put(ctx, item) }); err != nil {
			return "", err
		}
		if s.unsharded {
			opts.ShardSelector = "" // for the remaining pages, too
		}
		info, err := meta.ListAccessor(page)
		if err != nil {
			return "", fmt.Errorf("%w: %T is not a list: %w", errWrongType, page, err)
		}
		if opts.Continue = info.GetContinue(); opts.Continue == "" {
			s.complete(ctx, info.GetResourceVersion())
			return info.GetResourceVersion(), nil
		}
	}
}

func (s *stream) watch(ctx context.Context, rv string) error {
	opts := s.options()
	opts.ResourceVersion = rv
	opts.AllowWatchBookmarks = true
	timeout := int64(s.watchFor(rv).Seconds())
	opts.TimeoutSeconds = &timeout
	if rv == "" {
		sendInitialEvents := true
		opts.SendInitialEvents = &sendInitialEvents
		opts.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	w, err := send(ctx, s, opts, s.source.watch)
	if err != nil {
		return err
	}
	if rv == "" {
		s.sink.begin()
	} else {
		s.resumed++
		// The watch resumed, even if there are no events for a long time.
		s.setError(nil)
	}
	defer func() {
		w.Stop()
		// When the channel is closed, the watch's goroutine has ended.
		for open := true; open; {
			_, open = <-w.ResultChan()
		}
	}()
	return s.consume(ctx, w, rv == "")
}

// watchFor returns the timeout of a watch from rv. A watch that resumes in a new process is short, because the bookmark
// that servers send 2 s before the end makes it current.
func (s *stream) watchFor(rv string) time.Duration {
	if rv == "" || s.Current() {
		return minWatch + rand.N(maxWatch-minWatch)
	}
	return min(firstWatch<<min(s.resumed, 10), minWatch)
}

func (s *stream) consume(ctx context.Context, w watch.Interface, initial bool) error {
	stalled := time.NewTimer(initialEventsTimeout)
	defer stalled.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-stalled.C:
			if initial {
				return errInitialEvents
			}
		case event, open := <-w.ResultChan():
			if !open && initial {
				return errEndedEarly
			}
			if !open {
				return nil
			}
			done, err := s.handle(ctx, event, initial)
			if err != nil {
				return err
			}
			switch {
			case done:
				initial = false
			case initial:
				stalled.Reset(initialEventsTimeout)
			default:
				s.progress = true
			}
		}
	}
}

// handle processes one event. done is set if it ended the initial state.
func (s *stream) handle(ctx context.Context, event watch.Event, initial bool) (done bool, err error) {
	if event.Type == watch.Error {
		return false, apierrors.FromObject(event.Object)
	}
	info, err := meta.Accessor(event.Object)
	if err != nil {
		return false, fmt.Errorf("%w: %T: %w", errWrongType, event.Object, err)
	}
	version := info.GetResourceVersion() // the sink may change it
	switch event.Type {
	case watch.Added, watch.Modified:
		if err := s.sink.put(ctx, event.Object); err != nil {
			return false, err
		}
	case watch.Deleted:
		if err := s.sink.delete(ctx, event.Object); err != nil {
			return false, err
		}
	case watch.Bookmark:
	default:
		return false, fmt.Errorf("%w: event of type %q", errWrongType, event.Type)
	}
	if !initial {
		s.setResourceVersion(version)
		if event.Type == watch.Bookmark {
			s.reached(version)
			s.isCurrent(ctx)
		}
		return false, nil
	}
	if event.Type == watch.Bookmark && info.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
		if err := s.checkInitialEvents(ctx, info.GetAnnotations()[hashrange.InfoAnnotation]); err != nil {
			return false, err
		}
		s.complete(ctx, version)
		return true, nil
	}
	return false, nil
}

func (s *stream) complete(ctx context.Context, rv string) {
	s.sink.end()
	if s.HasSynced() {
		s.counts.relists.Add(1)
	}
	s.pages, s.progress = false, true
	s.setResourceVersion(rv)
	s.setError(nil)
	s.completed()
	s.isCurrent(ctx)
}

// checkRollback returns errRolledBack if the server's data is older than rv, which the server has rejected as too
// large. Otherwise the replica of the server that responded lags behind, and the informer must wait for it.
func (s *stream) checkRollback(ctx context.Context, rv string) error {
	opts := s.selected // any subset returns the version
	opts.Limit = 1
	// A list without a resourceVersion returns the latest state.
	page, err := s.source.list(ctx, opts)
	if err != nil {
		return nil //nolint:nilerr // the watch is retried in any case
	}
	info, err := meta.ListAccessor(page)
	if err != nil {
		return fmt.Errorf("%w: %T is not a list: %w", errWrongType, page, err)
	}
	if order, err := resourceversion.CompareResourceVersion(info.GetResourceVersion(), rv); err != nil || order < 0 {
		return fmt.Errorf("%w: it is at resourceVersion %s, but the informer was at %s", errRolledBack, info.GetResourceVersion(), rv)
	}
	return nil
}

// historyCompacted reports whether the server cannot continue from a resourceVersion.
func historyCompacted(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || errors.Is(err, errRolledBack)
}

// watchListRefused reports whether a server does not support watches with initial events, or did not complete them.
func watchListRefused(err error) bool {
	return errors.Is(err, errInitialEvents) || errors.Is(err, errEndedEarly) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsMethodNotSupported(err) || apierrors.IsNotAcceptable(err)
}

func rejected(err error) bool {
	code := statusCode(err)
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusTooManyRequests
}

// follow follows the resource until ctx is done.
func (c *connection) follow(ctx context.Context, to sink) {
	c.counts.streams.Add(1)
	defer c.counts.streams.Add(-1)
	ctx = context.WithValue(ctx, receivedKey{}, &c.counts.received)
	s := &stream{connection: c, sink: to}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		s.progress = false
		err := s.connect(ctx)
		if ctx.Err() != nil {
			return
		}
		timer.Reset(s.ended(ctx, err))
	}
}

func (s *stream) options() metav1.ListOptions {
	opts := s.selected
	if !s.unsharded {
		opts.ShardSelector = s.requested.String()
	}
	return opts
}

// send sends a request, and repeats it without the shard selector if the server rejects the selector.
func send[R any](ctx context.Context, s *stream, opts metav1.ListOptions, request func(context.Context, metav1.ListOptions) (R, error)) (R, error) {
	response, err := request(ctx, opts)
	if opts.ShardSelector == "" || opts.Continue != "" || !selectorRefused(err) {
		return response, err
	}
	opts.ShardSelector = ""
	plain, plainErr := request(ctx, opts)
	if plainErr == nil {
		s.unsharded = true
		s.filterReport.set(ctx, FilteredByClient, err)
	}
	return plain, plainErr
}

// selectorRefused reports whether a server may have rejected a request because of its selector: kube-apiserver
// returns 500 for selectors that it does not understand.
func selectorRefused(err error) bool {
	code := statusCode(err)
	return code == http.StatusBadRequest || code == http.StatusInternalServerError
}

// statusCode returns the HTTP status code of an error response, or 0.
func statusCode(err error) int32 {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return 0
	}
	return status.Status().Code
}

func (s *stream) checkList(ctx context.Context, list runtime.Object) error {
	if s.requestRanges == nil || s.unsharded {
		return nil
	}
	if sharded, ok := list.(metav1.ShardedListInterface); ok && sharded.GetShardInfo() != nil {
		return s.checkSelector(ctx, sharded.GetShardInfo().Selector)
	}
	// Lists without Go types have it in their content.
	if untyped, ok := list.(*unstructured.UnstructuredList); ok {
		if selector, ok, _ := unstructured.NestedString(untyped.Object, "metadata", "shardInfo", "selector"); ok {
			return s.checkSelector(ctx, selector)
		}
	}
	return nil
}

// checkInitialEvents evaluates the selector in the final bookmark, which kube-apiserver sets in lists only.
func (s *stream) checkInitialEvents(ctx context.Context, selector string) error {
	if s.requestRanges == nil || s.unsharded {
		return nil
	}
	if selector == "" {
		return s.probe(ctx)
	}
	return s.checkSelector(ctx, selector)
}

// checkSelector records that the server has filtered by a selector. If it lacks ranges, objects would seem deleted.
func (s *stream) checkSelector(ctx context.Context, selector string) error {
	if served, err := ParseRanges(selector); err != nil || !s.requested.minus(served).Empty() {
		return fmt.Errorf("the server has applied another shardSelector than requested, check for proxies that change requests: requested %s, got %s", s.requested, cmp.Or(selector, "none"))
	}
	s.filterReport.set(ctx, FilteredByServer, nil)
	return nil
}

// probe lists one object, because the response to a resumed watch does not show whether it was filtered.
func (s *stream) probe(ctx context.Context) error {
	if s.requestRanges == nil || s.filterReport.filtered() == FilteredByServer {
		return nil
	}
	opts := s.options()
	opts.Limit = 1
	page, err := s.source.list(ctx, opts)
	if err != nil {
		return nil //nolint:nilerr // the watch returns the error, if any
	}
	return s.checkList(ctx, page)
}
