package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"
)

const (
	// pageSize is the size of a page where the initial state is listed.
	pageSize = 500
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

// state is what the informer tells about its connection.
type state struct {
	mu              sync.Mutex
	running         bool
	err             error
	resourceVersion string
}

// LastError returns why the informer is not connected, or nil.
func (i *Informer[T]) LastError() error {
	i.state.mu.Lock()
	defer i.state.mu.Unlock()
	return i.state.err
}

// ResourceVersion returns the resourceVersion up to which the informer has seen
// events; empty before it has synced.
func (i *Informer[T]) ResourceVersion() string {
	i.state.mu.Lock()
	defer i.state.mu.Unlock()
	return i.state.resourceVersion
}

// Disconnected returns a channel that gets something when a connection has ended or
// failed, for whatever reason: a server may have been another one before and after.
// Breaks that nobody has received yet are one. It is for one receiver.
func (i *Informer[T]) Disconnected() <-chan struct{} { return i.broken }

func (i *Informer[T]) disconnected() {
	select {
	case i.broken <- struct{}{}:
	default:
	}
}

func (i *Informer[T]) setResourceVersion(rv string) {
	i.state.mu.Lock()
	defer i.state.mu.Unlock()
	i.state.resourceVersion = rv
}

func (i *Informer[T]) setRunning(running bool) (was bool) {
	i.state.mu.Lock()
	defer i.state.mu.Unlock()
	was, i.state.running = i.state.running, running
	return was
}

func (i *Informer[T]) setError(err error) {
	i.state.mu.Lock()
	defer i.state.mu.Unlock()
	i.state.err = err
}

// stream follows a resource: it gets the initial state, on the watch itself
// where the server can, and then watches, resuming at the last resourceVersion
// it has seen. A new initial state is asked for only when the server no longer
// has the history.
type stream[T Object] struct {
	*Informer[T]

	// pages is set while the initial state has to be listed, because the server
	// has refused to send it on a watch, or did not complete it. The next time it
	// is asked again: it may just have been slow.
	pages    bool
	failures int
	// progress is set when a connection brought what the next one need not ask
	// for: a complete initial state, or an event after it.
	progress bool
}

// Run follows the resource until ctx is done and everything it started has
// ended. It fails only if the informer runs already.
func (i *Informer[T]) Run(ctx context.Context) error {
	if i.setRunning(true) {
		return fmt.Errorf("informer %s runs already: run it once", i.name)
	}
	defer i.setRunning(false)
	s := &stream[T]{Informer: i}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		s.progress = false
		err := s.connect(ctx)
		if ctx.Err() != nil {
			return nil
		}
		timer.Reset(s.ended(ctx, err))
	}
}

