package frontproxy

import (
	"context"
	"net/http"
	"net/http/pprof"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/answers"
)

// process serves what is known of this process.
type process struct {
	// metrics serves those of the server.
	metrics http.Handler
	readers *metricsReaders
}

// serveMetrics serves the metrics of this server, and those of its process, to whoever may read them in
// root.
func (p *process) serveMetrics(w http.ResponseWriter, r *http.Request) {
	who, ok := genericapirequest.UserFrom(r.Context())
	may := ok && mayReadProcess(r.Context(), who)
	if ok && !may {
		var err error
		if may, err = p.readers.may(r.Context(), who); err != nil {
			klog.FromContext(r.Context()).Error(err, "Cannot find out whether a user may read metrics", "user", who.GetName())
			writeStatus(w, unavailable("the shard of root does not say whether this user may read metrics"))
			return
		}
	}
	if !may {
		writeStatus(w, forbidden(r, r.URL.Path))
		return
	}
	p.metrics.ServeHTTP(w, r)
}

// serveProfiles serves profiles of this process, at the paths that other servers
// of Kubernetes have them.
func serveProfiles(w http.ResponseWriter, r *http.Request) {
	who, ok := genericapirequest.UserFrom(r.Context())
	if !ok || !mayReadProcess(r.Context(), who) {
		writeStatus(w, forbidden(r, r.URL.Path))
		return
	}
	w = answers.Stream(w, r)
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

// mayReadProcess reports whether a user need not be asked about in root: these groups
// may do everything there.
func mayReadProcess(ctx context.Context, who user.Info) bool {
	return identity.MemberOf(ctx, who, user.SystemPrivilegedGroup, request.GroupAdmin)
}
