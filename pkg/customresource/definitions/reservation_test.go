package definitions

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/customresourcetest"
)

var errRefused = errors.New("rejected by the test")

// refusal is a request in a logical cluster with the definition others.example.com that must not store a
// definition.
type refusal func(t *testing.T, s *testServer, cluster string) error

// greedy returns a definition that requests the names of widgetCRD, with the maximum size of a request.
func greedy(name, group string) *apiextensionsv1.CustomResourceDefinition {
	crd := widgetCRD(nil)
	crd.Name, crd.Spec.Group = name, group
	if plural, _, found := strings.Cut(name, "."); found {
		crd.Spec.Names.Plural = plural
	}
	return crd
}

// directly calls the registry as a handler with validating admission.
func directly(ctx context.Context, t *testing.T, s *testServer, validate rest.ValidateObjectFunc) error {
	t.Helper()
	return s.createInternal(ctx, internalCRD(t, greedy("gizmos.example.com", "example.com")), validate)
}

func (s *testServer) createInternal(ctx context.Context, crd *apiextensions.CustomResourceDefinition, validate rest.ValidateObjectFunc) error {
	_, err := s.Storage.Create(ctx, crd, validate, &metav1.CreateOptions{})
	return err
}

func clusterContext(t *testing.T, cluster string) context.Context {
	t.Helper()
	return storeContext(t.Context(), request.Cluster{Name: logicalcluster.Name(cluster)})
}

// change updates others.example.com to request the names of widgetCRD.
func change(t *testing.T, s *testServer, cluster string, options metav1.UpdateOptions, also func(*apiextensionsv1.CustomResourceDefinition)) error {
	t.Helper()
	client := s.CRDs(t, cluster).ApiextensionsV1().CustomResourceDefinitions()
	crd, err := client.Get(t.Context(), "others.example.com", metav1.GetOptions{})
	require.NoError(t, err)
	crd.Spec.Names.ShortNames = []string{"wd", "widgets", "widget"}
	if also != nil {
		also(crd)
	}
	_, err = client.Update(t.Context(), crd, options)
	return err
}

func create(t *testing.T, s *testServer, cluster string, crd *apiextensionsv1.CustomResourceDefinition, options metav1.CreateOptions) error {
	t.Helper()
	_, err := s.CRDs(t, cluster).ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd, options)
	return err
}

var dryRun = []string{metav1.DryRunAll}

