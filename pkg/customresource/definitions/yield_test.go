package definitions

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/customresourcetest"
	"github.com/shardplane/shardplane/test/documented"
)

// othersOfKind is a source that serves a resource with the kinds of widgets in all logical clusters.
func othersOfKind(t *testing.T) (owning, []Wanted) {
	t.Helper()
	crd := widgetCRD(nil)
	crd.Spec.Names.Plural, crd.Spec.Names.Singular, crd.Spec.Names.ShortNames = "others", "other", nil
	apiextensionsserver.Scheme.Default(crd)
	served, err := NewSchema(&crd.Spec, &crd.Spec.Names)
	require.NoError(t, err)
	return owning{Definition: &Definition{Schema: served, Owner: `APIBinding "others"`}}, []Wanted{{Group: crd.Spec.Group, Names: &crd.Spec.Names}}
}

// beginning is a source that starts to serve, and releases its reservation, during its first List, which
// returns nothing.
type beginning struct {
	owning

	begins sync.Once
	serves atomic.Bool
	free   func()
}

func (b *beginning) List(ctx context.Context, cluster request.Cluster) ([]*Definition, error) {
	if b.serves.Load() {
		return b.owning.List(ctx, cluster)
	}
	b.begins.Do(func() {
		b.serves.Store(true)
		b.free()
	})
	return nil, nil
}

// TestSourceBegins: a definition gets no name of a source that started to serve during its List.
func TestSourceBegins(t *testing.T) {
	t.Parallel()
	tests := map[string]func(ctx context.Context, t *testing.T, s *testServer) (lost bool){
		"new definition": func(ctx context.Context, t *testing.T, s *testServer) bool {
			after, err := s.CRDs(t, "one").ApiextensionsV1().CustomResourceDefinitions().Create(ctx, widgetCRD(nil), metav1.CreateOptions{DryRun: dryRun})
			require.NoError(t, err)
			return apihelpers.IsCRDConditionFalse(after, apiextensionsv1.NamesAccepted)
		},
		"accepted definition": func(ctx context.Context, t *testing.T, s *testServer) bool {
			crd := internalCRD(t, widgetCRD(nil))
			accept(crd, claims{})
			lost, err := s.names.lostToSource(ctx, "one", crd)
			require.NoError(t, err)
			return lost
		},
	}
	for name, lost := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, customresourcetest.NewData(t), new(counters).wrap)
			ctx := storeContext(t.Context(), request.Cluster{Name: "one"})
			others, wanted := othersOfKind(t)
			source := &beginning{owning: others}
			defer s.names.sources.Add(source)()
			free, conflict, err := s.Reserve(ctx, "one", source.Owner, source, wanted)
			require.NoError(t, err)
			require.Nil(t, conflict)
			source.free = free
			require.True(t, lost(ctx, t, s))
			require.True(t, source.serves.Load())
		})
	}
}

// TestWriteChecksAgain: the response to a write contains the conflict with a source that got the name on
// another server of the shard in the meantime.
func TestWriteChecksAgain(t *testing.T) {
	t.Parallel()
	s := startServer(t, customresourcetest.NewData(t), new(counters).wrap)
	others, _ := othersOfKind(t)
	source := &beginning{owning: others, free: func() {}}
	defer s.names.sources.Add(source)()
	after, err := s.CRDs(t, "one").ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), widgetCRD(nil), metav1.CreateOptions{})
	require.NoError(t, err)
	require.True(t, apihelpers.IsCRDConditionFalse(after, apiextensionsv1.NamesAccepted))
}

// TestReserveReadsStored: names of a stored definition that this server has not received are in use.
func TestReserveReadsStored(t *testing.T) {
	t.Parallel()
	stored := new(counters)
	s := startServer(t, customresourcetest.NewData(t), stored.wrap)
	ctx := storeContext(t.Context(), request.Cluster{Name: "one"})
	stored.events.Lock()
	crd := widgetCRD(nil)
	crd.UID = "u"
	acceptedElsewhere(ctx, t, s, crd)
	others, wanted := othersOfKind(t)
	free, conflict, err := s.Reserve(ctx, "one", others.Owner, others, wanted)
	known := s.Index().has("one", widgets)
	stored.events.Unlock()
	require.NoError(t, err)
	require.False(t, known)
	require.Nil(t, free)
	require.Equal(t, &Conflict{Group: widgets.Group, Name: "Widget", By: "CustomResourceDefinition " + crd.Name}, conflict)
	require.Eventually(t, func() bool { return s.serves(t, "one", widgets) }, deadline, tick, "the definition must keep its names")
}

// TestCrashBeforeYielding: if two servers of the shard gave the same name to two definitions, the later one
// yields even if its server crashed.
func TestCrashBeforeYielding(t *testing.T) {
	t.Parallel()
	s := startServer(t, customresourcetest.NewData(t), new(counters).wrap)
	ctx := storeContext(t.Context(), request.Cluster{Name: "one"})
	for _, plural := range []string{"firsts", "seconds"} {
		crd := widgetCRD(nil)
		crd.Name, crd.Spec.Names.Plural, crd.UID = plural+".example.com", plural, types.UID(plural)
		acceptedElsewhere(ctx, t, s, crd)
	}
	require.Eventually(t, func() bool { return !s.established(t, "seconds.example.com") }, deadline, tick, "the later definition must yield")
	require.True(t, s.established(t, "firsts.example.com"))
}

// TestYield: only definitions with names of a source yield.
func TestYield(t *testing.T) {
	t.Parallel()
	s := startServer(t, customresourcetest.NewData(t), new(counters).wrap)
	ctx := storeContext(t.Context(), request.Cluster{Name: "one"})
	other := widgetCRD(nil)
	other.Name, other.Spec.Names = "gizmos.example.com", apiextensionsv1.CustomResourceDefinitionNames{Plural: "gizmos", Kind: "Gizmo"}
	s.CreateCRD(t, "one", widgetCRD(nil))
	s.CreateCRD(t, "one", other)
	others, wanted := othersOfKind(t)
	defer s.names.sources.Add(others)()
	require.True(t, s.Defines("one", widgets.Group))
	require.False(t, s.Defines("two", widgets.Group))
	require.NoError(t, s.Yield(ctx, "one", wanted))
	require.False(t, s.established(t, "widgets.example.com"))
	require.True(t, s.established(t, "gizmos.example.com"))
}

// established reports whether a definition of the logical cluster "one" is established.
func (s *testServer) established(t *testing.T, name string) bool {
	t.Helper()
	crd, err := (&Managed{storage: s.Storage}).Get(t.Context(), "one", name)
	require.NoError(t, err)
	return apiextensions.IsCRDConditionTrue(crd, apiextensions.Established)
}

// TestDocumented: the documentation contains all reasons of rejected names.
func TestDocumented(t *testing.T) {
	taken, reported := claims{}, map[string]bool{}
	taken.add(&apiextensions.CustomResourceDefinitionNames{Plural: "as", Kind: "A"}, "another")
	for _, names := range []apiextensions.CustomResourceDefinitionNames{
		{Plural: "as"}, {Singular: "as"}, {ShortNames: []string{"as"}}, {Kind: "A"}, {ListKind: "A"},
	} {
		crd := &apiextensions.CustomResourceDefinition{Spec: apiextensions.CustomResourceDefinitionSpec{Names: names}}
		accept(crd, taken)
		for _, c := range crd.Status.Conditions {
			reported[string(c.Type)+" "+c.Reason] = true
		}
	}
	require.ElementsMatch(t, documented.Conditions(t, "CustomResourceDefinition"), slices.Collect(maps.Keys(reported)))
}
