package serving

import (
	"net/http"
	"sync"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
)

// InstallOpenAPI serves the OpenAPI documents of the built-in resources of s, which was created with c. Upstream builds
// them at startup. They are built for the first request here, because most servers do not get one for a long time, and
// the documents need 8 MB and a sixth of the CPU time of a start.
func InstallOpenAPI(s *genericapiserver.GenericAPIServer, c *genericapiserver.Config) {
	documents := sync.OnceValue(func() http.Handler {
		served := mux.NewPathRecorderMux("openapi")
		openapi := routes.OpenAPI{Config: c.OpenAPIConfig, V3Config: c.OpenAPIV3Config}
		openapi.InstallV2(s.Handler.GoRestfulContainer, served)
		openapi.InstallV3(s.Handler.GoRestfulContainer, served)
		return served
	})
	serve := func(w http.ResponseWriter, r *http.Request) { documents().ServeHTTP(w, r) }
	for _, path := range []string{"/openapi/v2", "/openapi/v3"} {
		s.Handler.NonGoRestfulMux.HandleFunc(path, serve)
	}
	s.Handler.NonGoRestfulMux.HandlePrefix("/openapi/v3/", http.HandlerFunc(serve))
}