var refusals = map[string]refusal{
	"a mistyped name": func(t *testing.T, s *testServer, cluster string) error {
		return create(t, s, cluster, greedy("widgets.exmaple.com", "example.com"), metav1.CreateOptions{})
	},
	"a generated name": func(t *testing.T, s *testServer, cluster string) error {
		crd := greedy("", "example.com")
		crd.GenerateName = "widgets.example.com-"
		return create(t, s, cluster, crd, metav1.CreateOptions{})
	},
	"a large list kind": func(t *testing.T, s *testServer, cluster string) error {
		crd := greedy("gizmos.example.com", "example.com")
		crd.Spec.Names.ListKind = strings.Repeat("L", 1<<20)
		return create(t, s, cluster, crd, metav1.CreateOptions{})
	},
	"an existing definition": func(t *testing.T, s *testServer, cluster string) error {
		return create(t, s, cluster, greedy("others.example.com", "example.com"), metav1.CreateOptions{})
	},
	"a dry run of a create": func(t *testing.T, s *testServer, cluster string) error {
		require.NoError(t, create(t, s, cluster, greedy("gizmos.example.com", "example.com"), metav1.CreateOptions{DryRun: dryRun}))
		return errRefused
	},
	"a dry run of an update": func(t *testing.T, s *testServer, cluster string) error {
		require.NoError(t, change(t, s, cluster, metav1.UpdateOptions{DryRun: dryRun}, nil))
		return errRefused
	},
	"an update to another group": func(t *testing.T, s *testServer, cluster string) error {
		return change(t, s, cluster, metav1.UpdateOptions{}, func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Spec.Group = "elsewhere.com" })
	},
	"an update of an old version": func(t *testing.T, s *testServer, cluster string) error {
		return change(t, s, cluster, metav1.UpdateOptions{}, func(crd *apiextensionsv1.CustomResourceDefinition) { crd.ResourceVersion = "1" })
	},
	"an invalid patch": func(t *testing.T, s *testServer, cluster string) error {
		patch := []byte(`{"spec":{"group":"elsewhere.com","names":{"shortNames":["wd"]}}}`)
		_, err := s.CRDs(t, cluster).ApiextensionsV1().CustomResourceDefinitions().Patch(t.Context(), "others.example.com", types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	},
	"a status of an old version": func(t *testing.T, s *testServer, cluster string) error {
		patch := []byte(`{"metadata":{"resourceVersion":"1"},"status":{"storedVersions":["v1"]}}`)
		_, err := s.CRDs(t, cluster).ApiextensionsV1().CustomResourceDefinitions().Patch(t.Context(), "others.example.com", types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	},
	"admission": func(t *testing.T, s *testServer, cluster string) error {
		return directly(clusterContext(t, cluster), t, s, func(context.Context, runtime.Object) error { return errRefused })
	},
	"a panic in admission": func(t *testing.T, s *testServer, cluster string) error {
		require.Panics(t, func() {
			_ = directly(clusterContext(t, cluster), t, s, func(context.Context, runtime.Object) error { panic("a test") })
		})
		return errRefused
	},
	"a canceled request": func(t *testing.T, s *testServer, cluster string) error {
		ctx, cancel := context.WithCancel(clusterContext(t, cluster))
		ctx = withFault(ctx, func() error {
			cancel()
			return context.Canceled
		})
		return directly(ctx, t, s, rest.ValidateAllObjectFunc)
	},
	"a storage error": func(t *testing.T, s *testServer, cluster string) error {
		return directly(withFault(clusterContext(t, cluster), func() error { return errRefused }), t, s, rest.ValidateAllObjectFunc)
	},
	"a panic in storage": func(t *testing.T, s *testServer, cluster string) error {
		require.Panics(t, func() {
			_ = directly(withFault(clusterContext(t, cluster), func() error { panic("a test") }), t, s, rest.ValidateAllObjectFunc)
		})
		return errRefused
	},
	"a storage error of an update": func(t *testing.T, s *testServer, cluster string) error {
		info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
			crd, ok := old.DeepCopyObject().(*apiextensions.CustomResourceDefinition)
			require.True(t, ok)
			crd.Spec.Names.ShortNames = []string{"wd"}
			return crd, nil
		})
		ctx := withFault(clusterContext(t, cluster), func() error { return errRefused })
		_, _, err := s.Storage.Update(ctx, "others.example.com", info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		return err
	},
}

// TestRefusedDefinitionsReleaseNames: a request that does not store a definition reserves no names afterwards.
func TestRefusedDefinitionsReleaseNames(t *testing.T) {
	t.Parallel()
	var calls counters
	s := startServer(t, customresourcetest.NewData(t), calls.wrap)
	n := 0
	for name, refused := range refusals {
		n++
		cluster := fmt.Sprintf("cluster-%d", n)
		t.Run(name, func(t *testing.T) {
			other := greedy("others.example.com", "example.com")
			other.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: "others", Singular: "other", Kind: "Other", ListKind: "OtherList"}
			s.CreateCRD(t, cluster, other)

			require.Error(t, refused(t, s, cluster))
			s.requireNothingReserved(t)
			created := s.CreateCRD(t, cluster, widgetCRD(nil))
			requireCondition(t, created, apiextensionsv1.Established, apiextensionsv1.ConditionTrue, "InitialNamesAccepted")
			require.True(t, s.serves(t, cluster, widgets))
			s.requireNothingReserved(t)
		})
	}
}

func (s *testServer) requireNothingReserved(t *testing.T) {
	t.Helper()
	require.Zero(t, s.reservations(), "names must not remain reserved")
}

// reservations returns the number of groups with reserved names.
func (s *testServer) reservations() int {
	names := s.names
	names.mu.Lock()
	defer names.mu.Unlock()
	return len(names.reserved)
}

