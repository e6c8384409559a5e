package apibinding

import (
	"fmt"
	"strings"
	"testing"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/client"
)

// TestNoRoom: who waits for room for a schema is known, until there is some, or the
// binding goes.
func TestNoRoom(t *testing.T) {
	w := newWorld()
	w.offer(widgetsOne)
	w.exports["e"].Status.IdentityHash = "h"
	w.schemas[widgetsOne] = "large"
	w.bind("b")
	w.converge(t)
	require.Equal(t, "APIResourceSchemaInvalid", conditions.Get(w.bindings["b"], apisv1alpha2.BindingUpToDate).Reason)
	require.Equal(t, []client.Key{{Cluster: consumer, Name: "b"}}, w.r.roomless.everywhere())
	w.schemas[widgetsOne] = widgetsOne
	w.converge(t)
	require.True(t, conditions.IsTrue(w.bindings["b"], "Ready"))
	require.Empty(t, w.r.roomless.everywhere())
	w.schemas[widgetsOne] = "bad"
	w.converge(t)
	require.Empty(t, w.r.roomless.everywhere(), "to wait does not help")
}

// TestTooManyBound: what is bound in a logical cluster has to fit in the annotation that
// tells of it.
func TestTooManyBound(t *testing.T) {
	w := newWorld()
	w.offer(widgetsOne)
	w.exports["e"].Status.IdentityHash = "h"
	w.schemas[widgetsOne] = widgetsOne
	others := fmt.Sprintf(`{"others.example.org":{"n":%q}}`, strings.Repeat("o", maxLocksBytes))
	w.lc.Annotations[locks] = others
	w.bind("b")
	w.converge(t)
	condition := conditions.Get(w.bindings["b"], apisv1alpha2.BindingUpToDate)
	require.Equal(t, "InternalError", condition.Reason)
	require.Contains(t, condition.Message, "delete other bindings")
	require.Empty(t, w.bindings["b"].Status.BoundResources)
	require.Equal(t, others, w.lc.Annotations[locks])
	require.Equal(t, []client.Key{{Cluster: consumer, Name: "b"}}, w.r.waiting.in(consumer), "it is looked at again when another one goes")
	w.lc.Annotations[locks] = ""
	w.converge(t)
	require.True(t, conditions.IsTrue(w.bindings["b"], "Ready"))
	require.Empty(t, w.r.waiting.in(consumer))
}

// TestIncompatibleSchema: a binding keeps the schema with which its objects can be read, if the export names
// one with which they cannot, and binds nothing of the kind anew.
func TestIncompatibleSchema(t *testing.T) {
	const unlike = "unlike.widgets.example.org"
	w := bound(t)
	w.schemas[unlike] = unlike
	w.offer(unlike, gadgets)
	w.bind("b")
	w.converge(t)
	kept := w.bindings["a"]
	require.Equal(t, widgetsOne, kept.Status.BoundResources[0].Schema.Name)
	condition := conditions.Get(kept, apisv1alpha2.BindingUpToDate)
	require.NotNil(t, condition)
	require.Equal(t, "APIResourceSchemaInvalid", condition.Reason)
	require.Contains(t, condition.Message, "cannot replace "+widgetsOne)
	require.True(t, conditions.IsTrue(kept, "Ready"), "what is bound is served")
	require.Empty(t, w.bindings["b"].Status.BoundResources)
	require.Equal(t, []client.Key{{Cluster: consumer, Name: "b"}}, w.r.roomless.everywhere(), "it is tried again when others do not use the former schema")
	w.offer(widgetsTwo, gadgets)
	delete(w.bindings, "b")
	w.converge(t)
	require.True(t, conditions.IsTrue(w.bindings["a"], apisv1alpha2.BindingUpToDate))
	require.Equal(t, widgetsTwo, w.bindings["a"].Status.BoundResources[0].Schema.Name)
}
