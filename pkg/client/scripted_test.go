package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/hashrange"
)

var configMaps = DefineResource[corev1.ConfigMap, corev1.ConfigMapList](corev1.SchemeGroupVersion, "configmaps", WithProtobuf())

type fault string

const (
	unavailable fault = "unavailable" // 503
	tooMany     fault = "too many"    // 429 with Retry-After
	expired     fault = "expired"     // 410, also within a list or a stream
	lagging     fault = "lagging"     // 504 for a resourceVersion that exists
	refused     fault = "refused"     // 422 for initial events
	slow        fault = "slow"        // the initial events stop
	cut         fault = "cut"         // the initial events end early
)

var faults = []fault{unavailable, tooMany, expired, lagging, refused, slow, cut}

// scripted is the server of one informer: a model of a watch cache whose every response may be a fault. It must be
// used in a bubble.
type scripted struct {
	mu      sync.Mutex
	factory *Factory
	next    func() fault
	between func()

	revision, compacted int64
	objects             map[Key]*corev1.ConfigMap
	history             []record
	watches             []*scriptedWatch
	pages               map[string]*corev1.ConfigMapList

	shards sharding

	// lists, initial and resumed count requests: lists (without continued pages and probes), watches with initial
	// events, and others.
	lists, initial, resumed int
	registered              int
}

type sharding string

const (
	honours sharding = "honours" // and reports it
	silent  sharding = "silent"  // honors them without reporting it
	ignores sharding = "ignores"
	fails   sharding = "fails"   // 500
	invalid sharding = "invalid" // 400
	narrows sharding = "narrows" // to a subset of the request, and reports it
	garbles sharding = "garbles" // like narrows, with an invalid report
	unnamed sharding = "unnamed" // like narrows, without a report in lists
)

func (s *scripted) part(opts metav1.ListOptions) (selects func(*corev1.ConfigMap) bool, selector string, err error) {
	all := func(*corev1.ConfigMap) bool { return true }
	if opts.ShardSelector == "" || s.shards == "" || s.shards == ignores {
		return all, "", nil
	}
	if s.shards == fails {
		return nil, "", apierrors.NewInternalError(errors.New("unknown field object.metadata.cluster"))
	}
	ranges, err := ParseRanges(opts.ShardSelector)
	if err != nil || s.shards == invalid {
		return nil, "", apierrors.NewBadRequest(fmt.Sprint("invalid shardSelector: ", err))
	}
	if s.shards == narrows || s.shards == garbles || s.shards == unnamed {
		ranges.intervals = []Range{{First: ranges.intervals[0].First, Last: ranges.intervals[0].First + 1<<60}}
	}
	if s.shards == silent {
		return func(obj *corev1.ConfigMap) bool { return ranges.Contains(obj) }, "", nil
	}
	selector = ranges.String()
	switch s.shards {
	case garbles:
		selector = "shardRange(object.metadata.cluster)"
	case unnamed:
		selector = ""
	default:
	}
	return func(obj *corev1.ConfigMap) bool { return ranges.Contains(obj) }, selector, nil
}

type record struct {
	revision int64
	watch.Event
}

type scriptedWatch struct {
	server  *scripted
	events  chan watch.Event
	closed  bool
	selects func(*corev1.ConfigMap) bool
}

func newScripted() *scripted {
	return &scripted{
		revision: 100, compacted: 100, next: func() fault { return "" }, between: func() {},
		objects: map[Key]*corev1.ConfigMap{}, pages: map[string]*corev1.ConfigMapList{},
	}
}

func (s *scripted) informer(options InformerOptions[*corev1.ConfigMap]) *Informer[*corev1.ConfigMap] {
	factory := s.factory
	if factory == nil {
		var err error
		if factory, err = NewFactory(&rest.Config{Host: "https://127.0.0.1:1"}); err != nil {
			panic(err)
		}
	}
	i, err := newInformer(factory.Wildcard(), configMaps.GroupVersionResource, options, func(Scope) (listerWatcher, error) {
		return listerWatcher{list: s.list, watch: s.watch}, nil
	})
	if err != nil {
		panic(err)
	}
	return i
}

func scriptedKey(i int) Key {
	return Key{Cluster: logicalcluster.Name(fmt.Sprintf("c%d", i%3)), Namespace: "default", Name: fmt.Sprintf("x%02d", i)}
}

