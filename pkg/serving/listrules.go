package serving

import (
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
)

// WithListRules is the filter of list and watch requests around the handlers of
// resources. Selectors that are too large, and selectors of shards that cannot be
// honoured, are answered with 400;
// the storage gets the others as they were parsed; tables and lists of metadata
// say which part they are. A DELETECOLLECTION keeps its selector in the query:
// nothing on the way to the storage may lose it, unless it is by logical cluster.
//
// It comes after authorization: what is wrong with a request is told to who may
// send it.
func WithListRules(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	selectors := newSelectorCache()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info := selects(r)
		if info == nil {
			next.ServeHTTP(w, r)
			return
		}
		if err := checkSelectors(r); err != nil {
			respond(w, r, s, err)
			return
		}
		expression := r.URL.Query().Get(shardSelectorParameter)
		if expression == "" {
			next.ServeHTTP(w, r)
			return
		}
		selector, err := selectors.check(expression, info.Verb)
		if err != nil {
			respond(w, r, s, err)
			return
		}
		if selector == nil || keepsSelector(info.Verb, selector) {
			next.ServeHTTP(w, r)
			return
		}
		r = withParsedSelector(r, selector)
		if info.Verb == "list" && !selector.Empty() && asksForConversion(r) {
			serveWithShardInfo(next, w, r, selector.String())
			return
		}
		next.ServeHTTP(w, r)
	})
}
