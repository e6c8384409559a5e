package defaults

import (
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

func systemWorld(exports ...string) *world {
	w := newWorld()
	w.lc.Status.Initializers = nil
	w.b.config.BindsSystem = true
	for _, name := range exports {
		w.offer(name)
	}
	w.b.export = func(key client.Key) (*apisv1alpha2.APIExport, error) {
		if e := w.exports[key.Name]; e != nil && key.Cluster == "root" {
			return e, nil
		}
		return nil, errNone
	}
	w.b.siblings = func(logicalcluster.Name) (all []*apisv1alpha2.APIBinding) {
		for _, b := range w.bindings {
			b.Labels = map[string]string{apis.ExportLabel: apis.ExportLabelValue("root", b.Spec.Reference.Export.Name)}
			all = append(all, b)
		}
		return all
	}
	return w
}

func (w *world) recorded() string {
	return w.lc.Annotations[tenancy.SystemBindingsAnnotation]
}

// TestAdopt: a logical cluster is restricted to its bindings only when it has bound all that it had, or those of its type.
func TestAdopt(t *testing.T) {
	t.Parallel()
	w := systemWorld("topology.kcp.io")
	_, again, err := w.b.Make(t.Context(), w.lc)
	require.NoError(t, err)
	require.True(t, again, "a missing export of root must be retried")
	w.offer("tenancy.kcp.io")
	w.step(t)
	require.Len(t, w.bindings, 2)
	require.Empty(t, w.recorded(), "bindings must not be recorded before they are bound")
	require.NotEmpty(t, w.b.watching(cluster))
	w.bound()
	w.step(t)
	require.Equal(t, "true", w.recorded())
	w.bindings = map[string]*apisv1alpha2.APIBinding{}
	w.step(t)
	require.Empty(t, w.bindings, "bindings that users have deleted must not be recreated")

	// Exports that are bound elsewhere on the shard are bound immediately.
	w = systemWorld("tenancy.kcp.io", "topology.kcp.io")
	w.elsewhere = map[string]bool{"tenancy.kcp.io": true, "topology.kcp.io": true}
	w.step(t)
	require.Equal(t, 2, w.version)
	require.Equal(t, "true", w.recorded())

	// A new one gets those of its type; root also gets shards.
	for names, count := range map[string]int{"tenancy.kcp.io": 1, "tenancy.kcp.io,topology.kcp.io": 2, "mine,tenancy.kcp.io": 1} {
		w = systemWorld("tenancy.kcp.io", "topology.kcp.io", "mine")
		w.lc.Annotations[tenancy.SystemBindingsAnnotation] = names
		w.step(t)
		require.Len(t, w.bindings, count, names)
	}

	// A binding of a user is sufficient, unless it is being deleted.
	w = systemWorld("tenancy.kcp.io")
	w.lc.Annotations[tenancy.SystemBindingsAnnotation] = "tenancy.kcp.io"
	own := &apisv1alpha2.APIBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "own", DeletionTimestamp: new(metav1.Now())},
		Spec:       apisv1alpha2.APIBindingSpec{Reference: apisv1alpha2.BindingReference{Export: &apisv1alpha2.ExportBindingReference{Path: "root", Name: "tenancy.kcp.io"}}},
	}
	conditions.MarkTrue(own, apisv1alpha2.InitialBindingCompleted)
	w.bindings["own"] = own
	w.step(t)
	require.Len(t, w.bindings, 1)
	require.Equal(t, "tenancy.kcp.io", w.recorded())
	own.DeletionTimestamp = nil
	w.step(t)
	require.Len(t, w.bindings, 1)
	require.Equal(t, "true", w.recorded())

	// Nothing changes while the exports of root are unknown, and in system logical clusters.
	for _, change := range []func(*world){
		func(w *world) { w.b.config.BindsSystem = false },
		func(w *world) { w.lc.Annotations["kcp.io/cluster"] = "system:admin" },
	} {
		w = systemWorld("tenancy.kcp.io", "topology.kcp.io")
		change(w)
		w.step(t)
		require.Empty(t, w.bindings)
		require.Empty(t, w.recorded())
	}
}