func (s *scripted) put(key Key, content string, edit ...func(*corev1.ConfigMap)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision++
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: key.Namespace, Name: key.Name, UID: types.UID(fmt.Sprintf("uid-%d", s.revision)), ResourceVersion: strconv.FormatInt(s.revision, 10),
		Annotations:       map[string]string{logicalcluster.AnnotationKey: key.Cluster.String()},
		CreationTimestamp: metav1.Unix(s.revision, 0),
	}, Data: map[string]string{"content": content}}
	if key.Shard != "" {
		obj.Annotations[request.ShardAnnotation] = key.Shard
	}
	kind := watch.Added
	if old, ok := s.objects[key]; ok {
		obj.UID, obj.CreationTimestamp, kind = old.UID, old.CreationTimestamp, watch.Modified
	}
	for _, f := range edit {
		f(obj)
	}
	s.objects[key] = obj
	s.notify(watch.Event{Type: kind, Object: obj})
}

func (s *scripted) remove(key Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, ok := s.objects[key]
	if !ok {
		return
	}
	s.revision++
	delete(s.objects, key)
	final := old.DeepCopy()
	final.ResourceVersion = strconv.FormatInt(s.revision, 10)
	s.notify(watch.Event{Type: watch.Deleted, Object: final})
}

func (s *scripted) notify(event watch.Event) {
	s.history = append(s.history, record{s.revision, event})
	for _, w := range s.watches {
		w.send(event)
	}
}

func (s *scripted) end(err *apierrors.StatusError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.watches {
		if err != nil {
			w.send(watch.Event{Type: watch.Error, Object: &err.ErrStatus})
		}
		w.close()
	}
	s.watches = nil
}

func (s *scripted) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compacted, s.history = s.revision, nil
}

// disturb ends all watches for 0, makes them expire for 1, and compacts the history for 2.
func (s *scripted) disturb(event int) {
	switch event {
	case 0:
		s.end(nil)
	case 1:
		s.end(apierrors.NewResourceExpired("in the middle of a stream"))
	default:
		s.compact()
	}
}

func (s *scripted) backup() (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	revision, objects, history := s.revision, maps.Clone(s.objects), slices.Clone(s.history)
	return func() {
		s.end(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.revision, s.objects, s.history = revision, maps.Clone(objects), slices.Clone(history)
		s.compacted = min(s.compacted, revision)
		clear(s.pages)
	}
}

func (s *scripted) state() map[Key]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return contentsOf(slices.Collect(maps.Values(s.objects)))
}

// count returns a counter of requests.
func (s *scripted) count(of *int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *of
}

// update changes the server with the lock held.
func (s *scripted) update(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// calm ends the faults and the writes between pages.
func (s *scripted) calm() {
	s.update(func() { s.next, s.between = func() fault { return "" }, func() {} })
}

func contentsOf(objects []*corev1.ConfigMap) map[Key]string {
	all := map[Key]string{}
	for _, obj := range objects {
		all[KeyOf(obj)] = contentOf(obj)
	}
	return all
}

func contentOf(obj *corev1.ConfigMap) string {
	return string(obj.UID) + "@" + obj.ResourceVersion + "=" + obj.Data["content"]
}

func (s *scripted) fail(f fault, version string) error {
	switch f {
	case unavailable:
		return apierrors.NewServiceUnavailable("injected failure")
	case tooMany:
		return apierrors.NewTooManyRequests("injected failure", 2)
	case expired:
		return apierrors.NewResourceExpired("injected failure")
	case lagging:
		return tooLargeVersion(version)
	case refused:
		return apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil)
	case slow, cut:
		return nil
	default:
		return nil
	}
}

func tooLargeVersion(version string) error {
	err := apierrors.NewTimeoutError("Too large resource version "+version, 1)
	err.ErrStatus.Code = http.StatusGatewayTimeout
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	return err
}

const scriptedPage = 4

