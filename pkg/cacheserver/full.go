package cacheserver

import (
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy/cachekinds"
)

// rejectIfFull rejects new replicas while etcd is nearly full. The remaining space is needed for updates and deletions, e.g. of
// permissions, and for checkpoints.
func (d *digests) rejectIfFull(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, scoped := request.ShardFrom(r.Context())
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if !scoped || !ok || !info.IsResourceRequest || info.Verb != "create" || info.APIGroup == cachekinds.SchemeGroupVersion.Group || !d.full() {
			next.ServeHTTP(w, r)
			return
		}
		responsewriters.ErrorNegotiated(request.StatusError(http.StatusInsufficientStorage, metav1.StatusReasonUnknown,
			fmt.Sprintf("%s cannot be stored: the etcd of the cache server is nearly full, so new replicas are rejected: the administrator must free storage", info.Resource)),
			codecs, schema.GroupVersion{Version: "v1"}, w, r)
	})
}

// delayed delays each request unless its client disconnects.
func delayed(delay time.Duration) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			timer := time.NewTimer(delay)
			defer timer.Stop()
			select {
			case <-timer.C:
				next.ServeHTTP(w, r)
			case <-r.Context().Done():
			}
		})
	}
}
