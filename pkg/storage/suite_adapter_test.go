package storage

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/sharding"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/hashrange"
	"github.com/shardplane/shardplane/pkg/storage/hub"
)

// suiteCluster is the logical cluster in which upstream's suites run.
const suiteCluster = "suite"

// adjacentClusters are adjacent logical clusters in key order, with objects of the same names in a crowd.
var adjacentClusters = []string{"aaa", "suit", "suite-2", "system:suite", "zzz"}

// suiteStore adapts the storage for upstream's conformance suites, which do not support logical clusters. It adds
// the logical cluster to contexts, hides the annotation from comparisons, and unseals continue tokens, which suites
// forge and compare. Other tests cover all three.
type suiteStore struct {
	*tenantStorage
	transformer *swappableTransformer
	// crowd creates each object in the adjacent clusters before.
	crowd bool
	// ring is the selector of all watches, if not nil.
	ring sharding.Selector
	end  chan struct{}
}

func (s *suiteStore) ctx(ctx context.Context) context.Context {
	if _, ok := request.ClusterFrom(ctx); ok {
		return ctx
	}
	return in(ctx, suiteCluster)
}

// plain returns a copy of obj without the annotation.
func plain(obj runtime.Object) runtime.Object {
	obj = hub.Unwrap(obj).DeepCopyObject()
	strip(obj)
	return obj
}

func strip(obj runtime.Object) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return // a status
	}
	annotations := maps.Clone(object.GetAnnotations())
	delete(annotations, logicalcluster.AnnotationKey)
	delete(annotations, hashrange.InfoAnnotation)
	if len(annotations) == 0 {
		annotations = nil
	}
	object.SetAnnotations(annotations)
}

// suggestion returns an object with the annotation for a caller's suggested object.
func suggestion(obj runtime.Object) runtime.Object {
	if obj == nil {
		return nil
	}
	obj = obj.DeepCopyObject()
	_ = annotate(obj, tenant{cluster: suiteCluster})
	return obj
}

func (s *suiteStore) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	ctx = s.ctx(ctx)
	if s.crowd {
		for _, cluster := range adjacentClusters {
			_ = s.tenantStorage.Create(in(ctx, cluster), key, obj.DeepCopyObject(), nil, ttl)
		}
	}
	err := s.tenantStorage.Create(ctx, key, obj, out, ttl)
	strip(obj)
	if out != nil {
		strip(out)
	}
	return err
}

func (s *suiteStore) Delete(
	ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, cached runtime.Object, opts storage.DeleteOptions,
) error {
	err := s.tenantStorage.Delete(s.ctx(ctx), key, out, preconditions, validate, suggestion(cached), opts)
	strip(out)
	return err
}

func (s *suiteStore) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	err := s.tenantStorage.Get(s.ctx(ctx), key, opts, out)
	strip(out)
	return err
}

func (s *suiteStore) GuaranteedUpdate(
	ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object,
) error {
	stripped := func(input runtime.Object, res storage.ResponseMeta) (runtime.Object, *uint64, error) {
		output, ttl, err := update(plain(input), res)
		if err != nil {
			return nil, nil, err
		}
		return output.DeepCopyObject(), ttl, nil
	}
	err := s.tenantStorage.GuaranteedUpdate(s.ctx(ctx), key, out, ignoreNotFound, preconditions, stripped, suggestion(cached))
	strip(out)
	return err
}

func (s *suiteStore) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	ctx = s.ctx(ctx)
	if opts.Predicate.Continue != "" {
		c, err := s.collect(ctx, key, opts)
		if err != nil {
			return err
		}
		opts.Predicate.Continue = sealToken(c.scope, opts.Predicate.Continue)
	}
	err := s.tenantStorage.GetList(ctx, key, opts, list)
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		status.ErrStatus.Continue, _, _ = strings.Cut(status.ErrStatus.Continue, sealSeparator)
	}
	if err != nil {
		return err
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	token, _, _ := strings.Cut(accessor.GetContinue(), sealSeparator)
	accessor.SetContinue(token)
	return meta.EachListItem(list, func(obj runtime.Object) error {
		strip(obj)
		return nil
	})
}

func (s *suiteStore) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	if s.ring != nil {
		opts.Predicate.ShardSelector = s.ring
	}
	inner, err := s.tenantStorage.Watch(s.ctx(ctx), key, opts)
	if err != nil {
		return nil, err
	}
	w := &suiteWatch{inner: inner, result: make(chan watch.Event), end: s.end}
	go w.run()
	return w, nil
}

