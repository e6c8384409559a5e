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

// TestNoCapacity: bindings that wait for capacity for a schema are recorded until there is capacity or the binding is deleted.
func TestNoCapacity(t *testing.T) {
	w := offering("b")
	w.schemas[widgetsOne] = "large"
	w.converge(t)
	require.Equal(t, []client.Key{{Cluster: consumer, Name: "b"}}, w.r.overCapacity.Of(capacity))
	w.schemas[widgetsOne] = widgetsOne
	w.converge(t)
	require.True(t, conditions.IsTrue(w.bindings["b"], "Ready"))
	require.Empty(t, w.r.overCapacity.Of(capacity))
	w.schemas[widgetsOne] = "bad"
	w.converge(t)
	require.Empty(t, w.r.overCapacity.Of(capacity), "capacity does not fix an invalid schema")
}

// TestTooManyBound: the bound resources of a logical cluster must fit in an annotation.
func TestTooManyBound(t *testing.T) {
	w := offering("b")
	others := fmt.Sprintf(`{"others.example.org":{"n":%q}}`, strings.Repeat("o", maxLocksBytes))
	w.lc.Annotations[locks] = others
	w.converge(t)
	require.Empty(t, w.bindings["b"].Status.BoundResources)
	require.Equal(t, others, w.lc.Annotations[locks])
	require.Equal(t, []client.Key{{Cluster: consumer, Name: "b"}}, w.r.waiting.Of(consumer.String()), "the binding must be retried when another one is deleted")
	w.lc.Annotations[locks] = ""
	w.converge(t)
	require.True(t, conditions.IsTrue(w.bindings["b"], "Ready"))
	require.Empty(t, w.r.waiting.Of(consumer.String()))
}

// TestIncompatibleSchema: a binding keeps its schema, and new bindings are rejected, if stored objects could not be read
// with the new one.
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
	require.True(t, conditions.IsTrue(kept, "Ready"), "bound resources must stay available")
	require.Empty(t, w.bindings["b"].Status.BoundResources)
	require.Equal(t, []client.Key{{Cluster: consumer, Name: "b"}}, w.r.overCapacity.Of(capacity), "the binding must be retried when no other one uses the previous schema")
	w.offer(widgetsTwo, gadgets)
	delete(w.bindings, "b")
	w.converge(t)
	require.True(t, conditions.IsTrue(w.bindings["a"], apisv1alpha2.BindingUpToDate))
	require.Equal(t, widgetsTwo, w.bindings["a"].Status.BoundResources[0].Schema.Name)
}
