package documents_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/customresource/documents"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/customresourcetest"
)

type lister []*definitions.Definition

func (l lister) List(context.Context, request.Cluster) ([]*definitions.Definition, error) {
	return l, nil
}

// TestVerbs: discovery lists only the verbs that a virtual workspace serves.
func TestVerbs(t *testing.T) {
	crd := customresourcetest.WidgetCRD(nil)
	apiextensionsserver.Scheme.Default(crd)
	s, err := definitions.NewSchema(&crd.Spec, &crd.Spec.Names)
	require.NoError(t, err)
	all := lister{{Schema: s}}
	served := documents.NewDocuments(all, &documents.BuiltIns{Next: http.NotFoundHandler()}, nil)
	for name, tc := range map[string]struct {
		verbs *definitions.Verbs
		want  map[string][]string
	}{
		"all": {want: map[string][]string{"widgets": documents.ObjectVerbs, "widgets/status": documents.SubresourceVerbs, "widgets/scale": documents.SubresourceVerbs}},
		"read-only": {&definitions.Verbs{Object: []string{"list", "watch"}}, map[string][]string{
			"widgets": {"list", "watch"},
		}},
		"status": {&definitions.Verbs{Object: []string{"get"}, Status: true}, map[string][]string{
			"widgets": {"get"}, "widgets/status": documents.SubresourceVerbs,
		}},
	} {
		get := func(path, accept string, into any) {
			for _, only := range []bool{false, true} {
				ctx := t.Context()
				if tc.verbs != nil {
					ctx = definitions.WithVerbs(ctx, s.Resource, *tc.verbs)
				}
				r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody)
				r.Header.Set("Accept", accept)
				w := httptest.NewRecorder()
				if only {
					require.True(t, served.ServeOnly(w, r, nil, all), name)
				} else {
					require.True(t, served.Serve(w, r, request.Cluster{Name: "one"}), name)
				}
				require.Equal(t, http.StatusOK, w.Code, "%s: %s", name, w.Body)
				require.NoError(t, json.Unmarshal(w.Body.Bytes(), into), name)
			}
		}
		var plain metav1.APIResourceList
		get("/apis/example.com/v1", "application/json", &plain)
		got := map[string][]string{}
		for _, r := range plain.APIResources {
			got[r.Name] = r.Verbs
		}
		require.Equal(t, tc.want, got, name)

		var aggregated apidiscoveryv2.APIGroupDiscoveryList
		get("/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", &aggregated)
		clear(got)
		for _, r := range aggregated.Items[0].Versions[0].Resources {
			got[r.Resource] = r.Verbs
			for _, sub := range r.Subresources {
				got[r.Resource+"/"+sub.Subresource] = sub.Verbs
			}
		}
		require.Equal(t, tc.want, got, name)
	}
}
