package definitions

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"

	"github.com/shardplane/shardplane/pkg/controllers/customresourcedefinition"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
	"github.com/shardplane/shardplane/test/customresourcetest"
)

const (
	deadline = customresourcetest.Deadline
	tick     = customresourcetest.Tick
)

var (
	widgets          = customresourcetest.Widgets.GroupResource()
	widgetCRD        = customresourcetest.WidgetCRD
	requireCondition = customresourcetest.RequireCondition
)

func TestMain(m *testing.M) { customresourcetest.Main(m) }

// testServer is an API server of definitions without custom resources.
type testServer struct {
	*Storage
	*customresourcetest.API
}

// followed reports whether the controller has subscribed. It does not reconcile the accepted definitions that
// exist before.
type followed struct {
	*Managed
	following atomic.Bool
}

func (f *followed) Follow(reconcile func(cluster logicalcluster.Name, name string)) (stop func()) {
	stop = f.Managed.Follow(reconcile)
	f.following.Store(true)
	return stop
}

// startServer starts a server and the controller of its definitions. wrap wraps the storage of definitions.
func startServer(t *testing.T, data customresourcetest.Data, wrap customresourcetest.Wrap) *testServer {
	t.Helper()
	backend := data.Backend(t, false)
	s, err := NewDefinitionStorage(Config{
		Storage:    customresourcetest.Wrapped(backend.RESTOptionsGetter, wrap),
		Unreadable: unreadable.NewRecord(t.Context(), nil),
		Table:      NewTable(),
		Sources:    NewSources(&System{}),
		BuiltInNames: func(context.Context, string) ([]apiextensions.CustomResourceDefinitionNames, error) {
			return nil, nil
		},
	})
	require.NoError(t, err)
	managed := &followed{Managed: NewManaged(s, func(context.Context, *Schema) (Remaining, error) { return Remaining{}, nil })}
	return &testServer{Storage: s, API: customresourcetest.Serve(t, customresourcetest.Parts{
		Install: s.Install,
		Run: []func(context.Context) error{customresourcedefinition.NewCRDController(managed).Run, func(ctx context.Context) error {
			s.Index().Run(ctx)
			return nil
		}},
		HasSynced: func() bool { return s.Index().HasSynced() && managed.following.Load() },
		Close:     backend.Close,
	})}
}

// serves reports whether the index serves a resource in a logical cluster.
func (s *testServer) serves(t *testing.T, cluster string, resource schema.GroupResource) bool {
	t.Helper()
	d, err := s.Index().Resolve(t.Context(), Lookup{Cluster: request.Cluster{Name: logicalcluster.Name(cluster)}, Resource: resource, Version: "v1"})
	return err == nil && d != nil
}

// faulty counts and fails calls of the storage of definitions.
type faulty struct {
	storage.Interface
	*counters
}

// fault is called before a write and may return an error.
type fault func() error

type faultKey struct{}

// withFault sets a fault for the writes of ctx.
func withFault(ctx context.Context, f fault) context.Context {
	return context.WithValue(ctx, faultKey{}, f)
}

func (f faulty) check(ctx context.Context) error {
	f.writes.Add(1)
	if injected, ok := ctx.Value(faultKey{}).(fault); ok {
		return injected()
	}
	return nil
}

func (f faulty) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	f.lists.Add(1)
	return f.Interface.GetList(ctx, key, opts, list)
}

func (f faulty) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	if err := f.check(ctx); err != nil {
		return err
	}
	return f.Interface.Create(ctx, key, obj, out, ttl)
}

func (f faulty) GuaranteedUpdate(
	ctx context.Context, key string, out runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions,
	tryUpdate storage.UpdateFunc, cached runtime.Object,
) error {
	failing := func(old runtime.Object, meta storage.ResponseMeta) (runtime.Object, *uint64, error) {
		obj, ttl, err := tryUpdate(old, meta)
		if err == nil {
			err = f.check(ctx)
		}
		return obj, ttl, err
	}
	return f.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, preconditions, failing, cached)
}

func (f faulty) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	w, err := f.Interface.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	return drained{watch.Filter(w, func(event watch.Event) (watch.Event, bool) {
		f.events.RLock()
		defer f.events.RUnlock()
		return event, true
	})}, nil
}

// drained is a filtered watch that may be stopped before all events were read.
type drained struct{ watch.Interface }

func (d drained) Stop() {
	d.Interface.Stop()
	for range d.ResultChan() {
	}
}

// counters count the calls of the storage of definitions. Locking events delays events.
type counters struct {
	lists, writes atomic.Int64
	events        sync.RWMutex
}

// wrap is a customresourcetest.Wrap.
func (c *counters) wrap(resource schema.GroupResource, inner storage.Interface, destroy factory.DestroyFunc) (storage.Interface, factory.DestroyFunc) {
	if resource.Group != apiextensions.GroupName {
		return inner, destroy
	}
	return faulty{inner, c}, destroy
}

// withoutNames returns the storage of definitions below the one that accepts names.
func withoutNames(t *testing.T, s *testServer) storage.Interface {
	t.Helper()
	naming, ok := s.Store.Storage.Storage.(namingStorage)
	require.True(t, ok)
	return naming.Interface
}

// internalCRD returns a definition as registries store it.
func internalCRD(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) *apiextensions.CustomResourceDefinition {
	t.Helper()
	crd = crd.DeepCopy()
	apiextensionsserver.Scheme.Default(crd)
	internal := &apiextensions.CustomResourceDefinition{}
	require.NoError(t, apiextensionsserver.Scheme.Convert(crd, internal, nil))
	return internal
}
