package serving

import (
	"context"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"

	"github.com/shardplane/shardplane/pkg/request"
)

// ResolvePath turns a path such as root:team:app into the name of its logical
// cluster. It answers false where the path leads nowhere on this server.
type ResolvePath func(path logicalcluster.Path) (logicalcluster.Name, bool)

// laterKey keeps the answer to a request that WithClusterRules gives.
type laterKey struct{}

// WithClusterURL takes /clusters/<cluster> off the request's URL and puts the
// logical cluster into its context. Malformed clusters and paths get 400. A
// path that does not resolve, a second /clusters/ segment (404) and process-level
// paths below a logical cluster (501) are left to WithClusterRules, which answers
// after authorization: before, an answer would tell strangers which workspaces
// exist.
func WithClusterURL(next http.Handler, resolve ResolvePath, s runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !utf8.ValidString(r.URL.Path) {
			// Paths become labels of metrics, which panic of anything else.
			respond(w, r, s, apierrors.NewBadRequest("the URL path is not valid UTF-8"))
			return
		}
		u, found, err := request.SplitCluster(r.URL.Path)
		if !found {
			next.ServeHTTP(w, r)
			return
		}
		if err != nil {
			respond(w, r, s, apierrors.NewBadRequest(err.Error()))
			return
		}
		ctx := withCluster(r.Context(), u, resolve)
		if strings.HasPrefix(u.Rest, request.ClusterPath("")) {
			ctx = context.WithValue(ctx, laterKey{}, notFound("a logical cluster has no logical clusters below it: "+r.URL.Path))
		} else if isProcessPath(u.Rest) {
			ctx = context.WithValue(ctx, laterKey{}, notImplemented(u.Rest))
		}
		stripped := r.Clone(ctx)
		stripped.URL.Path, stripped.URL.RawPath = u.Rest, ""
		next.ServeHTTP(w, stripped)
	})
}

func withCluster(ctx context.Context, u request.ClusterURL, resolve ResolvePath) context.Context {
	if u.Wildcard {
		return request.WithWildcard(ctx)
	}
	if name, ok := u.Path.Name(); ok {
		return request.WithClusterName(ctx, name)
	}
	if name, ok := resolve(u.Path); ok {
		return request.WithClusterName(ctx, name)
	}
	return request.WithNowhere(ctx, u.Path)
}

// isProcessPath says whether path is about the serving process and not about
// one logical cluster. Probes are, too, but kubectl asks for them below the
// server URL of its context, and their answer gives nothing away.
func isProcessPath(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch first {
	case "metrics", "debug", "etcd", "logs", "configz", "flagz", "statusz":
		return true
	default:
		return false
	}
}

func respond(w http.ResponseWriter, r *http.Request, s runtime.NegotiatedSerializer, err error) {
	responsewriters.ErrorNegotiated(err, s, schema.GroupVersion{Version: "v1"}, w, r)
}

func notFound(message string) error {
	return statusError(http.StatusNotFound, metav1.StatusReasonNotFound, message)
}

func notImplemented(path string) error {
	return statusError(http.StatusNotImplemented, metav1.StatusReasonInvalid,
		path+" is about the serving process, not about a logical cluster: ask for it without /clusters/<name>")
}

func statusError(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    code,
		Reason:  reason,
		Message: message,
	}}
}