// suiteWatch hides the annotation in events.
type suiteWatch struct {
	inner  watch.Interface
	result chan watch.Event
	end    chan struct{}
}

func (w *suiteWatch) ResultChan() <-chan watch.Event { return w.result }
func (w *suiteWatch) Stop()                          { w.inner.Stop() }

func (w *suiteWatch) run() {
	defer close(w.result)
	for event := range w.inner.ResultChan() {
		if event.Object != nil {
			event.Object = plain(event.Object)
		}
		select {
		case w.result <- event:
		case <-w.end:
			w.inner.Stop()
			return
		}
	}
}

func (s *suiteStore) UpdatePrefixTransformer(modify storagetesting.PrefixTransformerModifier) func() {
	original := s.transformer.get()
	changed := *original.(*storagetesting.PrefixTransformer)
	s.transformer.set(modify(&changed))
	return func() { s.transformer.set(original) }
}

func (s *suiteStore) UpdateTransformer(modify storagetesting.TransformerModifier) func() {
	original := s.transformer.get()
	s.transformer.set(modify(original))
	return func() { s.transformer.set(original) }
}

// sameForAll gives every resource the same transformer.
type sameForAll struct{ value.Transformer }

func (s sameForAll) TransformerForResource(schema.GroupResource) value.Transformer {
	return s.Transformer
}

// swappableTransformer is a transformer that a suite replaces.
type swappableTransformer struct {
	current atomic.Value
}

type transformerBox struct{ value.Transformer }

func newSwappableTransformer(initial value.Transformer) *swappableTransformer {
	t := &swappableTransformer{}
	t.set(initial)
	return t
}

func (t *swappableTransformer) get() value.Transformer {
	return t.current.Load().(transformerBox).Transformer
}

func (t *swappableTransformer) set(to value.Transformer) { t.current.Store(transformerBox{to}) }

func (t *swappableTransformer) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	return t.get().TransformFromStorage(ctx, data, dataCtx)
}

func (t *swappableTransformer) TransformToStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, error) {
	return t.get().TransformToStorage(ctx, data, dataCtx)
}

// hideCluster makes the recorder record keys of lists without the logical cluster. Lists at exact versions are not
// recorded, because suites expect that they are served from snapshots of the watch cache.
func hideCluster(client kubernetes.Interface) *hiddenCluster {
	h := &hiddenCluster{Interface: client}
	h.recorder = storagetesting.NewKubernetesRecorder(behindRecorder{client})
	return h
}

const (
	suiteClusterPrefix = "/registry/pods/" + suiteCluster + "/"
	suitePrefix        = "/registry/pods/"
)

type hiddenCluster struct {
	kubernetes.Interface
	recorder *storagetesting.KubernetesRecorder
}

type hiddenKey struct{}

func (h *hiddenCluster) List(ctx context.Context, key string, opts kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	if opts.Revision != 0 {
		return h.Interface.List(ctx, key, opts)
	}
	rest, ok := strings.CutPrefix(key, suiteClusterPrefix)
	if !ok {
		return h.recorder.List(ctx, key, opts)
	}
	if c, ok := strings.CutPrefix(opts.Continue, suiteClusterPrefix); ok {
		opts.Continue = suitePrefix + c
	}
	return h.recorder.List(context.WithValue(ctx, hiddenKey{}, true), suitePrefix+rest, opts)
}

type behindRecorder struct{ kubernetes.Interface }

func (b behindRecorder) List(ctx context.Context, key string, opts kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	if ctx.Value(hiddenKey{}) != nil {
		key = suiteClusterPrefix + strings.TrimPrefix(key, suitePrefix)
		if c, ok := strings.CutPrefix(opts.Continue, suitePrefix); ok {
			opts.Continue = suiteClusterPrefix + c
		}
	}
	return b.Interface.List(ctx, key, opts)
}

var (
	_ storagetesting.InterfaceWithPrefixTransformer   = (*suiteStore)(nil)
	_ storagetesting.InterfaceWithTransformerOverride = (*suiteStore)(nil)
)

// failingCodec is a codec that can be made to fail.
type failingCodec struct {
	runtime.Codec
	failing atomic.Bool
}

func (c *failingCodec) setFailing(failing bool) { c.failing.Store(failing) }

func (c *failingCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if c.failing.Load() {
		return nil, nil, errors.New("synthetic error")
	}
	return c.Codec.Decode(data, defaults, into)
}
