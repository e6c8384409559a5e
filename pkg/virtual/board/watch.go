package board

import (
	"context"
	"errors"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
)

const bookmarkInterval = time.Minute

// Watch implements rest.Watcher.
func (r *Reader) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	if err := r.board.synced(); err != nil {
		return nil, err
	}
	from, err := parse(options.ResourceVersion)
	if err != nil {
		return nil, err
	}
	w := &follower{Reader: r, selected: r.selection(ctx, options), from: from, bookmarks: options.AllowWatchBookmarks, events: make(chan watch.Event)}
	complete := options.SendInitialEvents != nil && *options.SendInitialEvents
	var initial []entry
	if complete || from == 0 {
		if err := r.checkVersion(options.ResourceVersion); err != nil {
			return nil, err
		}
		if initial, w.from, err = r.initial(&w.selected); err != nil {
			return nil, err
		}
	} else if _, _, ok, _ := r.board.since(from); !ok {
		return nil, expired("the resourceVersion")
	}
	ctx, w.cancel = context.WithCancel(ctx)
	go w.run(ctx, initial, complete && options.AllowWatchBookmarks)
	return w, nil
}

// initial returns the selected objects and their version.
func (r *Reader) initial(selected *selection) (all []entry, version int64, err error) {
	for range 10 { // the version may expire between the two calls
		version, all = r.board.newest(), nil
		if r.board.at(version, "", func(_ string, e entry) bool {
			if selected.has(e) {
				all = append(all, e)
			}
			return true
		}) {
			return all, version, nil
		}
	}
	return nil, 0, expired("the resourceVersion")
}

// follower implements watch.Interface.
type follower struct {
	*Reader

	selected  selection
	from      int64
	bookmarks bool
	events    chan watch.Event
	cancel    context.CancelFunc
}

// Stop implements watch.Interface.
func (f *follower) Stop() { f.cancel() }

// ResultChan implements watch.Interface.
func (f *follower) ResultChan() <-chan watch.Event { return f.events }

func (f *follower) run(ctx context.Context, initial []entry, initialBookmark bool) {
	defer close(f.events)
	defer f.cancel()
	for _, e := range initial {
		if !f.send(ctx, watch.Event{Type: watch.Added, Object: f.show(e)}) {
			return
		}
	}
	if initialBookmark && !f.bookmark(ctx, map[string]string{metav1.InitialEventsAnnotationKey: "true"}) {
		return
	}
	// From now on the watch waits for changes, and must not occupy a seat among the executing requests.
	utilflowcontrol.WatchInitialized(ctx)
	ticker := time.NewTicker(bookmarkInterval)
	defer ticker.Stop()
	for {
		changes, newest, ok, changed := f.board.since(f.from)
		if !ok {
			if !f.board.isClosed() {
				f.expire(ctx)
			}
			return
		}
		for _, c := range changes {
			if !f.sendChange(ctx, c) {
				return
			}
		}
		f.from = newest
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-ticker.C:
			if f.bookmarks && !f.bookmark(ctx, nil) {
				return
			}
		}
	}
}

// expire sends the error with which the watch ends.
func (f *follower) expire(ctx context.Context) {
	status := apierrors.APIStatus(nil)
	if errors.As(expired("the watch"), &status) {
		s := status.Status()
		s.Kind, s.APIVersion = "Status", "v1"
		f.send(ctx, watch.Event{Type: watch.Error, Object: &s})
	}
}

func (f *follower) bookmark(ctx context.Context, annotations map[string]string) bool {
	object := f.content.Show(nil, strconv.FormatInt(f.from, 10))
	if annotations != nil {
		object.SetAnnotations(annotations)
	}
	return f.send(ctx, watch.Event{Type: watch.Bookmark, Object: object})
}

// sendChange sends the event of a change, if it concerns selected objects.
func (f *follower) sendChange(ctx context.Context, c change) bool {
	switch before, after := f.selected.has(c.old), f.selected.has(c.now); {
	case before && after:
		return f.send(ctx, watch.Event{Type: watch.Modified, Object: f.show(c.now)})
	case after:
		return f.send(ctx, watch.Event{Type: watch.Added, Object: f.show(c.now)})
	case before:
		return f.send(ctx, watch.Event{Type: watch.Deleted, Object: f.show(entry{c.old.Object, c.version})})
	default:
		return true
	}
}

func (f *follower) send(ctx context.Context, e watch.Event) bool {
	select {
	case f.events <- e:
		return true
	case <-ctx.Done():
		return false
	}
}
