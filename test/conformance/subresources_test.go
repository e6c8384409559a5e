package conformance

import (
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const withSubresources = "subresources: {status: {}, scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}}\n"

var subresourceRules = []rule{
	{"scale reads and writes the fields at its paths", func(u *user) {
		u.define(versioned(withSubresources))
		u.widget("a", `{size: 3}`)
		_, err := u.widgets().Patch(u.t.Context(), "a", types.MergePatchType, []byte(`{"status":{"replicas":2,"selector":"app=x"}}`), metav1.PatchOptions{}, "status")
		require.NoError(u.t, err)
		scale, err := u.widgets().Get(u.t.Context(), "a", metav1.GetOptions{}, "scale")
		require.NoError(u.t, err)
		require.Equal(u.t, "autoscaling/v1 Scale", scale.GetAPIVersion()+" "+scale.GetKind())
		require.Equal(u.t, int64(3), field(u.t, scale, "spec", "replicas"))
		require.Equal(u.t, int64(2), field(u.t, scale, "status", "replicas"))
		require.Equal(u.t, "app=x", field(u.t, scale, "status", "selector"))

		scale.Object["spec"] = map[string]any{"replicas": int64(5)}
		_, err = u.widgets().Update(u.t.Context(), scale, metav1.UpdateOptions{}, "scale")
		require.NoError(u.t, err)
		w := u.get(u.widgets(), "a")
		require.Equal(u.t, int64(5), field(u.t, w, "spec", "size"))
	}},
	{"subresources that a definition does not have are not found", func(u *user) {
		u.define(widgets())
		w := u.widget("a", `{size: 3}`)
		_, err := u.widgets().UpdateStatus(u.t.Context(), w, metav1.UpdateOptions{})
		require.True(u.t, apierrors.IsNotFound(err), "%v", err)
		_, err = u.widgets().Get(u.t.Context(), "a", metav1.GetOptions{}, "scale")
		require.True(u.t, apierrors.IsNotFound(err), "%v", err)
		w.Object["status"] = map[string]any{"phase": "Ready"}
		w, err = u.widgets().Update(u.t.Context(), w, metav1.UpdateOptions{})
		require.NoError(u.t, err)
		require.Equal(u.t, "Ready", field(u.t, w, "status", "phase"), "the status was not updated although there is no subresource")
	}},
}
