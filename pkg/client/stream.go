package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
)

const (
	// pageSize is the size of a page where the initial state is listed.
	pageSize = 500
	// firstWatch is the time after which the first watch is renewed that resumes in a new
	// process. Servers send a bookmark two seconds before.
	firstWatch = 3 * time.Second
	// minWatch and maxWatch bound the time after which a watch is renewed.
	minWatch = 5 * time.Minute
	maxWatch = 10 * time.Minute
	// minDelay and maxDelay bound the time before a new attempt.
	minDelay = 50 * time.Millisecond
	maxDelay = 2 * time.Second
	// initialEventsTimeout is for how long the initial events may pause
	// before the informer lists instead.
	initialEventsTimeout = 30 * time.Second
	// quietFailures is how many failures in a row are not worth a log line.
	quietFailures = 5
)

var (
	// errInitialEvents says that the server does not send the initial state on
	// a watch as it should.
	errInitialEvents = errors.New("the server did not complete the initial events of the watch")
	// errEndedEarly says that the watch ended before the initial state was
	// complete, as it does when a server stops.
	errEndedEarly = errors.New("the watch ended within the initial events")
	// errWrongType says that the server sent an object of another type.
	errWrongType = errors.New("unexpected object from the server")
	// errSetBack says that the server has older data than the informer has seen.
	errSetBack = errors.New("the server's data was set back")
)

// connect makes one connection and follows it to its end.
func (s *stream) connect(ctx context.Context) error {
	rv := s.ResourceVersion()
	if s.asks != nil {
		if s.asked, s.unsharded = s.asks(rv == ""), false; s.asked.Empty() {
			<-ctx.Done() // no selector selects nothing; who runs this ends it
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
	if tooLarge(err) && rv != "" {
		return errors.Join(err, s.findSetBack(ctx, rv))
	}
	return err
}

// ended decides how to go on after a connection ended: it may forget the
// resourceVersion or turn to pages, and returns how long to wait.
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
		case historyGone(err):
			s.setResourceVersion("")
		case s.ResourceVersion() == "" && !s.pages && watchListRefused(err):
			logger.V(2).Info("The server does not send the initial state on a watch, listing instead", "err", err)
			s.pages = true
		case rejected(err):
			// The server understood and refused: start over, since a
			// resourceVersion may be what it does not like.
			s.setResourceVersion("")
		}
	}
	delay := min(minDelay<<min(s.failures, 10), maxDelay)
	delay = delay/2 + rand.N(delay/2)
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		// Not all at the same moment.
		delay += time.Duration(seconds) * time.Second
	}
	s.failures++
	if err != nil && s.failures%quietFailures == 0 {
		logger.Info("Cannot follow the resource, trying again", "failures", s.failures, "err", err)
	} else {
		logger.V(4).Info("Connection ended", "failures", s.failures, "err", err)
	}
	return delay
}

// list gets the complete state in pages and returns its resourceVersion.
func (s *stream) list(ctx context.Context) (string, error) {
	opts := s.options()
	opts.Limit = pageSize
	s.sink.begin()
	for {
		page, err := ask(ctx, s, opts, s.source.list)
		if err != nil && opts.Continue != "" && apierrors.IsResourceExpired(err) {
			// The pages took longer than the history reaches: in one go. What
			// they held may be gone by now.
			opts.Continue, opts.Limit = "", 0
			s.sink.begin()
			continue
		}
		if err != nil {
			return "", err
		}
		if err := s.learnFromList(ctx, page); err != nil {
			return "", err
		}
		if err := meta.EachListItemWithAlloc(page, func(item runtime.Object) error { return s.sink.put(ctx, item) }); err != nil {
			return "", err
		}
		if s.unsharded {
			opts.ShardSelector = "" // its pages are without, too
		}
		info, err := meta.ListAccessor(page)
		if err != nil {
			return "", fmt.Errorf("%w: %T is no list: %w", errWrongType, page, err)
		}
		if opts.Continue = info.GetContinue(); opts.Continue == "" {
			s.complete(ctx, info.GetResourceVersion())
			return info.GetResourceVersion(), nil
		}
	}
}

