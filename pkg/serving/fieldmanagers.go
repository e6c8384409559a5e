package serving

import (
	"fmt"
	"mime"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/fieldmanagers"
	"github.com/shardplane/shardplane/pkg/serving/bodies"
)

// WithFieldManagerLimit is the filter that refuses objects, and patches, which bring too many
// entries of metadata.managedFields along. It comes after the one that reads bodies.
func WithFieldManagerLimit(next http.Handler, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := genericapirequest.RequestInfoFrom(r.Context())
		// Of what is written to a subresource the library takes no managers.
		if !ok || !info.IsResourceRequest || info.Subresource != "" || !bodies.In(r) {
			next.ServeHTTP(w, r)
			return
		}
		mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")) // upstream judges what is malformed
		if body, ok := bodies.Unread(r); ok && fieldmanagers.Exceed(body, mediaType, request.MaxFieldManagers) {
			respond(w, r, s, apierrors.NewBadRequest(fmt.Sprintf("metadata.managedFields may have %d entries, and a patch may not copy or move any: remove those of managers that do not write the object any more", request.MaxFieldManagers)))
			return
		}
		next.ServeHTTP(w, r)
	})
}
