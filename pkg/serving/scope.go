package serving

import (
	"errors"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
)

var workspaces = schema.GroupResource{Group: tenancyv1alpha1.SchemeGroupVersion.Group, Resource: "workspaces"}

// Scopes says which scopes the URLs of a server name, and what may be asked in
// them.
type Scopes struct {
	// Mounts is the table of where scopes are in the URLs.
	Mounts []*request.Mount
	// Resolve turns a path such as root:team:app into the name of its logical
	// cluster. It answers false where the path leads nowhere on this server. Nil
	// where logical clusters are known by name only.
	Resolve func(path logicalcluster.Path) (logicalcluster.Name, bool)
	// Mounted returns the URL of a path that is mounted from elsewhere, empty while it leads
	// nowhere, and whether it is. Nil where nothing is mounted.
	Mounted func(path logicalcluster.Path) (url string, mounted bool)
	// ResolveGrantor is Resolve for the logical cluster of the object that grants a view,
	// which may be on another server, by the name of the object. Nil where there are no
	// views. It returns "" where the path leads nowhere.
	// The error is the response while this cannot be decided yet.
	ResolveGrantor func(path logicalcluster.Path, mount *request.Mount, object string) (logicalcluster.Name, error)
	// Inactive reports whether a logical cluster is switched off by its
	// administrator (annotation core.kcp.io/inactive); nil if none can be.
	Inactive func(name logicalcluster.Name) bool
	// Watches are those that end when their logical cluster is switched off, which whoever
	// is told of it first has to see to. Nil where Inactive is.
	Watches *OpenWatches
	// ScopedOnly refuses, before authorization, all URLs outside of the mounts
	// but those about the process.
	ScopedOnly bool
	// OfShard reports whether a path below a shard is of all that it has, and of no logical
	// cluster. Nil: none is.
	OfShard func(rest string) bool
	// Ready returns the response to a request with a scope while it cannot be decided yet which logical
	// clusters exist; nil if that is always known.
	Ready func(r *http.Request) error
	// Codecs encode errors.
	Codecs runtime.NegotiatedSerializer
}

// Find takes the scope off the URLs of requests and puts it into their context.
// Malformed URLs get 400, others the response of Ready. What could be answered differently for a logical
// cluster that exists, as a path that does not resolve, is left to Rules, which
// answers after authorization: before, it would tell those who may not enter what exists.
func (s Scopes) Find(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !utf8.ValidString(r.URL.Path) {
			// Paths become labels of metrics, which panic of anything else.
			respond(w, r, s.Codecs, apierrors.NewBadRequest("the URL path is not valid UTF-8"))
			return
		}
		l, found, err := request.Locate(r.URL.Path, s.Mounts...)
		if !found && (!s.ScopedOnly || isAboutProcess(r.URL.Path)) {
			next.ServeHTTP(w, r)
			return
		}
		var scope request.Scope
		if err == nil && s.Ready != nil && !isProcessPath(l.Rest) {
			if unready := s.Ready(r); unready != nil {
				respond(w, r, s.Codecs, unready)
				return
			}
		}
		if err == nil {
			scope, err = s.scopeOf(l)
		}
		if err != nil {
			if _, later := apierrors.SuggestsClientDelay(err); !later {
				err = apierrors.NewBadRequest(err.Error())
			}
			respond(w, r, s.Codecs, err)
			return
		}
		next.ServeHTTP(w, request.Scoped(r, scope, l.Rest))
	})
}

// scopeOf returns the scope of l. Its errors are for the client, of whatever l
// exists.
func (s Scopes) scopeOf(l request.Location) (request.Scope, error) {
	scope, known := l.Scope()
	switch {
	case known || l.Path.Empty() && (l.Mount != nil && l.Mount.Whole || isProcessPath(l.Rest)):
	case l.Path.Empty() && l.Shard != (request.Shard{}) && s.OfShard != nil && s.OfShard(l.Rest):
	case l.Path.Empty():
		return scope, errors.New("no logical cluster in the URL: use one of the form " + s.Mounts[0].Form + "/…")
	case s.Resolve == nil:
		return scope, &request.InvalidURLError{Segment: l.Path.String(), Reason: "this server knows logical clusters by name only, not by path"}
	default:
		if scope.VirtualWorkspace != nil {
			var err error
			if scope.Cluster.Name, err = s.ResolveGrantor(l.Path, l.Mount, scope.VirtualWorkspace.Name); err != nil {
				return scope, err
			}
			known = scope.Cluster.Name != ""
		} else {
			scope.Cluster.Name, known = s.Resolve(l.Path)
		}
		if !known {
			scope.Cluster.Name, scope.Nowhere = "", l.Path
			scope.Refusal = s.nowhere(l.Path)
		}
	}
	if v := scope.VirtualWorkspace; v != nil && v.In == (request.Cluster{}) && s.Resolve != nil {
		// Of one that leads nowhere nothing is to be seen, as of one that grants nothing.
		v.In.Name, _ = s.Resolve(l.VirtualWorkspace.Path)
	}
	switch {
	case strings.HasPrefix(l.Rest, request.Clusters.Prefix):
		scope.Refusal = statusError(http.StatusNotFound, metav1.StatusReasonNotFound, "a logical cluster has no logical clusters below it: "+l.Rest)
	case isProcessPath(l.Rest):
		scope.Refusal = notImplemented(l.Rest)
	}
	return scope, nil
}

