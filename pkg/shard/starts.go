package shard

import (
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// withData returns to servers that follow this shard which data they observe. It rejects a resourceVersion with 410 if
// it is from data that was replaced by an older backup since, because the same revisions may mean other changes now.
func (s *storedData) withData(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, follows := r.Header[request.DataHeader]
		if u, ok := apirequest.UserFrom(r.Context()); !follows || !ok || !identity.MemberOf(r.Context(), u, user.SystemPrivilegedGroup) {
			next.ServeHTTP(w, r)
			return
		}
		if err := s.checkData(r, given[0]); err != nil {
			responsewriters.ErrorNegotiated(err, registry.Codecs, schema.GroupVersion{Version: "v1"}, w, r)
			return
		}
		w.Header().Set(request.DataHeader, s.starts.Latest())
		next.ServeHTTP(w, r)
	})
}

// checkData returns the API status for a client that has observed other data up to the resourceVersion, or nil.
func (s *storedData) checkData(r *http.Request, seen string) error {
	// An invalid resourceVersion is reported when the request is decoded.
	version, _ := strconv.ParseInt(r.URL.Query().Get("resourceVersion"), 10, 64)
	if seen == "" || version == 0 {
		return nil
	}
	switch same, err := s.starts.Had(r.Context(), seen, version); {
	case err != nil:
		return apierrors.NewInternalError(err)
	case !same:
		return apierrors.NewResourceExpired("the data of the shard was restored from an older backup: changes up to the resource version may be lost")
	default:
		return nil
	}
}
