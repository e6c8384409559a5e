package serving

import (
	"net/http"
	"sync"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// WithEntry says in the header of answers whether they were given after somebody
// was allowed to enter the logical cluster, for the front-proxy. It stands around
// what decides so, and sees in the same goroutine that it is decided: whatever
// refuses the request further in, such as a limit, has it said. It also notes who
// pays for the request, before it may be somebody else's by impersonation.
func WithEntry(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set(request.AccessAuthorizedHeader, "false")
		// Once: what the request does later may ask again, elsewhere and at any time.
		var once sync.Once
		ctx := request.WithEntry(r.Context(), func() {
			once.Do(func() { header.Set(request.AccessAuthorizedHeader, "true") })
		})
		if who, ok := apirequest.UserFrom(ctx); ok {
			cluster, _ := request.ClusterFrom(ctx)
			ctx = identity.WithFlow(ctx, identity.FlowOf(cluster.Name, who))
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}