func (s *scripted) list(_ context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.next()
	if f == unavailable || f == tooMany || (f == expired && opts.Continue != "") {
		return nil, s.fail(f, "")
	}
	selects, selector, err := s.part(opts)
	if err != nil {
		return nil, err
	}
	rest := s.pages[opts.Continue]
	switch {
	case opts.Continue == "":
		rest = &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatInt(s.revision, 10)}}
		if selector != "" || s.shards == unnamed {
			rest.ShardInfo = &metav1.ShardInfo{Selector: selector}
		}
		if opts.Limit == 1 {
			return rest, nil // only the reported selector differs
		}
		s.lists++
		for _, obj := range s.sorted() {
			if selects(obj) {
				rest.Items = append(rest.Items, *obj.DeepCopy())
				s.registered++
			}
		}
	case rest == nil:
		return nil, apierrors.NewResourceExpired("no such page")
	}
	if opts.Limit == 0 || len(rest.Items) <= scriptedPage {
		return rest, nil
	}
	page := &corev1.ConfigMapList{ListMeta: rest.ListMeta, Items: rest.Items[:scriptedPage]}
	page.Continue = fmt.Sprintf("%s-%d", rest.ResourceVersion, len(rest.Items))
	s.pages[page.Continue] = &corev1.ConfigMapList{ListMeta: rest.ListMeta, Items: rest.Items[scriptedPage:]}
	s.mu.Unlock()
	s.between()
	s.mu.Lock()
	return page, nil
}

func (s *scripted) sorted() []*corev1.ConfigMap {
	return slices.SortedFunc(maps.Values(s.objects), func(a, b *corev1.ConfigMap) int { return strings.Compare(KeyOf(a).String(), KeyOf(b).String()) })
}

func (s *scripted) watch(_ context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	initial := opts.SendInitialEvents != nil
	f := s.next()
	switch {
	case initial && f == lagging, !initial && (f == refused || f == slow || f == cut):
		f = ""
	}
	if err := s.fail(f, opts.ResourceVersion); err != nil {
		return nil, err
	}
	selects, selector, err := s.part(opts)
	if err != nil {
		return nil, err
	}
	w := &scriptedWatch{server: s, events: make(chan watch.Event, 10_000), selects: selects}
	if initial {
		s.initial++
		s.sendInitial(w, f, selector)
		return w, nil
	}
	s.resumed++
	from, err := strconv.ParseInt(opts.ResourceVersion, 10, 64)
	switch {
	case err != nil:
		return nil, apierrors.NewBadRequest(err.Error())
	case from < s.compacted:
		return nil, apierrors.NewResourceExpired("too old")
	case from > s.revision:
		return nil, tooLargeVersion(opts.ResourceVersion)
	}
	for _, r := range s.history {
		if r.revision > from {
			w.send(r.Event)
		}
	}
	s.watches = append(s.watches, w)
	return w, nil
}

func (s *scripted) sendInitial(w *scriptedWatch, f fault, selector string) {
	objs := slices.DeleteFunc(s.sorted(), func(obj *corev1.ConfigMap) bool { return !w.selects(obj) })
	s.registered += len(objs)
	if f == slow || f == cut {
		objs = objs[:len(objs)/2]
	}
	for _, obj := range objs {
		w.send(watch.Event{Type: watch.Added, Object: obj})
	}
	switch f {
	case slow:
	case cut:
		w.close()
	default:
		annotations := map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		if selector != "" {
			annotations[hashrange.InfoAnnotation] = selector
		}
		w.send(watch.Event{Type: watch.Bookmark, Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: strconv.FormatInt(s.revision, 10), Annotations: annotations,
		}}})
		s.watches = append(s.watches, w)
	}
}

func (w *scriptedWatch) send(event watch.Event) {
	if obj, ok := event.Object.(*corev1.ConfigMap); ok && event.Type != watch.Bookmark && !w.selects(obj) {
		return
	}
	if !w.closed {
		w.events <- watch.Event{Type: event.Type, Object: event.Object.DeepCopyObject()}
	}
}

func (w *scriptedWatch) close() {
	if !w.closed {
		w.closed = true
		close(w.events)
	}
}

func (w *scriptedWatch) ResultChan() <-chan watch.Event { return w.events }

func (w *scriptedWatch) Stop() {
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	w.server.watches = slices.DeleteFunc(w.server.watches, func(other *scriptedWatch) bool { return other == w })
	w.close()
}

type random struct {
	mu   sync.Mutex
	rand *rand.Rand
}

func (d *random) IntN(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rand.IntN(n)
}

func randomly(r *random, n int) func() fault {
	return func() fault {
		if r.IntN(n) > 0 {
			return ""
		}
		return faults[r.IntN(len(faults))]
	}
}
