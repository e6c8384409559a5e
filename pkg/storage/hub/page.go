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

// ErrCompacted is returned if the version of a list is compacted. The watch cache detects this seconds later than etcd.
var ErrCompacted = errors.New("the resource version is compacted")

// at returns the objects at a version, or nil if they are not available.
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

func (h *Hub) latest() (*snapshot, uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.synced {
		return nil, 0
	}
	return h.objects.snapshot(), h.version
}

// List serves a list or a page. It returns false if another layer must serve the request: for a single object, for
// versions that the hub does not have, and, if onlyPages is set, for full lists.
func (h *Hub) List(ctx context.Context, key string, in Claims, opts storage.ListOptions, onlyPages bool, list runtime.Object) (bool, error) {
	pred := &opts.Predicate
	full := pred.Continue == "" && (pred.Limit <= 0 || opts.ResourceVersion == "0") // as upstream
	if !opts.Recursive || full && onlyPages || !delegator.ConsistentReadSupported() {
		return false, nil
	}
	if full {
		pred.Limit = 0
	}
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
	restriction, err := h.restrictionAt(ctx, in, version)
	if err != nil {
		return true, err
	}
	return true, h.fill(list, page{objects: objects, restriction: restriction, version: version, key: key, start: start, opts: opts})
}

// read returns the objects for a list, or neither objects nor an error if the watch cache must serve it.
func (h *Hub) read(ctx context.Context, at int64, opts storage.ListOptions) (*snapshot, uint64, error) {
	if at > 0 {
		version := uint64(at)
		if compacted := h.cfg.CompactRevision(); compacted > at {
			return nil, 0, ErrCompacted
		}
		return h.at(version), version, nil
	}
	want := opts.ResourceVersion
	if want == "0" && opts.Predicate.Continue != "" {
		want = "" // a continued list
	}
	objects, version, err := h.fresh(ctx, want)
	if want == "" && storage.IsTooLargeResourceVersion(err) || apierrors.IsTooManyRequests(err) {
		return nil, 0, nil // etcd can serve it
	}
	return objects, version, err
}

// fresh returns the objects and their version: at least the requested one or, if that is empty, etcd's current one.
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

type page struct {
	objects *snapshot
	// restriction restricts the page if it is not nil.
	restriction *claimRestriction
	version     uint64
	// key is the prefix of the list; start is the first key of the page.
	key, start string
	opts       storage.ListOptions
}

// fill stores the page in a list.
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
	if p.restriction != nil {
		remaining = nil // it would include objects that are not claimed
	}
	if err := h.cfg.Versioner.UpdateList(list, p.version, token, remaining); err != nil {
		return err
	}
	pred.SetShardInfoOnList(list)
	if token != "" { // the following pages need the snapshot
		h.mu.Lock()
		h.kept.add(p.version, p.objects, time.Now(), h.written)
		h.mu.Unlock()
	}
	metrics.RecordListCacheMetrics(h.cfg.Resource, "", len(selected), len(selected))
	return nil
}

// selectItems returns the objects of the page, the key of the last, and whether more follow.
func (p page) selectItems() (selected []runtime.Object, last string, more bool, err error) {
	pred := &p.opts.Predicate
	selects := selectorOf(pred)
	if pred.Limit > 0 {
		selected = make([]runtime.Object, 0, min(pred.Limit, 1000))
	}
	p.restriction.walk(p.objects, p.key, p.start, func(it item) bool {
		if pred.Limit > 0 && int64(len(selected)) >= pred.Limit {
			more = true
			return false
		}
		var matches bool
		if matches, err = selects(it); matches {
			selected, last = append(selected, it.obj), it.key
		}
		return err == nil
	})
	return selected, last, more, err
}

func selectorOf(pred *storage.SelectionPredicate) func(item) (bool, error) {
	if pred.Empty() { // faster than Matches, which reads a feature gate
		return func(item) (bool, error) { return true, nil }
	}
	return func(it item) (bool, error) {
		matches, err := pred.Matches(it.obj)
		if err != nil {
			return false, fmt.Errorf("cannot match %s: %w", it.key, err)
		}
		return matches, nil
	}
}

// State is the objects below a key at a version.
type State struct {
	Version uint64

	hub *Hub
	// objects are all objects if the key is the root, otherwise own are the objects below the key. A
	// snapshot of all objects would keep old states of other objects in memory for a slow reader.
	objects *snapshot
	own     []item
	key     string
	pred    storage.SelectionPredicate
}

// State returns the initial objects of a watch: as recent as etcd, or at the requested version or later.
func (h *Hub) State(ctx context.Context, key string, in Claims, opts storage.ListOptions) (*State, error) {
	if err := h.waitForClaims(ctx, in); err != nil {
		return nil, err
	}
	objects, version, err := h.fresh(ctx, opts.ResourceVersion)
	if err != nil {
		return nil, err
	}
	s := &State{hub: h, Version: version, key: key, pred: opts.Predicate}
	restriction, err := h.restrictionAt(ctx, in, version)
	if err != nil {
		return nil, err
	}
	if key == h.cfg.Root && restriction == nil {
		s.objects = objects
		return s, nil
	}
	restriction.walk(objects, key, key, func(it item) bool {
		s.own = append(s.own, it)
		return true
	})
	return s, nil
}

// Each yields the selected objects until yield returns false, at most once. They must not be modified, see Unwrap.
func (s *State) Each(yield func(runtime.Object) bool) error {
	var err error
	selects := selectorOf(&s.pred)
	visit := func(it item) bool {
		if !inScope(s.key, it.key) {
			return false
		}
		var matches bool
		matches, err = selects(it)
		return err == nil && (!matches || yield(Share(s.hub.cfg.Shown(it.obj))))
	}
	if s.objects != nil {
		s.objects.from(s.key, visit)
		return err
	}
	for i := range s.own {
		it := s.own[i]
		s.own[i] = item{} // release it
		if !visit(it) {
			break
		}
	}
	return err
}
