package shard

import (
	"context"
	"net/http"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/authz/rbac"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	// readyTimeout is how long a request waits for a new logical cluster to become
	// ready, if no front-proxy says another time, and maxReadyTimeout how long at most.
	readyTimeout    = 10 * time.Second
	maxReadyTimeout = 30 * time.Second

	// How many requests wait so at a time, in all and of each user.
	maxNewborn     = 4096
	maxNewbornEach = 256
	maxNewbornOwn  = 8

	// ownerBindingTimeout is how long after its birth the rules of a logical cluster may not
	// have been seen yet, by a replica that has not made them.
	ownerBindingTimeout = 10 * time.Second
)

// newborns keep requests waiting that come for a new logical cluster before it is ready, of
// those who may enter it then. So whoever creates a workspace can use it at once. Others are
// denied as ever.
type newborns struct {
	local *local
	// rules are those of roles and bindings, access all that decides.
	rules  *rbac.Authorizer
	access authorizer.Authorizer
	// forwarded reports whether a front-proxy has sent a request.
	forwarded func(r *http.Request) bool
	places    *ledger.Ledger
	// serving ends when the server does.
	serving context.Context //nolint:containedctx // the life of the listener, which outlasts every request
}

func (s *requestAccess) newNewborns() *newborns {
	return &newborns{
		local: s.local, rules: s.rules, access: s.authorizer, forwarded: s.authentication.Forwarded, serving: s.serving,
		places: ledger.New(ledger.Bounds{Total: maxNewborn, User: maxNewbornEach, Own: maxNewbornOwn}),
	}
}

// wrap is the filter. It stands before authorization, which is asked once more when the
// wait is over.
func (n *newborns) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		scope := request.ScopeFrom(ctx)
		who, ok := apirequest.UserFrom(ctx)
		lc, behind := n.find(r, scope)
		switch {
		case !ok || lc == nil:
		case !behind && tenancy.HasContent(lc.Status.Phase):
			n.awaitOwnerBinding(ctx, lc, who)
		case !n.mayEnter(ctx, who) && authz.Awaits(ctx, n.rules, lc, who):
			if !n.wait(ctx, scope.Cluster.Name, n.timeoutOf(r)) {
				request.AccessAuthorized(ctx)
				responsewriters.ErrorNegotiated(unready(), registry.Codecs, schema.GroupVersion{Version: "v1"}, w, r)
				return
			}
			n.awaitOwnerBinding(ctx, n.local.get(scope.Cluster.Name), who)
		}
		next.ServeHTTP(w, r)
	})
}

// find returns the LogicalCluster of a request, if that may be a new one; behind is whether
// the informer has not seen it yet. Then others, from outside, are not to cause a look-up: but
// front-proxies, which hold back what is denied, say that it is there.
func (n *newborns) find(r *http.Request, scope request.Scope) (lc *corev1alpha1.LogicalCluster, behind bool) {
	name := scope.Cluster.Name
	if name == "" || scope.VirtualWorkspace != nil || request.IsSystem(name) {
		return nil, false
	}
	if lc = n.local.get(name); lc != nil || r.Header.Get(request.ReadyTimeoutHeader) == "" || !n.forwarded(r) {
		return lc, false
	}
	lc, _ = n.local.find(r.Context(), name)
	return lc, true
}

// mayEnter reports whether u enters the logical cluster of ctx now, as administrators do.
func (n *newborns) mayEnter(ctx context.Context, u user.Info) bool {
	decision, _, _ := n.access.Authorize(ctx, authorizer.AttributesRecord{User: u, Verb: authz.VerbAccess, Path: "/"})
	return decision == authorizer.DecisionAllow
}

// wait waits until the logical cluster is for users, or is gone, but no longer than timeout.
func (n *newborns) wait(ctx context.Context, name logicalcluster.Name, timeout time.Duration) bool {
	seen := false
	changed, done := n.local.index.Changed(name.String())
	defer done()
	return n.await(ctx, timeout, changed, func() bool {
		lc := n.local.get(name)
		gone := lc == nil && seen
		seen = lc != nil
		return gone || seen && tenancy.HasContent(lc.Status.Phase)
	})
}

// await waits until look, which is called again when something has changed, says that it is
// over, and reports whether it did in time and there was a place to wait.
func (n *newborns) await(ctx context.Context, timeout time.Duration, changed <-chan struct{}, look func() bool) bool {
	leave, err := n.places.TakeFor(ctx, 1)
	if err != nil {
		return false
	}
	defer leave()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for !look() {
		select {
		case <-changed:
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		case <-n.serving.Done():
			return false
		}
	}
	return true
}

// awaitOwnerBinding makes decisions in a new logical cluster wait for the binding of its owner, if that
// exists and has not been seen here: another replica has made it.
func (n *newborns) awaitOwnerBinding(ctx context.Context, lc *corev1alpha1.LogicalCluster, u user.Info) {
	if lc == nil || time.Since(lc.CreationTimestamp.Time) > ownerBindingTimeout || !authz.IsOwner(lc, u) || n.mayEnter(ctx, u) {
		return
	}
	name := logicalcluster.From(lc)
	binding, err := kinds.ClusterRoleBindings.In(n.local.clients.Cluster(name.Path())).Get(ctx, tenancy.OwnerBinding, metav1.GetOptions{})
	if err == nil {
		n.rules.Wrote(name, kinds.ClusterRoleBindings.Resource, binding.ResourceVersion)
	}
}

// timeoutOf returns how long a request waits. Only front-proxies say that.
func (n *newborns) timeoutOf(r *http.Request) time.Duration {
	timeout, err := time.ParseDuration(r.Header.Get(request.ReadyTimeoutHeader))
	if err != nil || !n.forwarded(r) {
		return readyTimeout
	}
	return min(timeout, maxReadyTimeout)
}

// unready is the answer to who has waited for long enough.
func unready() error {
	return request.Unavailable("the workspace is not ready yet, try again")
}
