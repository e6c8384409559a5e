package serving

import (
	"net/http"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
)

// Inactive tells whether the logical cluster is switched off by its
// administrator (annotation core.kcp.io/inactive).
type Inactive func(name logicalcluster.Name) bool

// WithClusterRules answers requests that no logical cluster serves, after
// authorization: paths that lead nowhere (404), resource requests without a
// logical cluster (400), anything but LIST and WATCH across all logical clusters
// (405), and requests to inactive logical clusters (403). It marks all answers as
// those to an authorized request, for the front-proxy.
func WithClusterRules(next http.Handler, inactive Inactive, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		w.Header().Set(request.AuthorizedHeader, "true")
		if later, ok := ctx.Value(laterKey{}).(error); ok {
			respond(w, r, s, later)
			return
		}
		if path, ok := request.NowhereFrom(ctx); ok {
			respond(w, r, s, apierrors.NewNotFound(
				schema.GroupResource{Group: "tenancy.kcp.io", Resource: "workspaces"}, path.String()))
			return
		}
		info, _ := apirequest.RequestInfoFrom(ctx)
		cluster, ok := request.ClusterFrom(ctx)
		if !ok {
			if info != nil && info.IsResourceRequest {
				respond(w, r, s, apierrors.NewBadRequest(request.ErrNoCluster.Error()))
				return
			}
			next.ServeHTTP(w, r)
			return
		}
		if err := checkRules(r, cluster, info, inactive); err != nil {
			respond(w, r, s, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func checkRules(r *http.Request, cluster request.Cluster, info *apirequest.RequestInfo, inactive Inactive) error {
	if cluster.Wildcard {
		return checkWildcard(info)
	}
	if inactive == nil || !inactive(cluster.Name) || exemptFromInactive(r, info) {
		return nil
	}
	return statusError(http.StatusForbidden, metav1.StatusReasonForbidden, "logical cluster is marked inactive")
}

func checkWildcard(info *apirequest.RequestInfo) error {
	if info == nil || !info.IsResourceRequest {
		return statusError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			"only resources can be asked for in the `*` logical cluster")
	}
	switch info.Verb {
	case "list", "watch":
		return nil
	default:
		return statusError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			info.Verb+" is not supported in the `*` logical cluster: only list and watch are")
	}
}

// exemptFromInactive lets administrators see and reactivate the logical
// cluster, clients read its schemas, and the server's own controllers clean up.
func exemptFromInactive(r *http.Request, info *apirequest.RequestInfo) bool {
	if strings.HasPrefix(r.URL.Path, "/openapi") {
		return true
	}
	if info != nil && info.IsResourceRequest && info.APIGroup == "core.kcp.io" && info.Resource == "logicalclusters" {
		return true
	}
	u, ok := apirequest.UserFrom(r.Context())
	return ok && u.GetName() == user.APIServerUser
}
