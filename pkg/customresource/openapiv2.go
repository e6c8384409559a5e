package customresource

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	apiextensionsfeatures "k8s.io/apiextensions-apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/shardplane/shardplane/pkg/customresource/openapigate"
)

const openapiV2Path = "/openapi/v2"

// serveV2 answers /openapi/v2, which older clients ask for.
func (s *documentSet) serveV2(w http.ResponseWriter, r *http.Request) bool {
	served, err := s.makeV2(r.Context())
	switch {
	case err != nil:
		writeUnavailable(w, r, err)
		return true
	case served == nil:
		return false
	default:
		served.ServeHTTP(w, r)
		return true
	}
}

// makeV2 merges the definitions into the built-in document. It returns nil if
// there is none.
func (s *documentSet) makeV2(ctx context.Context) (http.Handler, error) {
	s.openapi.v2mu.Lock()
	defer s.openapi.v2mu.Unlock()
	if known, ok := s.openapi.v2.Get(s.key); ok {
		served, _ := known.(http.Handler)
		return served, nil
	}
	status, body := get(ctx, s.builtIns.next, openapiV2Path, http.Header{"Accept": {"application/json"}})
	if status == http.StatusNotFound {
		return nil, nil
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("the built-in OpenAPI v2 document answered %d", status)
	}
	var builtIn spec.Swagger
	if err := json.Unmarshal(body, &builtIn); err != nil {
		return nil, fmt.Errorf("reading the built-in OpenAPI v2 document: %w", err)
	}
	var own []*spec.Swagger
	for _, d := range s.definitions {
		for i := range d.Schema.Spec().Versions {
			v := &d.Schema.Spec().Versions[i]
			if !v.Served {
				continue
			}
			made, err := buildV2(d.Schema.crd, v.Name)
			if err != nil {
				return nil, err
			}
			own = append(own, made)
		}
	}
	merged, err := builder.MergeSpecs(&builtIn, own...)
	if err != nil {
		return nil, fmt.Errorf("merging OpenAPI v2 documents: %w", err)
	}
	if merged, err = openapigate.V2(merged); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	handler.NewOpenAPIService(merged).RegisterOpenAPIVersionedService(openapiV2Path, pathHandler{mux})
	s.openapi.v2.Add(s.key, mux)
	return mux, nil
}

// buildV2 makes a definition's document; v2 knows less than structural schemas.
func buildV2(crd *apiextensionsv1.CustomResourceDefinition, version string) (*spec.Swagger, error) {
	made, err := builder.BuildOpenAPIV2(crd, version, builder.Options{
		V2:                      true,
		IncludeSelectableFields: utilfeature.DefaultFeatureGate.Enabled(apiextensionsfeatures.CustomResourceFieldSelectors),
	})
	if err != nil {
		return nil, fmt.Errorf("making the OpenAPI v2 document of %s: %w", crd.Name, err)
	}
	return made, nil
}

// pathHandler lets a ServeMux be what upstream registers handlers with.
type pathHandler struct{ *http.ServeMux }

// Handle implements common.PathHandler.
func (p pathHandler) Handle(path string, h http.Handler) { p.ServeMux.Handle(path, h) }
