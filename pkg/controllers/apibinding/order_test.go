package apibinding

import (
	"fmt"
	"math/rand/v2"
	"testing"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/test/crash"
)

// whole returns events that lead to a binding with two resources in any order that keeps the versions of an object in order.
func whole() [][]func(*world) {
	schemaIs := func(name string) func(*world) { return func(w *world) { w.schemas[name] = types.UID(name) } }
	return [][]func(*world){
		{
			func(w *world) { w.offer(widgetsOne) },
			func(w *world) { w.exports["e"].Status.IdentityHash = "h" },
			func(w *world) { w.offer(widgetsTwo, gadgets) },
			func(w *world) {
				w.exports["e"].Spec.PermissionClaims = []apisv1alpha2.PermissionClaim{claimFor("secrets", "get"), claimFor("configmaps", "get")}
			},
		},
		{schemaIs(widgetsOne)}, {schemaIs(widgetsTwo)}, {schemaIs(gadgets)},
		{func(w *world) { w.bind("b") }, accept("secrets")},
		{func(w *world) { w.taken["gadgets"] = "crd" }, func(w *world) { delete(w.taken, "gadgets") }},
	}
}

func accept(resources ...string) func(*world) {
	return func(w *world) {
		w.bindings["b"].Spec.PermissionClaims = nil
		for _, resource := range resources {
			w.bindings["b"].Spec.PermissionClaims = append(w.bindings["b"].Spec.PermissionClaims, accepts(claimFor(resource), "get"))
		}
	}
}

func ends() [][]func(*world) {
	return [][]func(*world){
		{func(w *world) { delete(w.exports, "e") }},
		{accept("secrets", "configmaps")},
		{func(w *world) { delete(w.schemas, widgetsTwo) }},
		{func(w *world) { delete(w.schemas, gadgets) }},
	}
}

func bound(t *testing.T) *world {
	t.Helper()
	w := offering("a")
	w.offer(widgetsOne, gadgets)
	w.schemas[widgetsTwo], w.schemas[gadgets] = widgetsTwo, gadgets
	w.converge(t)
	w.objects["widgets/"+widgetsOne], w.objects["gadgets/"+gadgets] = 3, 2
	w.Calls = 0
	return w
}

func (w *world) remove(name string) {
	if b := w.bindings[name]; b != nil {
		b.DeletionTimestamp = new(metav1.Now())
	}
}

// TestEveryCrash: crashes of the controller before or after any side effect, and any order of independent events, do not
// change the final state.
func TestEveryCrash(t *testing.T) {
	type lines = [][]func(*world)
	removed := func(w *world) { w.remove("a") }
	emptied := func(t *testing.T, w *world) {
		t.Helper()
		require.Empty(t, w.bindings)
		require.NotContains(t, w.lc.Annotations, locks)
		require.Zero(t, w.objects["widgets/"+widgetsOne]+w.objects["gadgets/"+gadgets])
	}
	for name, flow := range map[string]struct {
		events lines
		check  func(t *testing.T, w *world)
	}{
		"unbinding": {lines{{removed}}, emptied},
		"unbinding from a deleted export": {lines{
			{removed}, {func(w *world) { delete(w.exports, "e") }}, {func(w *world) { delete(w.schemas, widgetsOne) }}, {func(w *world) { delete(w.schemas, gadgets) }},
		}, emptied},
		"deletion of the logical cluster": {lines{{removed}, {func(w *world) { w.lc = nil }}}, func(t *testing.T, w *world) {
			t.Helper()
			require.Empty(t, w.bindings)
			require.Zero(t, w.objects["widgets/"+widgetsOne]+w.objects["gadgets/"+gadgets])
		}},
		"new schema": {lines{{func(w *world) { w.offer(widgetsTwo) }, func(w *world) { w.offer(widgetsTwo, gadgets) }}}, func(t *testing.T, w *world) {
			t.Helper()
			status := w.bindings["a"].Status
			require.Len(t, status.BoundResources, 2)
			require.Equal(t, widgetsTwo, status.BoundResources[0].Schema.Name)
			require.True(t, w.pinned[widgetsTwo])
			require.Equal(t, 3, w.objects["widgets/"+widgetsOne])
			require.True(t, conditions.IsTrue(w.bindings["a"], apisv1alpha2.BindingUpToDate))
		}},
		"takeover": {lines{{func(w *world) { w.bind("b") }, removed}}, func(t *testing.T, w *world) {
			t.Helper()
			require.Len(t, w.bindings, 1)
			require.True(t, conditions.IsTrue(w.bindings["b"], "Ready"))
			require.Equal(t, 3, w.objects["widgets/"+widgetsOne])
			require.Equal(t, 2, w.objects["gadgets/"+gadgets])
			require.JSONEq(t, `{"widgets.example.org":{"n":"b"},"gadgets.example.org":{"n":"b"}}`, w.lc.Annotations[locks])
		}},
		"two deleted bindings, one waiting": {lines{{func(w *world) { w.bind("b") }, removed, func(w *world) { w.remove("b") }}}, emptied},
		"two deleted bindings, one never bound": {lines{{
			func(w *world) { w.taken["gadgets"] = "crd" }, func(w *world) { w.bind("b") }, removed, func(w *world) { w.remove("b") },
		}}, emptied},
		"takeover by one of several bindings": {lines{{func(w *world) { w.bind("b") }, removed, func(w *world) { w.remove("b") }}, {func(w *world) { w.bind("c") }}}, func(t *testing.T, w *world) {
			t.Helper()
			require.Len(t, w.bindings, 1)
			require.True(t, conditions.IsTrue(w.bindings["c"], "Ready"))
			require.JSONEq(t, `{"widgets.example.org":{"n":"c"},"gadgets.example.org":{"n":"c"}}`, w.lc.Annotations[locks])
		}},
		"names taken meanwhile": {lines{
			{removed}, {func(w *world) { w.offer(widgetsOne) }, func(w *world) { w.bind("b") }}, {func(w *world) { w.taken["gadgets"] = "crd" }},
		}, func(t *testing.T, w *world) {
			t.Helper()
			require.Len(t, w.bindings, 1)
			require.JSONEq(t, `{"widgets.example.org":{"n":"b"}}`, w.lc.Annotations[locks])
			require.True(t, conditions.IsTrue(w.bindings["b"], "Ready"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			copied := func() (all lines) {
				for _, line := range flow.events {
					all = append(all, append([]func(*world){}, line...))
				}
				return all
			}
			const crashes = 140
			var last int
			for seed := range uint64(3 * crashes) {
				w := bound(t)
				w.Process = crash.Point(2 + int(seed)%crashes)
				w.play(t, rand.New(rand.NewPCG(seed, 2)), copied())
				last = max(last, w.Calls)
				t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { flow.check(t, w) })
			}
			require.Less(t, last, crashes/2, "the crash points do not cover all side effects")
		})
	}
}
