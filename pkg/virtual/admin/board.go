package admin

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shardplane/shardplane/pkg/client"
)

// history is how many changes are kept for watches that resume.
const history = 1000

// shards is what is served.
var shards = corev1alpha1.Resource("shards")

// board has the Shards that are known here, with resourceVersions of its own: they come from
// root or from a cache server, whose versions a client of this shard cannot go on from. Those of
// two shards, or of two lives of one, are never the same.
type board struct {
	rest.TableConvertor

	known  func() bool
	mu     sync.Mutex
	shards map[string]*corev1alpha1.Shard
	// version is that of the last change, and events has those after the version oldest.
	version, oldest int64
	events          []event
	// changed is closed, and made anew, with each change.
	changed chan struct{}
}

// event is a change of a Shard; one of both is nil when it comes or goes.
type event struct {
	version  int64
	old, obj *corev1alpha1.Shard
}

func newBoard(informer *client.Informer[*corev1alpha1.Shard]) *board {
	b := &board{
		TableConvertor: rest.NewDefaultTableConvertor(shards), known: informer.HasSynced,
		shards: map[string]*corev1alpha1.Shard{}, changed: make(chan struct{}),
	}
	b.version = time.Now().UnixNano()
	b.oldest = b.version
	informer.AddEventHandler(client.Handler[*corev1alpha1.Shard]{
		OnAdd:    func(obj *corev1alpha1.Shard, _ bool) { b.set(obj.Name, obj) },
		OnUpdate: func(_, obj *corev1alpha1.Shard) { b.set(obj.Name, obj) },
		OnDelete: func(last *corev1alpha1.Shard, _ bool) { b.set(last.Name, nil) },
	})
	return b
}

// set notes what a Shard is now.
func (b *board) set(name string, obj *corev1alpha1.Shard) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.version++
	e := event{version: b.version, old: b.shards[name]}
	if obj == nil {
		delete(b.shards, name)
	} else {
		e.obj = obj.DeepCopy()
		e.obj.ResourceVersion = strconv.FormatInt(b.version, 10)
		b.shards[name] = e.obj
	}
	b.events = append(b.events, e)
	if more := len(b.events) - history; more > 0 {
		b.oldest = b.events[more-1].version
		b.events = slices.Clone(b.events[more:])
	}
	close(b.changed)
	b.changed = make(chan struct{})
}

// New implements rest.Storage.
func (*board) New() runtime.Object { return &corev1alpha1.Shard{} }

// NewList implements rest.Lister.
func (*board) NewList() runtime.Object { return &corev1alpha1.ShardList{} }

// Destroy implements rest.Storage.
func (*board) Destroy() {}

var errUnknown = apierrors.NewServiceUnavailable("this shard does not know the Shards yet: it has read them neither from root nor from a cache server")

// Get implements rest.Getter.
func (b *board) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if !b.known() {
		return nil, errUnknown
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if obj := b.shards[name]; obj != nil {
		return obj.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(shards, name)
}

// List implements rest.Lister. It is always of the newest that there is.
func (b *board) List(_ context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	if !b.known() {
		return nil, errUnknown
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	list := &corev1alpha1.ShardList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatInt(b.version, 10)}, Items: []corev1alpha1.Shard{}}
	for _, obj := range b.selected(options) {
		list.Items = append(list.Items, *obj.DeepCopy())
	}
	return list, nil
}

// selected returns the Shards that options select, by name, under the lock.
func (b *board) selected(options *metainternalversion.ListOptions) []*corev1alpha1.Shard {
	var all []*corev1alpha1.Shard
	for _, name := range slices.Sorted(maps.Keys(b.shards)) {
		if selects(options, b.shards[name]) {
			all = append(all, b.shards[name])
		}
	}
	return all
}

func selects(options *metainternalversion.ListOptions, obj *corev1alpha1.Shard) bool {
	return obj != nil &&
		(options.LabelSelector == nil || options.LabelSelector.Matches(labels.Set(obj.Labels))) &&
		(options.FieldSelector == nil || options.FieldSelector.Matches(fields.Set{"metadata.name": obj.Name}))
}

// Watch implements rest.Watcher.
func (b *board) Watch(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error) {
	if !b.known() {
		return nil, errUnknown
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	complete := options.SendInitialEvents != nil && *options.SendInitialEvents
	var initial []watch.Event
	from := b.version
	if given := options.ResourceVersion; complete || given == "" || given == "0" {
		for _, obj := range b.selected(options) {
			initial = append(initial, watch.Event{Type: watch.Added, Object: obj.DeepCopy()})
		}
	} else {
		var err error
		if from, err = strconv.ParseInt(given, 10, 64); err != nil || from < b.oldest || from > b.version {
			return nil, apierrors.NewResourceExpired("the resource version is not one that this shard has given, or it is too old")
		}
	}
	if complete && options.AllowWatchBookmarks {
		end := &corev1alpha1.Shard{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: strconv.FormatInt(b.version, 10), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}}
		initial = append(initial, watch.Event{Type: watch.Bookmark, Object: end})
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &follower{board: b, options: options, from: from, events: make(chan watch.Event), cancel: cancel}
	go w.run(ctx, initial)
	return w, nil
}

// since returns the changes after a version, unless these are not known any more, and what is
// closed when there are others.
func (b *board) since(version int64) (events []event, known bool, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if version < b.oldest {
		return nil, false, nil
	}
	at, _ := slices.BinarySearchFunc(b.events, version+1, func(e event, version int64) int { return int(e.version - version) })
	return slices.Clone(b.events[at:]), true, b.changed
}

// follower is a watch.
type follower struct {
	board   *board
	options *metainternalversion.ListOptions
	from    int64
	events  chan watch.Event
	cancel  context.CancelFunc
}

// Stop implements watch.Interface.
func (f *follower) Stop() { f.cancel() }

// ResultChan implements watch.Interface.
func (f *follower) ResultChan() <-chan watch.Event { return f.events }

func (f *follower) run(ctx context.Context, initial []watch.Event) {
	defer close(f.events)
	defer f.cancel()
	for _, e := range initial {
		if !f.send(ctx, e) {
			return
		}
	}
	for {
		events, known, changed := f.board.since(f.from)
		if !known {
			expired := apierrors.NewResourceExpired("the watch is too slow").Status()
			f.send(ctx, watch.Event{Type: watch.Error, Object: &expired})
			return
		}
		for _, e := range events {
			f.from = e.version
			if told := f.told(e); told.Object != nil && !f.send(ctx, told) {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// told returns what a change is for who selects, if anything.
func (f *follower) told(e event) watch.Event {
	before, after := selects(f.options, e.old), selects(f.options, e.obj)
	switch {
	case before && after:
		return watch.Event{Type: watch.Modified, Object: e.obj.DeepCopy()}
	case after:
		return watch.Event{Type: watch.Added, Object: e.obj.DeepCopy()}
	case before:
		last := e.old.DeepCopy()
		last.ResourceVersion = strconv.FormatInt(e.version, 10)
		return watch.Event{Type: watch.Deleted, Object: last}
	default:
		return watch.Event{}
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