// nowhere is the answer for a path that leads to no logical cluster of this server.
func (s Scopes) nowhere(path logicalcluster.Path) error {
	if s.Mounted == nil {
		return apierrors.NewNotFound(workspaces, path.String())
	}
	switch url, mounted := s.Mounted(path); {
	case !mounted:
		return apierrors.NewNotFound(workspaces, path.String())
	case url == "":
		return apierrors.NewServiceUnavailable(path.String() + " is a mount that leads nowhere now: the conditions of the Workspace say why") //nolint:forbidigo // until that changes
	default:
		return apierrors.NewServiceUnavailable(path.String() + " is a mount of " + url + ", to which the front-proxy leads and this shard does not") //nolint:forbidigo // it never will
	}
}

// AboutProcess answers requests for paths about the process below a logical cluster (501),
// whoever asks, and whether there is one.
func (s Scopes) AboutProcess(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var status apierrors.APIStatus
		if refusal := request.ScopeFrom(r.Context()).Refusal; errors.As(refusal, &status) && status.Status().Code == http.StatusNotImplemented {
			respond(w, r, s.Codecs, refusal)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Rules answers requests that nothing in their scope serves, after
// authorization: paths that lead nowhere (404), process-level paths below a
// logical cluster (501), resource requests without a logical cluster (400), what
// the mount does not have for all logical clusters or shards (405), and requests
// to inactive logical clusters (403), whose open watches end.
func (s Scopes) Rules(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, _ := apirequest.RequestInfoFrom(r.Context())
		scope := request.ScopeFrom(r.Context())
		if ends := s.endsWith(r, scope, info); len(ends) > 0 {
			// Before it is checked, so that none that is switched off now goes unseen.
			ctx, closed := s.Watches.open(r.Context(), ends...)
			defer closed()
			r = r.WithContext(ctx)
		}
		if err := s.check(r, scope, info); err != nil {
			respond(w, r, s.Codecs, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s Scopes) check(r *http.Request, scope request.Scope, info *apirequest.RequestInfo) error {
	switch {
	case scope.Refusal != nil:
		return scope.Refusal
	case scope.Cluster == request.Cluster{}:
		if info != nil && info.IsResourceRequest {
			return apierrors.NewBadRequest(request.ErrNoCluster.Error())
		}
		return nil
	case scope.Cluster.Wildcard || scope.Shard.Wildcard:
		return CheckWildcard(scope, info)
	case s.Inactive != nil && s.Inactive(scope.Cluster.Name) && !exemptFromInactive(r, info):
		return statusError(http.StatusForbidden, metav1.StatusReasonForbidden, "logical cluster is marked inactive")
	default:
		return nil
	}
}

// endsWith returns the logical clusters of which a watch ends when one is switched off: the
// one that it is for, and, through a view, the one whose content it sees.
func (s Scopes) endsWith(r *http.Request, scope request.Scope, info *apirequest.RequestInfo) []logicalcluster.Name {
	if s.Watches == nil || info == nil || info.Verb != "watch" {
		return nil
	}
	var names []logicalcluster.Name
	if scope.Cluster.Name != "" && !exemptFromInactive(r, info) {
		names = append(names, scope.Cluster.Name)
	}
	if v := scope.VirtualWorkspace; v != nil && v.In.Name != "" {
		names = append(names, v.In.Name)
	}
	return names
}

// CheckWildcard returns the answer to what cannot be asked for all logical clusters, or all
// shards: 405.
func CheckWildcard(scope request.Scope, info *apirequest.RequestInfo) error {
	if info == nil {
		return apierrors.NewInternalError(errors.New("no request info in the context"))
	}
	if scope.Mount.Wildcard(info.Verb, info.IsResourceRequest) {
		return nil
	}
	where := "the `" + scope.Cluster.String() + "` logical cluster"
	if scope.Shard != (request.Shard{}) {
		where += " of the `" + scope.Shard.String() + "` shard"
	}
	return statusError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
		info.Verb+" is not supported in "+where+": only list and watch of resources are")
}

// exemptFromInactive lets administrators see and reactivate the logical
// cluster, clients read its schemas, and the server's own controllers clean up.
func exemptFromInactive(r *http.Request, info *apirequest.RequestInfo) bool {
	if strings.HasPrefix(r.URL.Path, "/openapi") {
		return true
	}
	if info != nil && info.IsResourceRequest && info.APIGroup == corev1alpha1.SchemeGroupVersion.Group && info.Resource == "logicalclusters" {
		return true
	}
	u, ok := apirequest.UserFrom(r.Context())
	return ok && u.GetName() == user.APIServerUser
}

// BelowCluster returns the answer to a request for a path below a logical cluster that is
// about the process, and nil for all other paths.
func BelowCluster(path string) *apierrors.StatusError {
	if !isProcessPath(path) {
		return nil
	}
	return notImplemented(path)
}

// isProcessPath reports whether path is about the serving process and not about
// one logical cluster. Probes are, too, but kubectl asks for them below the
// server URL of its context, and their answer gives nothing away.
func isProcessPath(path string) bool {
	switch firstSegment(path) {
	case "metrics", "debug", "etcd", "logs", "configz", "flagz", "statusz":
		return true
	default:
		return false
	}
}

// isAboutProcess reports whether path is one that a server has without a scope.
func isAboutProcess(path string) bool {
	switch firstSegment(path) {
	case "healthz", "livez", "readyz":
		return true
	default:
		return path == "/version" || isProcessPath(path)
	}
}

func firstSegment(path string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return first
}

func respond(w http.ResponseWriter, r *http.Request, s runtime.NegotiatedSerializer, err error) {
	responsewriters.ErrorNegotiated(err, s, schema.GroupVersion{Version: "v1"}, w, r)
}

func notImplemented(path string) *apierrors.StatusError {
	return statusError(http.StatusNotImplemented, metav1.StatusReasonInvalid,
		path+" is about the serving process, not about a logical cluster: ask for it at the root of the server")
}

func statusError(code int32, reason metav1.StatusReason, message string) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    code,
		Reason:  reason,
		Message: message,
	}}
}
