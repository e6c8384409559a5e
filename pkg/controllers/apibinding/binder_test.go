package apibinding

import (
	"context"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/apis"
)

func (w *world) Like(_ context.Context, export *apisv1alpha2.APIExport) ([]apisv1alpha2.BoundAPIResource, bool) {
	for _, b := range w.bindings {
		if ref := b.Spec.Reference.Export; ref.Name == export.Name && b.Status.Phase == apisv1alpha2.APIBindingPhaseBound {
			return b.DeepCopy().Status.BoundResources, true
		}
	}
	return nil, false
}

func (w *world) Create(_ context.Context, _ logicalcluster.Name, binding *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error) {
	w.bindings[binding.Name] = binding
	binding.ResourceVersion = w.next()
	return binding, nil
}

// TestBinder: a binding that is created by the Binder needs no further writes by the controller.
func TestBinder(t *testing.T) {
	w := newWorld()
	b := &Binder{storage: w, siblings: w.r.siblings}
	binding := bindingTo("root:provider", "e", "a")
	w.offer(widgetsOne)
	w.schemas[widgetsOne] = widgetsOne + "-1"
	export := w.exports["e"]
	export.Annotations, export.Status.IdentityHash = map[string]string{"kcp.io/cluster": provider.String()}, "h"
	made, err := b.Bind(t.Context(), w.lc, binding.DeepCopy(), export)
	require.NoError(t, err)
	require.Nil(t, made, "a binding must not be created before another binding of the export exists")

	w.bind("b")
	w.converge(t)
	made, err = b.Bind(t.Context(), w.lc, binding.DeepCopy(), export)
	require.NoError(t, err)
	require.Nil(t, made, "a binding must not be created if another binding uses the names")

	elsewhere := w.bindings["b"]
	delete(w.bindings, "b")
	w.lc.Annotations = map[string]string{"kcp.io/cluster": consumer.String(), "kcp.io/path": "root:consumer"}
	made, err = (&Binder{storage: like{w, elsewhere}, siblings: w.r.siblings}).Bind(t.Context(), w.lc, binding.DeepCopy(), export)
	require.NoError(t, err)
	require.Equal(t, []string{apis.BindingFinalizer}, made.Finalizers)
	require.Equal(t, map[string]string{apis.ExportLabel: apis.ExportLabelValue(provider, "e")}, made.Labels)
	require.Equal(t, "root:consumer", made.Annotations["kcp.io/path"])
	require.Equal(t, elsewhere.Status.BoundResources, made.Status.BoundResources)

	// Its controller records it when it sets the phase label.
	w.lc.CreationTimestamp = metav1.Now()
	w.lc.Status.Phase = corev1alpha1.LogicalClusterPhaseReady
	before := w.version
	require.Equal(t, startTime, w.mustReconcile(t, "a").RequeueAfter)
	w.lc = b.Note(w.lc, made)
	require.JSONEq(t, `{"widgets.example.org":{"n":"a"}}`, w.lc.Annotations[locks])
	w.lc.Labels = map[string]string{tenancyv1alpha1.WorkspacePhaseLabel: "Ready"}
	require.Zero(t, w.mustReconcile(t, "a"))
	require.Equal(t, before, w.version, "nothing was written")

	// If it was not recorded, the controller does so after a delay.
	delete(w.lc.Annotations, locks)
	w.lc.Labels = nil
	w.r.now = func() time.Time { return time.Now().Add(startTime) }
	w.mustReconcile(t, "a")
	require.Contains(t, w.lc.Annotations, locks)
}

// like simulates a shard with a similar binding.
type like struct {
	*world
	other *apisv1alpha2.APIBinding
}

func (l like) Like(context.Context, *apisv1alpha2.APIExport) ([]apisv1alpha2.BoundAPIResource, bool) {
	return l.other.DeepCopy().Status.BoundResources, true
}