// TestNamesOfFailedWritesAreReleased: a definition that was denied a name gets it after the write of the other
// definition failed, in either order.
func TestNamesOfFailedWritesAreReleased(t *testing.T) {
	t.Parallel()
	var calls counters
	s := startServer(t, customresourcetest.NewData(t), calls.wrap)
	for _, failsFirst := range []bool{true, false} {
		t.Run(fmt.Sprintf("fails first %t", failsFirst), func(t *testing.T) {
			cluster := fmt.Sprintf("cluster-%t", failsFirst)
			writing, fail, failed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			ctx := withFault(clusterContext(t, cluster), func() error {
				close(writing)
				<-fail
				return errRefused
			})
			rival := internalCRD(t, greedy("gizmos.example.com", "example.com"))
			go func() { failed <- s.createInternal(ctx, rival, rest.ValidateAllObjectFunc) }()
			<-writing
			ending := func() {
				close(fail)
				assert.ErrorIs(t, <-failed, errRefused)
			}
			ctx = withFault(clusterContext(t, cluster), func() error {
				if failsFirst {
					ending()
				}
				return nil
			})
			out, err := s.Storage.Create(ctx, internalCRD(t, widgetCRD(nil)), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
			require.NoError(t, err)
			created, ok := out.(*apiextensions.CustomResourceDefinition)
			require.True(t, ok)
			require.False(t, apiextensions.IsCRDConditionTrue(created, apiextensions.NamesAccepted), "names reserved by another write must not be accepted")
			if !failsFirst {
				ending()
			}
			require.Eventually(t, func() bool {
				return s.serves(t, cluster, widgets) && s.reservations() == 0
			}, deadline, tick)
		})
	}
}

// TestNamesFreedWhileStopped: definitions get names that became free while no server was running.
func TestNamesFreedWhileStopped(t *testing.T) {
	t.Parallel()
	data := customresourcetest.NewData(t)
	s := startServer(t, data, new(counters).wrap)
	s.CreateCRD(t, "one", greedy("gizmos.example.com", "example.com"))
	refused := s.CreateCRD(t, "one", widgetCRD(nil))
	requireCondition(t, refused, apiextensionsv1.Established, apiextensionsv1.ConditionFalse, "NotAccepted")
	s.Stop()
	found, err := data.Server.Client().KV.Get(t.Context(), data.Prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	require.NoError(t, err)
	deleted := 0
	for _, kv := range found.Kvs {
		if strings.HasSuffix(string(kv.Key), "gizmos.example.com") {
			_, err := data.Server.Client().KV.Delete(t.Context(), string(kv.Key))
			require.NoError(t, err)
			deleted++
		}
	}
	require.Equal(t, 1, deleted)

	s = startServer(t, data, new(counters).wrap)
	require.Eventually(t, func() bool { return s.serves(t, "one", widgets) }, deadline, tick)
}

// TestUnknownNamesAreNotAccepted: writes fail while definitions or preceding sources cannot be read.
func TestUnknownNamesAreNotAccepted(t *testing.T) {
	t.Parallel()
	var calls counters
	backend := customresourcetest.NewData(t).Backend(t, false)
	t.Cleanup(backend.Close)
	s, err := NewDefinitionStorage(Config{
		Storage: customresourcetest.Wrapped(backend.RESTOptionsGetter, calls.wrap), Table: NewTable(), Sources: NewSources(&System{}),
		BuiltInNames: func(context.Context, string) ([]apiextensions.CustomResourceDefinitionNames, error) {
			return nil, errors.New("is not ready yet")
		},
	})
	require.NoError(t, err)
	t.Cleanup(s.Destroy)
	ts := &testServer{Storage: s}
	ctx, cancel := context.WithCancel(clusterContext(t, "one"))
	cancel() // does not wait for lists
	require.True(t, apierrors.IsTooManyRequests(directly(ctx, t, ts, rest.ValidateAllObjectFunc)))
	require.Zero(t, calls.writes.Load())

	s.objects.advance(1, true)
	err = directly(clusterContext(t, "one"), t, ts, rest.ValidateAllObjectFunc)
	require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
	require.ErrorContains(t, err, "is not ready yet", "the names of built-in resources are unknown")
	require.Zero(t, calls.writes.Load())
}

// TestEventsNeedNoLists: the index applies events of definitions, and lists definitions once.
func TestEventsNeedNoLists(t *testing.T) {
	t.Parallel()
	var calls counters
	s := startServer(t, customresourcetest.NewData(t), calls.wrap)
	before := calls.lists.Load()
	for i := range 20 {
		s.CreateCRD(t, fmt.Sprintf("cluster-%d", i), widgetCRD(nil))
	}
	s.DeleteCRD(t, "cluster-0", "widgets.example.com")
	require.Eventually(t, func() bool { // deletions do not wait for the index
		s.Index().mu.RLock()
		defer s.Index().mu.RUnlock()
		return len(s.Index().byName["widgets.example.com"]) == 19
	}, deadline, tick)
	require.Equal(t, before, calls.lists.Load())
	require.NotZero(t, before)
}

// acceptedElsewhere stores a definition like another server of the shard that has not received other
// definitions.
func acceptedElsewhere(ctx context.Context, t *testing.T, s *testServer, crd *apiextensionsv1.CustomResourceDefinition) *apiextensions.CustomResourceDefinition {
	t.Helper()
	internal, out := internalCRD(t, crd), &apiextensions.CustomResourceDefinition{}
	accept(internal, claims{})
	key, err := s.Storage.KeyFunc(ctx, crd.Name)
	require.NoError(t, err)
	require.NoError(t, withoutNames(t, s).Create(ctx, key, internal, out, 0))
	return out
}

// owning is a source that serves one resource in all logical clusters.
type owning struct {
	Source
	*Definition
}

func (o owning) List(context.Context, request.Cluster) ([]*Definition, error) {
	return []*Definition{o.Definition}, nil
}

func (o owning) Resolve(_ context.Context, l Lookup) (*Definition, error) {
	if l.Resource != o.Schema.Resource {
		return nil, nil //nolint:nilnil // there is none
	}
	return o.Definition, nil
}

func (owning) Subscribe(func(Change)) (stop func()) { return func() {} }

// TestDefinitionYieldsToSource: if two servers of the shard give the same name to a definition and a source at
// the same time, the source keeps it on all servers. The definition reports the conflict, and gets the name
// when it is free.
func TestDefinitionYieldsToSource(t *testing.T) {
	t.Parallel()
	source, wanted := othersOfKind(t)
	tests := map[string]func(t *testing.T, s *testServer) (free func()){
		"serves": func(_ *testing.T, s *testServer) func() { return s.names.sources.Add(source) },
		"reserves": func(t *testing.T, s *testServer) func() {
			release, conflict, err := s.Reserve(t.Context(), "one", source.Owner, source, wanted)
			require.NoError(t, err)
			require.Nil(t, conflict)
			return release
		},
	}
	for name, take := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, customresourcetest.NewData(t), new(counters).wrap)
			ctx := storeContext(t.Context(), request.Cluster{Name: "one"})
			// This server receives both at once.
			free := take(t, s)
			crd := widgetCRD(nil)
			crd.UID = "u"
			require.True(t, apiextensions.IsCRDConditionTrue(acceptedElsewhere(ctx, t, s, crd), apiextensions.Established))
			client := s.CRDs(t, "one").ApiextensionsV1().CustomResourceDefinitions()
			require.Eventually(t, func() bool {
				after, err := client.Get(ctx, crd.Name, metav1.GetOptions{})
				require.NoError(t, err)
				return !apihelpers.IsCRDConditionTrue(after, apiextensionsv1.Established) && apihelpers.IsCRDConditionFalse(after, apiextensionsv1.NamesAccepted)
			}, deadline, tick, "the definition must yield")
			require.Eventually(t, func() bool { return !s.serves(t, "one", widgets) }, deadline, tick, "the definition must not be served")
			free()
			require.Eventually(t, func() bool { return s.serves(t, "one", widgets) }, deadline, tick, "released names must be accepted")
		})
	}
}

