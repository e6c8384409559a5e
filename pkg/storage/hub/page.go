package hub

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher/delegator"
	"k8s.io/apiserver/pkg/storage/cacher/metrics"
)

// ErrCompacted says that etcd has compacted the version of a list: etcd is to
// answer it, for the watch cache learns of a compaction seconds later.
var ErrCompacted = errors.New("the resource version is compacted")

// at returns the objects as they were at a version, if they are known.
func (h *Hub) at(version uint64) *snapshot {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.kept.get(version, time.Now()); s != nil {
		return s
	}
	if !h.synced || version < h.lastEvent || version > h.version {
		return nil
	}
	return h.objects.snapshot()
}

// keep keeps a snapshot for the pages that follow.
func (h *Hub) keep(version uint64, s *snapshot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept.add(version, s, time.Now(), h.written)
}

// latest returns the objects as they are, and the version.
func (h *Hub) latest() (*snapshot, uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.synced {
		return nil, 0
	}
	return h.objects.snapshot(), h.version
}

// List serves a list, whole or a page. It returns false where etcd has to: for
// one object, and for versions that the hub does not have.
func (h *Hub) List(ctx context.Context, key string, in Claims, opts storage.ListOptions, list runtime.Object) (bool, error) {
	if !opts.Recursive || !delegator.ConsistentReadSupported() {
		return false, nil
	}
	if opts.ResourceVersion == "0" && opts.Predicate.Continue == "" {
		opts.Predicate.Limit = 0 // any state will do, and is served whole
	}
	return h.list(ctx, key, in, opts, list)
}

// Page serves a page of a list. It returns false where the watch cache, or
// etcd, has to: for lists that are no pages, and for versions that the hub does
// not have.
func (h *Hub) Page(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) (bool, error) {
	pred := &opts.Predicate
	if !opts.Recursive || pred.Limit <= 0 && pred.Continue == "" || !delegator.ConsistentReadSupported() {
		return false, nil
	}
	if opts.ResourceVersion == "0" && pred.Continue == "" {
		return false, nil // served whole
	}
	return h.list(ctx, key, Claims{}, opts, list)
}

func (h *Hub) list(ctx context.Context, key string, in Claims, opts storage.ListOptions, list runtime.Object) (bool, error) {
	at, start, err := storage.ValidateListOptions(key, h.cfg.Versioner, opts)
	if err != nil {
		return true, err
	}
	if start == "" {
		start = key
	}
	if err := h.waitForClaims(ctx, in); err != nil {
		return true, err
	}
	objects, version, err := h.read(ctx, at, opts)
	if err != nil || objects == nil {
		return err != nil, err
	}
	view, err := h.viewAt(ctx, in, version)
	if err != nil {
		return true, err
	}
	return true, h.fill(list, page{objects: objects, view: view, version: version, key: key, start: start, opts: opts})
}

// read returns the objects that a list is to show. No objects and no error mean
// that the watch cache is to serve the list.
func (h *Hub) read(ctx context.Context, at int64, opts storage.ListOptions) (*snapshot, uint64, error) {
	if at > 0 {
		version := uint64(at)
		if compacted := h.cfg.CompactRevision(); compacted > at {
			return nil, 0, ErrCompacted
		}
		if h.ahead(version) {
			return nil, 0, nil
		}
		return h.at(version), version, nil
	}
	want := opts.ResourceVersion
	if want == "0" && opts.Predicate.Continue != "" {
		want = "" // a list that goes on
	}
	objects, version, err := h.fresh(ctx, want)
	if want == "" && storage.IsTooLargeResourceVersion(err) || apierrors.IsTooManyRequests(err) {
		return nil, 0, nil // etcd can tell
	}
	return objects, version, err
}

// fresh returns the objects as they are at a version that is not older than the
// one asked for, and that version. Without one, that of etcd is.
func (h *Hub) fresh(ctx context.Context, resourceVersion string) (*snapshot, uint64, error) {
	version, err := h.cfg.Versioner.ParseResourceVersion(resourceVersion)
	if err == nil && resourceVersion == "" {
		version, err = h.cfg.CurrentVersion(ctx)
	}
	if err != nil {
		return nil, 0, err
	}
	for {
		if err := h.WaitFresh(ctx, version); err != nil {
			return nil, 0, err
		}
		if objects, at := h.latest(); objects != nil {
			return objects, at, nil
		}
	}
}

// ahead reports whether a version is in the future.
func (h *Hub) ahead(version uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return version > h.version
}

