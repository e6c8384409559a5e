package cacheserver

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
)

// processPaths tell about the whole process. They exist at the root only.
var processPaths = []string{"/livez", "/readyz", "/healthz", "/metrics", "/debug", "/etcd", "/configz", "/flagz", "/statusz", "/logs"}

// withScope is the outermost filter: it takes the shard and the logical cluster
// off the URL and puts them into the request's context, so that the rest of the
// server sees the URLs of a single cluster. Only paths that tell about the
// process pass without.
func withScope(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !utf8.ValidString(req.URL.Path) {
			// Paths become labels of metrics, which panic of anything else.
			writeError(w, req, apierrors.NewBadRequest("the URL path is not valid UTF-8"))
			return
		}
		if isProcessPath(req.URL.Path) || req.URL.Path == "/version" {
			next.ServeHTTP(w, req)
			return
		}
		scope, err := parseScope(req.URL.Path)
		if err != nil {
			writeError(w, req, apierrors.NewBadRequest(err.Error()))
			return
		}
		if isProcessPath(scope.rest) {
			http.Error(w, fmt.Sprintf("%s tells about the whole process and is not available below a shard or logical cluster: ask for it at the root of the server", scope.rest), http.StatusNotImplemented)
			return
		}

		ctx := request.WithShard(req.Context(), scope.shard)
		if scope.cluster != (request.Cluster{}) {
			ctx = request.WithCluster(ctx, scope.cluster)
		}
		// A shallow copy: the caller's request and URL stay as they came.
		scoped := req.WithContext(ctx)
		scoped.URL = new(url.URL)
		*scoped.URL = *req.URL
		scoped.URL.Path = scope.rest
		scoped.URL.RawPath = ""
		scoped.RequestURI = scoped.URL.RequestURI()
		next.ServeHTTP(w, scoped)
	})
}

// scope is a URL path of the cache server taken apart.
type scope struct {
	shard request.Shard
	// cluster is zero for a path that ends at the shard or names a process path
	// directly below it.
	cluster request.Cluster
	rest    string
}

// parseScope takes [/services/cache]/shards/<shard>/clusters/<cluster>/rest
// apart. Its errors are for the client.
func parseScope(path string) (scope, error) {
	if below, ok := strings.CutPrefix(path, request.CachePrefix+"/"); ok {
		path = "/" + below
	}
	shard, rest, found, err := request.SplitShard(path)
	switch {
	case err != nil:
		return scope{}, err
	case !found:
		return scope{}, fmt.Errorf("a shard is required: use a URL of the form %s/…", request.ShardPath("<shard>", "<cluster>"))
	}

	u, found, err := request.SplitCluster(rest)
	switch {
	case err != nil:
		return scope{}, err
	case !found && isProcessPath(rest):
		return scope{shard: shard, rest: rest}, nil
	case !found:
		return scope{}, fmt.Errorf("a logical cluster is required: use a URL of the form %s/…", request.ShardPath(shard.String(), "<cluster>"))
	case u.Wildcard:
		return scope{shard: shard, cluster: request.Cluster{Wildcard: true}, rest: u.Rest}, nil
	}
	name, ok := u.Path.Name()
	if !ok || !request.ValidClusterName(name) {
		return scope{}, &request.InvalidURLError{
			Segment: u.Path.String(),
			Reason:  "the cache server knows logical clusters by name only, not by path",
		}
	}
	return scope{shard: shard, cluster: request.Cluster{Name: name}, rest: u.Rest}, nil
}

func isProcessPath(path string) bool {
	return slices.ContainsFunc(processPaths, func(p string) bool {
		return path == p || strings.HasPrefix(path, p+"/")
	})
}

// withWildcardVerbs is an inner filter. Where a request stands for more than
// one shard or logical cluster, it lets only list and watch of resources pass,
// and reading of what is the same everywhere: discovery and schemas.
func withWildcardVerbs(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		shard, hasShard := request.ShardFrom(ctx)
		cluster, _ := request.ClusterFrom(ctx)
		if hasShard {
			audit.AddAuditAnnotations(ctx, request.ShardAnnotation, shard.String(), logicalcluster.AnnotationKey, cluster.String())
		}
		if !shard.Wildcard && !cluster.Wildcard {
			next.ServeHTTP(w, req)
			return
		}
		info, ok := genericrequest.RequestInfoFrom(ctx)
		if !ok {
			writeError(w, req, apierrors.NewInternalError(fmt.Errorf("no request info in the context of %s", req.URL.Path)))
			return
		}
		if isWildcardVerb(info) {
			next.ServeHTTP(w, req)
			return
		}
		statusErr := apierrors.NewMethodNotSupported(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, info.Verb)
		statusErr.ErrStatus.Message = fmt.Sprintf("%s is not possible in the logical cluster %q of the shard %q: name one shard and one logical cluster, or list or watch", info.Verb, cluster.String(), shard.String())
		writeError(w, req, statusErr)
	})
}

func isWildcardVerb(info *genericrequest.RequestInfo) bool {
	if info.IsResourceRequest {
		return info.Verb == "list" || info.Verb == "watch"
	}
	return info.Verb == "get" || info.Verb == "head"
}

func writeError(w http.ResponseWriter, req *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, codecs, schema.GroupVersion{Version: "v1"}, w, req)
}
