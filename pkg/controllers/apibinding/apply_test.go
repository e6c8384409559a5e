package apibinding

import (
	"testing"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
)

// TestConcurrentChangeIsRequeued: a binding that has changed since it was observed is not written, but requeued.
func TestConcurrentChangeIsRequeued(t *testing.T) {
	t.Parallel()
	for _, phase := range []apisv1alpha2.APIBindingPhaseType{apisv1alpha2.APIBindingPhaseBinding, apisv1alpha2.APIBindingPhaseBound} {
		w := bound(t)
		w.bindings["a"].Status.Phase = phase
		known := w.bindings["a"].DeepCopy()
		w.r.known = func(client.Key) (*apisv1alpha2.APIBinding, error) { return known, nil }
		stored := w.bindings["a"]
		stored.ResourceVersion = w.next()
		stored.Status.BoundResources = stored.Status.BoundResources[:1]
		w.offer(widgetsTwo, gadgets)
		require.True(t, w.mustReconcile(t, "a").Backoff)
		require.Same(t, stored, w.bindings["a"], phase)
		known = stored
		w.mustReconcile(t, "a")
		require.Equal(t, widgetsTwo, w.bindings["a"].Status.BoundResources[0].Schema.Name)
	}
}

// TestInputIsReadOnce: a reconcile reads its input once, even if the binding is written twice.
func TestInputIsReadOnce(t *testing.T) {
	t.Parallel()
	w := bound(t)
	export, reads := w.r.export, 0
	w.r.export = func(key client.Key) (*apisv1alpha2.APIExport, error) {
		reads++
		return export(key)
	}
	for action, change := range map[string]func(){
		"no change":                   func() {},
		"new schema, no request":      func() { w.offer(widgetsTwo, gadgets) },
		"new annotation, one request": func() { w.exports["e"].Annotations = map[string]string{apis.MirroredPrefix + "note": "hello"} },
		"new binding":                 func() { w.bind("a") },
	} {
		change()
		reads = 0
		w.mustReconcile(t, "a")
		require.Equal(t, 1, reads, action)
		require.True(t, conditions.IsTrue(w.bindings["a"], apisv1alpha2.BindingUpToDate), action)
	}
}