// watch follows a watch from rv, or from the initial state if rv is empty.
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
	w, err := ask(ctx, s, opts, s.source.watch)
	if err != nil {
		return err
	}
	if rv == "" {
		s.sink.begin()
	} else {
		s.resumed++
		// It goes on, even if there is nothing to tell for long.
		s.setError(nil)
	}
	defer func() {
		w.Stop()
		// Until it is closed: then the watch's goroutine has ended.
		for open := true; open; {
			_, open = <-w.ResultChan()
		}
	}()
	return s.consume(ctx, w, rv == "")
}

// watchFor returns how long a watch from rv may last. Before its end the server sends a
// bookmark, so that one which resumes in a new process is short: with that, it is current.
func (s *stream) watchFor(rv string) time.Duration {
	if rv == "" || s.Current() {
		return minWatch + rand.N(maxWatch-minWatch)
	}
	return min(firstWatch<<min(s.resumed, 10), minWatch)
}

// consume takes events until the watch ends. initial says that the initial state is
// sent first.
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

// handle processes one event. done says that it ended the initial state.
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
		if err := s.sink.gone(ctx, event.Object); err != nil {
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
		if err := s.learnFromEnd(ctx, info.GetAnnotations()[hashrange.InfoAnnotation]); err != nil {
			return false, err
		}
		s.complete(ctx, version)
		return true, nil
	}
	return false, nil
}

// complete ends the initial state: what the server did not send is gone.
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

// findSetBack returns errSetBack if the server's data is older than rv, which
// the server has said to lie in the future: then the data was restored from a
// backup. Otherwise the replica that answered is behind the others and the
// informer has to wait for it, as it has to where the server cannot say.
func (s *stream) findSetBack(ctx context.Context, rv string) error {
	opts := s.selected // any part tells the version
	opts.Limit = 1
	// Without a resourceVersion a list is of the latest state that there is.
	page, err := s.source.list(ctx, opts)
	if err != nil {
		return nil //nolint:nilerr // the watch is tried again in any case
	}
	info, err := meta.ListAccessor(page)
	if err != nil {
		return fmt.Errorf("%w: %T is no list: %w", errWrongType, page, err)
	}
	if order, err := resourceversion.CompareResourceVersion(info.GetResourceVersion(), rv); err != nil || order < 0 {
		return fmt.Errorf("%w: it is at resourceVersion %s, the informer was at %s", errSetBack, info.GetResourceVersion(), rv)
	}
	return nil
}

// tooLarge reports whether the server does not have a resourceVersion yet.
func tooLarge(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// historyGone reports whether the server cannot continue from a
// resourceVersion: too old, or, after a restore of its data, from the future.
func historyGone(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || errors.Is(err, errSetBack)
}

// watchListRefused reports whether a server does not know or not support the
// options of a watch with initial events, or did not get to their end.
func watchListRefused(err error) bool {
	return errors.Is(err, errInitialEvents) || errors.Is(err, errEndedEarly) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) ||
		apierrors.IsMethodNotSupported(err) || apierrors.IsNotAcceptable(err)
}

// rejected reports whether the server understood the request and refused it.
func rejected(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusTooManyRequests
}

// run follows the resource until ctx is done and everything it started has
// ended. It fails only if it runs already.
func (c *connection) run(ctx context.Context, to sink) error {
	if c.setRunning(true) {
		return fmt.Errorf("informer %s runs already: run it once", c.name)
	}
	defer c.setRunning(false)
	c.follow(ctx, to)
	return nil
}

// follow is run, of a connection that nobody else runs.
func (c *connection) follow(ctx context.Context, to sink) {
	c.counts.streams.Add(1)
	defer c.counts.streams.Add(-1)
	ctx = countReceived(ctx, &c.counts.received)
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