// TestLaterWriteYields: both definitions were stored by different servers.
func TestLaterWriteYields(t *testing.T) {
	t.Parallel()
	s := startServer(t, customresourcetest.NewData(t), new(counters).wrap)
	ctx := storeContext(t.Context(), request.Cluster{Name: "one"})
	var stored []*apiextensions.CustomResourceDefinition
	for i := range 2 {
		crd := widgetCRD(nil)
		crd.Spec.Names.Plural = fmt.Sprintf("widgets%d", i)
		crd.Name = crd.Spec.Names.Plural + ".example.com"
		crd.UID = types.UID(crd.Name)
		stored = append(stored, acceptedElsewhere(ctx, t, s, crd))
	}
	require.Same(t, runtime.Object(stored[0]), s.Storage.written(ctx, stored[0], true))
	after, ok := s.Storage.written(ctx, stored[1], true).(*apiextensions.CustomResourceDefinition)
	require.True(t, ok)
	require.False(t, apiextensions.IsCRDConditionTrue(after, apiextensions.Established))
	require.False(t, apiextensions.IsCRDConditionTrue(after, apiextensions.NamesAccepted))
	require.Equal(t, "widgets1", after.Status.AcceptedNames.Plural)
	require.Empty(t, after.Status.AcceptedNames.Kind)

	s.DeleteCRD(t, "one", stored[0].Name)
	require.Eventually(t, func() bool {
		return s.serves(t, "one", schema.GroupResource{Group: "example.com", Resource: "widgets1"})
	}, deadline, tick, "released names must be accepted")
}
