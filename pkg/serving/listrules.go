package serving

import (
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
)

// WithListRules assembles the filters of list and watch requests around the
// handlers of resources:
//
//	withShardSelector   400 for selectors that cannot be honoured
//	└── withShardInfo   tables and lists of metadata say which part they are
//	    └── withParsedSelector   the storage gets the selector as it was parsed
//	        └── next
//
// It comes after authorization: what is wrong with a request is told to who may
// send it.
func WithListRules(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	selectors := newSelectorCache()
	return withShardSelector(withShardInfo(withParsedSelector(next, selectors), selectors), selectors, s)
}
