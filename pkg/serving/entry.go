package serving

import (
	"net/http"
	"sync"

	"github.com/shardplane/shardplane/pkg/request"
)

// WithEntry says in the header of answers whether they were given after somebody
// was allowed to enter the logical cluster, for the front-proxy. It stands around
// what decides so, and sees in the same goroutine that it is decided: whatever
// refuses the request further in, such as a limit, has it said.
func WithEntry(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set(request.EnteredHeader, "false")
		// Once: what the request does later may ask again, elsewhere and at any time.
		var once sync.Once
		ctx := request.WithEntry(r.Context(), func() {
			once.Do(func() {
				header.Set(request.EnteredHeader, "true")
				header.Set(request.AuthorizedHeader, "true")
			})
		})
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}
