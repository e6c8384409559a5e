package board

import (
	"context"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
)

// Content determines the objects that a reader returns.
type Content struct {
	Resource schema.GroupResource
	// Show converts an object, which it must not change. For nil it returns an object without content.
	Show func(obj client.Object, version string) client.Object
	// Fields returns the fields for field selectors.
	Fields func(obj client.Object) fields.Set
	// List returns a list of converted objects.
	List func(meta metav1.ListMeta, shown []client.Object) runtime.Object
}

// Reader serves the objects of a board to the handlers of k8s.io/apiserver.
type Reader struct {
	rest.TableConvertor

	content Content
	board   *Board
}

var (
	_ rest.Getter  = &Reader{}
	_ rest.Lister  = &Reader{}
	_ rest.Watcher = &Reader{}
)

// Read returns a reader of the board.
func (b *Board) Read(c Content) *Reader {
	return &Reader{TableConvertor: rest.NewDefaultTableConvertor(c.Resource), content: c, board: b}
}

// New implements rest.Storage.
func (r *Reader) New() runtime.Object { return r.content.Show(nil, "") }

// NewList implements rest.Lister.
func (r *Reader) NewList() runtime.Object { return r.content.List(metav1.ListMeta{}, nil) }

// Destroy implements rest.Storage.
func (*Reader) Destroy() {}

// Get implements rest.Getter. It returns the newest object for any version.
func (r *Reader) Get(_ context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	if err := r.board.synced(); err != nil {
		return nil, err
	}
	if options != nil {
		if err := r.checkVersion(options.ResourceVersion); err != nil {
			return nil, err
		}
	}
	if e := r.board.get(name); e.Object != nil {
		return r.show(e), nil
	}
	return nil, apierrors.NewNotFound(r.content.Resource, name)
}

func (r *Reader) show(e entry) client.Object {
	return r.content.Show(e.Object, strconv.FormatInt(e.version, 10))
}

func (r *Reader) checkVersion(version string) error {
	wanted, err := parse(version)
	if now := r.board.newest(); err == nil && wanted > now {
		err = storage.NewTooLargeResourceVersionError(uint64(wanted), uint64(now), 1) //nolint:gosec // they are times
	}
	return err
}

// parse parses a resourceVersion of a client. It returns 0 if it is empty.
func parse(version string) (int64, error) {
	if version == "" {
		return 0, nil
	}
	wanted, err := strconv.ParseInt(version, 10, 64)
	if err != nil || wanted < 0 {
		return 0, apierrors.NewBadRequest("invalid resourceVersion " + strconv.Quote(version))
	}
	return wanted, nil
}

type selection struct {
	labels labels.Selector
	fields fields.Selector
	shards sharding.Selector
	of     func(client.Object) fields.Set
}

func (r *Reader) selection(ctx context.Context, options *metainternalversion.ListOptions) selection {
	return selection{options.LabelSelector, options.FieldSelector, request.ShardSelectorFrom(ctx), r.content.Fields}
}

func (s *selection) all() bool {
	return (s.labels == nil || s.labels.Empty()) && (s.fields == nil || s.fields.Empty()) && (s.shards == nil || s.shards.Empty())
}

// has reports whether there is an object and it is selected.
func (s *selection) has(e entry) bool {
	switch {
	case e.Object == nil,
		s.labels != nil && !s.labels.Matches(labels.Set(e.GetLabels())),
		s.fields != nil && !s.fields.Empty() && !s.fields.Matches(s.of(e.Object)):
		return false
	case s.shards == nil || s.shards.Empty():
		return true
	}
	matches, err := s.shards.Matches(e.Object)
	return err == nil && matches
}

func expired(subject string) *apierrors.StatusError {
	return apierrors.NewResourceExpired(subject + " is too old, or of another server: list again")
}

// List implements rest.Lister.
func (r *Reader) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	if err := r.board.synced(); err != nil {
		return nil, err
	}
	version, from, err := r.start(options)
	if err != nil {
		return nil, err
	}
	selected := r.selection(ctx, options)
	var page []entry
	remaining, next := int64(0), ""
	available := r.board.at(version, from, func(name string, e entry) bool {
		switch {
		case !selected.has(e):
		case options.Limit <= 0 || int64(len(page)) < options.Limit:
			page = append(page, e)
		case next == "":
			next, remaining = name, 1
		default:
			remaining++
		}
		return next == "" || selected.all()
	})
	if !available {
		return nil, expired("the version of the list")
	}
	meta := metav1.ListMeta{ResourceVersion: strconv.FormatInt(version, 10)}
	if next != "" {
		if meta.Continue, err = storage.EncodeContinue(keyPrefix+next, keyPrefix, version); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		if selected.all() {
			meta.RemainingItemCount = &remaining
		}
	}
	shown := make([]client.Object, 0, len(page))
	for _, e := range page {
		shown = append(shown, r.show(e))
	}
	return r.content.List(meta, shown), nil
}

// keyPrefix precedes names in continue tokens.
const keyPrefix = "/"

// start returns the version of a list and the name at which it begins.
func (r *Reader) start(options *metainternalversion.ListOptions) (version int64, from string, err error) {
	if options.Continue != "" {
		key, at, err := storage.DecodeContinue(options.Continue, keyPrefix)
		if err != nil {
			return 0, "", apierrors.NewBadRequest(err.Error())
		}
		return at, key[len(keyPrefix):], nil
	}
	wanted, err := parse(options.ResourceVersion)
	switch {
	case err != nil:
		return 0, "", err
	case options.ResourceVersionMatch == metav1.ResourceVersionMatchExact:
		return wanted, "", nil
	}
	return r.board.newest(), "", r.checkVersion(options.ResourceVersion)
}

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
		w.from = r.board.newest()
		if !r.board.at(w.from, "", func(_ string, e entry) bool {
			if w.selected.has(e) {
				initial = append(initial, e)
			}
			return true
		}) {
			return nil, expired("the resourceVersion")
		}
	} else if _, _, ok, _ := r.board.since(from); !ok {
		return nil, expired("the resourceVersion")
	}
	ctx, w.cancel = context.WithCancel(ctx)
	go w.run(ctx, initial, complete && options.AllowWatchBookmarks)
	return w, nil
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
	// A watch that waits for changes must not occupy a seat among the executing requests.
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

func (f *follower) expire(ctx context.Context) {
	status := expired("the watch").Status()
	status.Kind, status.APIVersion = "Status", "v1"
	f.send(ctx, watch.Event{Type: watch.Error, Object: &status})
}

func (f *follower) bookmark(ctx context.Context, annotations map[string]string) bool {
	object := f.content.Show(nil, strconv.FormatInt(f.from, 10))
	if annotations != nil {
		object.SetAnnotations(annotations)
	}
	return f.send(ctx, watch.Event{Type: watch.Bookmark, Object: object})
}

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
