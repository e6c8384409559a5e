package reserved_test

import (
	"cmp"
	"context"
	"errors"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/admission/reserved"
	"github.com/shardplane/shardplane/pkg/request"
)

func find(_ context.Context, cluster logicalcluster.Name) (*corev1alpha1.LogicalCluster, error) {
	lc := &corev1alpha1.LogicalCluster{}
	lc.Annotations = map[string]string{"kcp.io/cluster": cluster.String(), "kcp.io/path": "root:here"}
	switch cluster {
	case "here":
	case "pathless":
		delete(lc.Annotations, "kcp.io/path")
	case "unknown":
		return nil, errors.New("connection refused")
	default:
		return nil, nil //nolint:nilnil // there is none
	}
	return lc, nil
}

func TestPath(t *testing.T) {
	exports := schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha1", Resource: "apiexports"}
	bindings := schema.GroupVersionResource{Group: "apis.kcp.io", Version: "v1alpha2", Resource: "apibindings"}
	types := schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspacetypes"}
	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	clusters := schema.GroupVersionResource{Group: "core.kcp.io", Version: "v1alpha1", Resource: "logicalclusters"}
	for name, tc := range map[string]struct {
		resource           schema.GroupVersionResource
		subresource        string
		cluster            logicalcluster.Name
		given, old, edited string // by webhooks
		want, wantErr      string
	}{
		"export":                                 {resource: exports, want: "root:here"},
		"binding":                                {resource: bindings, want: "root:here"},
		"type":                                   {resource: types, want: "root:here"},
		"correct":                                {resource: types, given: "root:here", want: "root:here"},
		"wrong":                                  {resource: exports, given: "root:other", want: "root:here"},
		"omitted in an update":                   {resource: exports, old: "root:here", want: "root:here"},
		"wrong in the old object":                {resource: types, old: "none", want: "root:here"},
		"wrong in an update":                     {resource: bindings, old: "root:here", given: "root:other", want: "root:here"},
		"status":                                 {resource: exports, subresource: "status", old: "root:here", want: ""},
		"no path":                                {resource: exports, cluster: "pathless", given: "root:other", want: "pathless"},
		"no logical cluster":                     {resource: exports, cluster: "none", given: "root:other", want: "root:other"},
		"failed lookup":                          {resource: exports, cluster: "unknown", wantErr: "connection refused"},
		"another resource":                       {resource: configMaps},
		"another resource, failed lookup":        {resource: configMaps, cluster: "unknown"},
		"another resource, correct":              {resource: configMaps, given: "root:here", want: "root:here"},
		"another resource, copied":               {resource: configMaps, given: "root:other", want: "root:here"},
		"another resource, removed":              {resource: configMaps, old: "root:here"},
		"LogicalCluster":                         {resource: clusters, given: "root:other", want: "root:other"},
		"changed by a webhook":                   {resource: exports, edited: "root:other", wantErr: "must not change it"},
		"another resource, changed by a webhook": {resource: configMaps, edited: "root:other", wantErr: "must not change it"},
	} {
		t.Run(name, func(t *testing.T) {
			object := func(path string) *unstructured.Unstructured {
				u := &unstructured.Unstructured{Object: map[string]any{}}
				if path != "" {
					u.SetAnnotations(map[string]string{"kcp.io/path": path})
				}
				return u
			}
			operation, old, obj := admission.Create, runtime.Object(nil), object(tc.given)
			if tc.old != "" {
				operation, old = admission.Update, object(tc.old)
			}
			ctx := request.WithClusterName(t.Context(), cmp.Or(tc.cluster, "here"))
			a := admission.NewAttributesRecord(obj, old, schema.GroupVersionKind{}, "", "x", tc.resource, tc.subresource, operation, nil, false, nil)
			p := reserved.NewPathAnnotation(find)
			err := p.Admit(ctx, a, nil)
			if err == nil {
				if tc.edited != "" {
					obj.SetAnnotations(map[string]string{"kcp.io/path": tc.edited})
				}
				err = p.Validate(ctx, a, nil)
			}
			if tc.wantErr != "" {
				require.ErrorContains(t, err, tc.wantErr)
				require.Equal(t, tc.edited != "", apierrors.IsForbidden(err))
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, obj.GetAnnotations()["kcp.io/path"])
		})
	}
	require.True(t, reserved.NewPathAnnotation(find).Handles(admission.Update))
	require.False(t, reserved.NewPathAnnotation(find).Handles(admission.Delete))
}
