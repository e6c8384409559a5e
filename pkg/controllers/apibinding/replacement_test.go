package apibinding

import (
	"context"
	"fmt"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
)

const widgetsThree = "v3.widgets.example.org"

// racing has bindings in several logical clusters. The schemas widgetsTwo and widgetsThree are incompatible.
type racing struct {
	*world
	checks    int
	meanwhile map[int]func() // called after the n-th check
}

func (w *racing) CheckReplacement(_ context.Context, _, next *apisv1alpha2.BoundAPIResource) error {
	w.checks++
	defer func() {
		if f := w.meanwhile[w.checks]; f != nil {
			f()
		}
	}()
	for _, b := range w.bindings {
		for _, r := range b.Status.BoundResources {
			if r.Schema.Name != next.Schema.Name && r.Schema.Name != widgetsOne {
				return fmt.Errorf("%w: cannot replace %s", apis.ErrInUse, r.Schema.Name)
			}
		}
	}
	return nil
}

func (*racing) Reserve(context.Context, logicalcluster.Name, string, []types.UID) (func(), string, error) {
	return func() {}, "", nil
}

// TestReplacementsAreSerialized: of two concurrent bindings with incompatible schemas, only one gets its schema. Bindings
// with the same schema do not wait for each other.
func TestReplacementsAreSerialized(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{"a new binding": "", "a binding with a previous schema": widgetsOne} {
		for _, other := range []string{widgetsTwo, widgetsThree} {
			t.Run(name+" and "+other, func(t *testing.T) {
				t.Parallel()
				w := &racing{world: newWorld()}
				w.r.apis = w
				for _, schema := range []string{widgetsOne, widgetsTwo, widgetsThree} {
					w.schemas[schema] = types.UID(schema)
				}
				reconcile := func(ctx context.Context, name string) error {
					_, err := w.r.reconcile(ctx, client.Key{Cluster: logicalcluster.Name(name), Name: name})
					return err
				}
				w.offer(other)
				w.exports["e"].Status.IdentityHash = "h"
				w.exports["f"] = w.exports["e"]
				delete(w.exports, "e")
				w.bind("a")
				if before != "" {
					w.offer(before)
					w.exports["e"].Status.IdentityHash = "h"
					require.NoError(t, reconcile(t.Context(), "a"))
					require.Len(t, w.bindings["a"].Status.BoundResources, 1)
				}
				w.offer(widgetsTwo)
				w.exports["e"].Status.IdentityHash = "h"
				w.bind("b")
				w.bindings["b"].Spec.Reference.Export.Name = "f"
				w.bindings["b"].Labels[apis.ExportLabel] = apis.ExportLabelValue(provider, "f")

				w.checks = 0
				w.meanwhile = map[int]func(){1: func() {
					ctx, cancel := context.WithCancel(t.Context())
					cancel() // it must not wait
					if err := reconcile(ctx, "b"); other != widgetsTwo {
						require.ErrorIs(t, err, context.Canceled)
					} else {
						require.NoError(t, err)
					}
				}}
				require.NoError(t, reconcile(t.Context(), "a"))
				require.Positive(t, w.checks)
				require.NoError(t, reconcile(t.Context(), "b"))
				require.Equal(t, widgetsTwo, w.bindings["a"].Status.BoundResources[0].Schema.Name)
				if other == widgetsTwo {
					require.Len(t, w.bindings["b"].Status.BoundResources, 1)
					return
				}
				require.Empty(t, w.bindings["b"].Status.BoundResources, "two incompatible schemas are bound")
				require.Equal(t, "APIResourceSchemaInvalid", conditions.Get(w.bindings["b"], apisv1alpha2.BindingUpToDate).Reason)
			})
		}
	}
}

// TestReplacementsWait: a binding waits until no other schema is about to be bound for any of its resources, and does not
// block others while it waits.
func TestReplacementsWait(t *testing.T) {
	t.Parallel()
	of := func(resource, uid, identity string) apisv1alpha2.BoundAPIResource {
		return apisv1alpha2.BoundAPIResource{Group: "example.org", Resource: resource, Schema: apisv1alpha2.BoundAPIResourceSchema{UID: uid, IdentityHash: identity}}
	}
	var s replacements
	start := func(resources ...apisv1alpha2.BoundAPIResource) (done func()) {
		t.Helper()
		done, err := s.start(t.Context(), resources)
		require.NoError(t, err)
		return done
	}
	first, second := start(of("widgets", "one", "h")), start(of("widgets", "one", "h"), of("gadgets", "one", "h"))
	start(of("widgets", "two", "other"))()
	started := make(chan error)
	go func() {
		done, err := s.start(t.Context(), []apisv1alpha2.BoundAPIResource{of("things", "two", "h"), of("widgets", "two", "h")})
		if err == nil {
			done()
		}
		started <- err
	}()
	start(of("things", "one", "h"))() // the waiting one has registered nothing
	first()
	require.NotNil(t, s.tryStart([]apisv1alpha2.BoundAPIResource{of("widgets", "two", "h")}), "a binding must wait until all replacements with another schema have ended")
	second()
	require.NoError(t, <-started)
	require.Empty(t, s.pending)
}
