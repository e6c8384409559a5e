package frontproxy

import (
	"context"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/kcp-dev/sdk/apis/core"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/responses"
)

// process serves metrics. Its other fields authorize users to read them: they must be allowed to get /metrics in root.
type process struct {
	metrics http.Handler
	root    *client.Factory
	groups  authn.GroupFilter
	reviews *authz.ReviewCache
}

func (p *process) serveMetrics(w http.ResponseWriter, r *http.Request) {
	userInfo, ok := genericapirequest.UserFrom(r.Context())
	may := ok && mayReadProcess(r.Context(), userInfo)
	if ok && !may {
		var err error
		if may, err = p.mayReadMetrics(r.Context(), userInfo); err != nil {
			klog.FromContext(r.Context()).Error(err, "Failed to authorize access to metrics", "user", userInfo.GetName())
			writeStatus(w, unavailable("access to metrics could not be authorized, because the root shard did not respond"))
			return
		}
	}
	if !may {
		writeStatus(w, forbidden(r, r.URL.Path))
		return
	}
	p.metrics.ServeHTTP(w, r)
}

// serveProfiles serves profiles of this process at the same paths as kube-apiserver.
func serveProfiles(w http.ResponseWriter, r *http.Request) {
	userInfo, ok := genericapirequest.UserFrom(r.Context())
	if !ok || !mayReadProcess(r.Context(), userInfo) {
		writeStatus(w, forbidden(r, r.URL.Path))
		return
	}
	w = responses.Stream(w, r)
	switch strings.TrimPrefix(r.URL.Path, serving.ProfilesPrefix) {
	case "profile":
		pprof.Profile(w, r)
	case "symbol":
		pprof.Symbol(w, r)
	case "trace":
		pprof.Trace(w, r)
	default:
		pprof.Index(w, r)
	}
}

func mayReadProcess(ctx context.Context, userInfo user.Info) bool {
	return identity.MemberOf(ctx, userInfo, user.SystemPrivilegedGroup, request.GroupAdmin)
}

const (
	readersFor     = 10 * time.Second // how long decisions are cached
	readersTimeout = 5 * time.Second
)

// mayReadMetrics returns an error if root did not respond.
func (p *process) mayReadMetrics(ctx context.Context, userInfo user.Info) (bool, error) {
	review := authz.ReviewOf(&user.DefaultInfo{Name: userInfo.GetName(), UID: userInfo.GetUID(), Groups: p.groups.Filter(userInfo.GetGroups()), Extra: userInfo.GetExtra()})
	review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/metrics"}
	return p.reviews.May(ctx, "", review, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, readersTimeout)
		defer cancel()
		return authz.RequestDeepReview(ctx, p.root.Cluster(core.RootCluster.Path()), review)
	})
}