// connect makes one connection and follows it to its end.
func (s *stream[T]) connect(ctx context.Context) error {
	rv := s.ResourceVersion()
	if rv == "" && (s.pages || s.options.DisableWatchList) {
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
func (s *stream[T]) ended(ctx context.Context, err error) time.Duration {
	logger := klog.FromContext(ctx).WithValues("informer", s.name)
	s.disconnected()
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

func (s *stream[T]) listOptions() metav1.ListOptions {
	return metav1.ListOptions{
		LabelSelector: s.options.LabelSelector,
		FieldSelector: s.options.FieldSelector,
		ShardSelector: s.options.ShardSelector,
	}
}

// list gets the complete state in pages and returns its resourceVersion.
func (s *stream[T]) list(ctx context.Context) (string, error) {
	opts := s.listOptions()
	opts.Limit = pageSize
	seen := map[Key]struct{}{}
	for {
		page, err := s.source.list(ctx, opts)
		if err != nil && opts.Continue != "" && apierrors.IsResourceExpired(err) {
			// The pages took longer than the history reaches: in one go. What
			// they held may be gone by now.
			opts.Continue, opts.Limit = "", 0
			clear(seen)
			continue
		}
		if err != nil {
			return "", err
		}
		if err := meta.EachListItemWithAlloc(page, func(item runtime.Object) error { return s.put(ctx, item, seen) }); err != nil {
			return "", err
		}
		info, err := meta.ListAccessor(page)
		if err != nil {
			return "", fmt.Errorf("%w: %T is no list: %w", errWrongType, page, err)
		}
		if opts.Continue = info.GetContinue(); opts.Continue == "" {
			s.complete(ctx, seen, info.GetResourceVersion())
			return info.GetResourceVersion(), nil
		}
	}
}

// watch follows a watch from rv, or from the initial state if rv is empty.
func (s *stream[T]) watch(ctx context.Context, rv string) error {
	opts := s.listOptions()
	opts.ResourceVersion = rv
	opts.AllowWatchBookmarks = true
	timeout := int64((minWatch + rand.N(maxWatch-minWatch)).Seconds())
	opts.TimeoutSeconds = &timeout
	var seen map[Key]struct{}
	if rv == "" {
		seen = map[Key]struct{}{}
		sendInitialEvents := true
		opts.SendInitialEvents = &sendInitialEvents
		opts.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	w, err := s.source.watch(ctx, opts)
	if err != nil {
		return err
	}
	if rv != "" {
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
	return s.consume(ctx, w, seen)
}

// consume takes events until the watch ends. seen is not nil while the initial
// state is being sent.
func (s *stream[T]) consume(ctx context.Context, w watch.Interface, seen map[Key]struct{}) error {
	stalled := time.NewTimer(initialEventsTimeout)
	defer stalled.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-stalled.C:
			if seen != nil {
				return errInitialEvents
			}
		case event, open := <-w.ResultChan():
			if !open && seen != nil {
				return errEndedEarly
			}
			if !open {
				return nil
			}
			done, err := s.handle(ctx, event, seen)
			if err != nil {
				return err
			}
			switch {
			case done:
				seen = nil
			case seen != nil:
				stalled.Reset(initialEventsTimeout)
			default:
				s.progress = true
			}
		}
	}
}

// handle processes one event. done says that it ended the initial state.
func (s *stream[T]) handle(ctx context.Context, event watch.Event, seen map[Key]struct{}) (done bool, err error) {
	switch event.Type {
	case watch.Error:
		return false, apierrors.FromObject(event.Object)
	case watch.Added, watch.Modified:
		if err := s.put(ctx, event.Object, seen); err != nil {
			return false, err
		}
	case watch.Deleted:
		obj, ok := event.Object.(T)
		if !ok {
			return false, fmt.Errorf("%w: %T", errWrongType, event.Object)
		}
		s.remove(s.KeyOf(obj), &obj)
	case watch.Bookmark:
	default:
		return false, fmt.Errorf("%w: event of type %q", errWrongType, event.Type)
	}
	info, err := meta.Accessor(event.Object)
	if err != nil {
		return false, fmt.Errorf("%w: %T: %w", errWrongType, event.Object, err)
	}
	if seen == nil {
		s.setResourceVersion(info.GetResourceVersion())
		return false, nil
	}
	if event.Type == watch.Bookmark && info.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
		s.complete(ctx, seen, info.GetResourceVersion())
		return true, nil
	}
	return false, nil
}

// put stores an object that the server sent.
func (s *stream[T]) put(ctx context.Context, received runtime.Object, seen map[Key]struct{}) error {
	obj, ok := received.(T)
	if !ok {
		return fmt.Errorf("%w: %T", errWrongType, received)
	}
	key := s.KeyOf(obj)
	if s.options.Keep != nil && !s.options.Keep(obj) {
		s.remove(key, &obj)
		return nil
	}
	if seen != nil {
		seen[key] = struct{}{}
	}
	obj, err := s.prepare(obj)
	if err != nil {
		// One bad object must not stop the others.
		utilruntime.HandleErrorWithContext(ctx, err, "Dropped an object", "informer", s.name)
		return nil
	}
	s.upsert(key, obj)
	return nil
}

// complete ends the initial state: what the server did not send is gone.
func (s *stream[T]) complete(ctx context.Context, seen map[Key]struct{}, rv string) {
	s.prune(seen)
	s.pages, s.progress = false, true
	s.setResourceVersion(rv)
	s.setError(nil)
	s.current.Store(true)
	s.markSynced(ctx)
}

// findSetBack returns errSetBack if the server's data is older than rv, which
// the server has said to lie in the future: then the data was restored from a
// backup. Otherwise the replica that answered is behind the others and the
// informer has to wait for it, as it has to where the server cannot say.
func (s *stream[T]) findSetBack(ctx context.Context, rv string) error {
	opts := s.listOptions()
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
