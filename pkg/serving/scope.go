package serving

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
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

// Scopes determines the scopes of requests, and which requests they allow.
type Scopes struct {
	// Mounts are the URL prefixes of scopes.
	Mounts []*request.Mount
	// Resolve returns the name of the logical cluster for a path such as root:team:app, or false if there is none on
	// this server. It is nil if the server supports only names.
	Resolve func(path logicalcluster.Path) (logicalcluster.Name, bool)
	// Mounted returns the URL of a mounted path, empty while the mount is not available. It may be nil.
	Mounted func(path logicalcluster.Path) (url string, mounted bool)
	// ResolveGrantor is Resolve for the object that grants a virtual workspace, on any server. The name is empty if it
	// does not exist, and an error is the response if this is undecided. It is nil without virtual workspaces.
	ResolveGrantor func(path logicalcluster.Path, mount *request.Mount, object string) (logicalcluster.Name, error)
	// Inactive reports whether an administrator has deactivated a logical cluster (core.kcp.io/inactive). It may be
	// nil.
	Inactive func(name logicalcluster.Name) bool
	// Watches end when their logical cluster is deactivated. The caller of Inactive's source must call End.
	Watches *OpenWatches
	// ScopedOnly rejects all URLs outside of the mounts, except for those about the process, before authorization.
	ScopedOnly bool
	// OfShard reports whether a path below a shard needs no logical cluster. It may be nil.
	OfShard func(rest string) bool
	// Ready returns the response to scoped requests while logical clusters are not known completely. It may be nil.
	Ready  func(r *http.Request) error
	Codecs runtime.NegotiatedSerializer
}

// Find moves the scope from the URL into the context. It rejects malformed URLs (400). Rules rejects paths that
// cannot be resolved, because a response before authorization would disclose which logical clusters exist.
func (s Scopes) Find(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !utf8.ValidString(r.URL.Path) {
			// Paths become labels of metrics, which must be valid UTF-8.
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

// scopeOf returns the scope of a location. Its errors must not depend on which logical clusters exist.
func (s Scopes) scopeOf(l request.Location) (request.Scope, error) {
	scope, known := l.Scope()
	switch {
	case known || l.Path.Empty() && (l.Mount != nil && l.Mount.Whole || isProcessPath(l.Rest)):
	case l.Path.Empty() && l.Shard != (request.Shard{}) && s.OfShard != nil && s.OfShard(l.Rest):
	case l.Path.Empty():
		return scope, errors.New("no logical cluster in the URL: use one of the form " + s.Mounts[0].Form + "/…")
	case s.Resolve == nil:
		return scope, &request.InvalidURLError{Segment: l.Path.String(), Reason: "this server supports only names of logical clusters, not paths"}
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
			scope.Cluster.Name, scope.UnresolvedPath = "", l.Path
			scope.Refusal = s.nowhere(l.Path)
		}
	}
	if v := scope.VirtualWorkspace; v != nil && v.In == (request.Cluster{}) && s.Resolve != nil {
		// If it does not exist, the virtual workspace shows no objects.
		v.In.Name, _ = s.Resolve(l.VirtualWorkspace.Path)
	}
	switch {
	case strings.HasPrefix(l.Rest, request.Clusters.Prefix):
		scope.Refusal = request.NotFound("logical clusters cannot be nested: " + l.Rest)
	case isProcessPath(l.Rest):
		scope.Refusal = notImplemented(l.Rest)
	}
	return scope, nil
}

func (s Scopes) nowhere(path logicalcluster.Path) error {
	if s.Mounted != nil {
		switch url, mounted := s.Mounted(path); {
		case mounted && url == "":
			return apierrors.NewServiceUnavailable("the mount " + path.String() + " is not available: see its conditions") //nolint:forbidigo // until that changes
		case mounted:
			return apierrors.NewServiceUnavailable(path.String() + " is a mount of " + url + ", which is only available through the front-proxy") //nolint:forbidigo // it never will
		}
	}
	return apierrors.NewNotFound(workspaces, path.String())
}

// AboutProcess returns the filter that rejects process paths below a logical cluster, existing or not (501).
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

// Rules returns the filter that rejects requests that their scope does not support, after authorization. These are
// paths without a logical cluster (404), process paths below a logical cluster (501), resource requests without a
// logical cluster (400), unsupported wildcard requests (405), and requests to inactive logical clusters (403). It
// also ends the open watches of inactive logical clusters.
func (s Scopes) Rules(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, _ := apirequest.RequestInfoFrom(r.Context())
		scope := request.ScopeFrom(r.Context())
		if ends := s.endsWith(r, scope, info); len(ends) > 0 {
			// The watch is registered before the check, so that no deactivation is missed.
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
		return request.StatusError(http.StatusForbidden, metav1.StatusReasonForbidden, "logical cluster is marked inactive")
	default:
		return nil
	}
}

// endsWith returns the logical clusters whose deactivation ends a watch: the one of the request and, for a
// virtual workspace, the one of the objects.
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

// CheckWildcard returns an error (405) if the request is not supported for all logical clusters or shards.
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
	return request.StatusError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
		info.Verb+" is not supported in "+where+": only list and watch of resources are")
}

// exemptFromInactive permits reads and reactivation, reads of schemas, and the cleanup by controllers.
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

// BelowCluster returns an error if a path below a logical cluster is about the process, otherwise nil.
func BelowCluster(path string) *apierrors.StatusError {
	if !isProcessPath(path) {
		return nil
	}
	return notImplemented(path)
}

// isProcessPath reports whether path is about the process. Probes are excluded: kubectl requests them below the
// server URL of its context, and they contain no confidential information.
func isProcessPath(path string) bool {
	switch firstSegment(path) {
	case "metrics", "debug", "etcd", "logs", "configz", "flagz", "statusz":
		return true
	default:
		return false
	}
}

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
	return request.StatusError(http.StatusNotImplemented, metav1.StatusReasonInvalid,
		path+" is an endpoint of the process, not of a logical cluster: use the root of the server")
}

// OpenWatches are the watches that end when a logical cluster is deactivated. The zero value is ready to use.
type OpenWatches struct {
	mu sync.Mutex
	in map[logicalcluster.Name]map[*context.CancelFunc]struct{}
}

// End ends all watches of the logical cluster.
func (o *OpenWatches) End(name logicalcluster.Name) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for end := range o.in[name] {
		(*end)()
	}
}

// open returns the context of a watch that ends with any of the logical clusters. The caller must call closed.
func (o *OpenWatches) open(ctx context.Context, names ...logicalcluster.Name) (watching context.Context, closed func()) {
	ctx, end := context.WithCancel(ctx)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.in == nil {
		o.in = map[logicalcluster.Name]map[*context.CancelFunc]struct{}{}
	}
	for _, name := range names {
		if o.in[name] == nil {
			o.in[name] = map[*context.CancelFunc]struct{}{}
		}
		o.in[name][&end] = struct{}{}
	}
	return ctx, func() {
		end()
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, name := range names {
			delete(o.in[name], &end)
			if len(o.in[name]) == 0 {
				delete(o.in, name)
			}
		}
	}
}