// page is a part of a list.
type page struct {
	objects *snapshot
	// view is what it is restricted to, if not nil.
	view    *claimView
	version uint64
	// key is the prefix of the list; start is where the page starts.
	key, start string
	opts       storage.ListOptions
}

// fill puts the page into a list.
func (h *Hub) fill(list runtime.Object, p page) error {
	pred := &p.opts.Predicate
	items, err := meta.GetItemsPtr(list)
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	target, err := conversion.EnforcePtr(items)
	if err != nil || target.Kind() != reflect.Slice {
		return fmt.Errorf("list has items of kind %s: %w", target.Kind(), err)
	}
	selected, last, more, err := p.selectItems()
	if err != nil {
		return err
	}
	target.Set(reflect.MakeSlice(target.Type(), len(selected), len(selected)))
	for i, obj := range selected {
		target.Index(i).Set(reflect.ValueOf(obj).Elem())
	}
	count := 0
	if more && pred.Empty() {
		count = p.objects.rank(endOf(p.key)) - p.objects.rank(p.start)
	}
	token, remaining, err := storage.PrepareContinueToken(last, p.key, int64(p.version), int64(count), more, p.opts) //nolint:gosec // versions are etcd's, which are int64
	if err != nil {
		return err
	}
	if p.view != nil {
		remaining = nil // would tell of what is not shown
	}
	if err := h.cfg.Versioner.UpdateList(list, p.version, token, remaining); err != nil {
		return err
	}
	pred.SetShardInfoOnList(list)
	if token != "" {
		h.keep(p.version, p.objects)
	}
	metrics.RecordListCacheMetrics(h.cfg.Resource, "", len(selected), len(selected))
	return nil
}

// selectItems returns the objects of the page, the key of the last, and whether
// anything follows.
func (p page) selectItems() (selected []runtime.Object, last string, more bool, err error) {
	pred := &p.opts.Predicate
	all := pred.Empty()
	if pred.Limit > 0 {
		selected = make([]runtime.Object, 0, min(pred.Limit, 1000))
	}
	p.view.walk(p.objects, p.key, p.start, func(it item) bool {
		if pred.Limit > 0 && int64(len(selected)) >= pred.Limit {
			more = true
			return false
		}
		matches := all
		if !all {
			if matches, err = pred.Matches(it.obj); err != nil {
				err = fmt.Errorf("cannot match %s: %w", it.key, err)
				return false
			}
		}
		if matches {
			selected, last = append(selected, it.obj), it.key
		}
		return true
	})
	return selected, last, more, err
}

// State is the objects below a key as they were at a version.
type State struct {
	Version uint64

	hub *Hub
	// objects are all those of the resource, own those below the key, if that is not
	// the root: others change while a slow reader is told what there was, and what
	// they were before must not be kept for it.
	objects *snapshot
	own     []item
	key     string
	pred    storage.SelectionPredicate
}

// State returns what a watch starts with: what is there at resource version 0,
// else as new as the version or, without one, as etcd.
func (h *Hub) State(ctx context.Context, key string, in Claims, opts storage.ListOptions) (*State, error) {
	if err := h.waitForClaims(ctx, in); err != nil {
		return nil, err
	}
	objects, version, err := h.fresh(ctx, opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	s := &State{hub: h, Version: version, key: key, pred: opts.Predicate}
	view, err := h.viewAt(ctx, in, version)
	if err != nil {
		return nil, err
	}
	if key == h.cfg.Root && view == nil {
		s.objects = objects
		return s, nil
	}
	view.walk(objects, key, key, func(it item) bool {
		s.own = append(s.own, it)
		return true
	})
	return s, nil
}

// Each yields the objects that the predicate selects, until yield returns false.
// They are as Unwrap says: nobody may change them. Each is called once.
func (s *State) Each(yield func(runtime.Object) bool) error {
	var err error
	all := s.pred.Empty()
	visit := func(it item) bool {
		if !inScope(s.key, it.key) {
			return false
		}
		matches := all
		if !all {
			if matches, err = s.pred.Matches(it.obj); err != nil {
				err = fmt.Errorf("cannot match %s: %w", it.key, err)
				return false
			}
		}
		return !matches || yield(Share(s.hub.cfg.shown(it.obj)))
	}
	if s.objects != nil {
		s.objects.from(s.key, visit)
		return err
	}
	for i := range s.own {
		it := s.own[i]
		s.own[i] = item{} // sent, and not kept any longer
		if !visit(it) {
			break
		}
	}
	return err
}
