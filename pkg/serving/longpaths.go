package serving

import (
	"fmt"
	"net/http"
)

// maxPath is how many bytes of a path are served: many times what the longest names
// of a group, a resource, a namespace and an object make. Selectors are in the query.
const maxPath = 8 << 10

// LongPaths returns the filter that refuses very long paths, before anything is
// done about them: authorizers, audit events and logs look at paths again and again.
func LongPaths() Filter {
	return Filter{"long paths", "414", func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if len(r.URL.Path) <= maxPath && len(r.URL.RawPath) <= maxPath {
				next.ServeHTTP(w, r)
				return
			}
			http.Error(w, fmt.Sprintf("the path of the request is longer than %d bytes", maxPath), http.StatusRequestURITooLong)
		})
	}}
}
