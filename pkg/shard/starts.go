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

// withData tells servers that follow what the shard has which data they see, and has them read it
// anew (410) where the data was set back since: its revisions may have got as far again as they
// have seen the former ones.
func (s *storedData) withData(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, follows := r.Header[request.DataHeader]
		if who, ok := apirequest.UserFrom(r.Context()); !follows || !ok || !identity.MemberOf(r.Context(), who, user.SystemPrivilegedGroup) {
			next.ServeHTTP(w, r)
			return
		}
		if err := s.sameData(r, given[0]); err != nil {
			responsewriters.ErrorNegotiated(err, registry.Codecs, schema.GroupVersion{Version: "v1"}, w, r)
			return
		}
		w.Header().Set(request.DataHeader, s.starts.Latest())
		next.ServeHTTP(w, r)
	})
}

// sameData returns the answer to who has seen other data up to the resourceVersion, or nil.
func (s *storedData) sameData(r *http.Request, seen string) error {
	// What is none is for whoever decodes the request.
	version, _ := strconv.ParseInt(r.URL.Query().Get("resourceVersion"), 10, 64)
	if seen == "" || version == 0 {
		return nil
	}
	switch same, err := s.starts.Had(r.Context(), seen, version); {
	case err != nil:
		return apierrors.NewInternalError(err)
	case !same:
		return apierrors.NewResourceExpired("the data of the shard was set back: what was seen up to the resource version may not be there")
	default:
		return nil
	}
}
