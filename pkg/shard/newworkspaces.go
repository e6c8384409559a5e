package shard

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/admission/reserved"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	// readyTimeout is the timeout of a request that a front-proxy does not specify. maxReadyTimeout limits others.
	readyTimeout = 10 * time.Second
	//reference:none
	maxReadyTimeout = 30 * time.Second

	// The numbers of waiting requests, in total and per user.
	//
	//reference:limit shard | requests that wait for new workspaces | 503
	maxWaiting = 4096
	//reference:limit user | requests that wait for new workspaces, at a shard | 503
	maxWaitingPerUser = 256
	//reference:none
	maxWaitingOwn = 8

	// ownerBindingTimeout is the age until which a logical cluster may have an owner binding that this replica has not
	// observed yet, because another one created it.
	ownerBindingTimeout = 10 * time.Second
)

// workspaceWaiter delays requests to new logical clusters until these are ready, if the user will have access then. A
// user can therefore use a workspace immediately after creating it. All other users are denied as usual.
type workspaceWaiter struct {
	*requestAccess
	slots *ledger.Ledger
}

func newWorkspaceWaiter(s *requestAccess) *workspaceWaiter {
	return &workspaceWaiter{s, ledger.NewLedger(ledger.Bounds{Total: maxWaiting, User: maxWaitingPerUser, Own: maxWaitingOwn})}
}

// wrap must run before authorization, which then authorizes by the rules of the ready logical cluster.
func (n *workspaceWaiter) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		scope := request.ScopeFrom(ctx)
		u, ok := apirequest.UserFrom(ctx)
		lc, behind := n.find(r, scope)
		switch {
		case !ok || lc == nil:
		case !behind && tenancy.HasContent(lc.Status.Phase):
			n.awaitOwnerBinding(ctx, lc, u)
		case !n.hasAccess(ctx, u) && authz.WillHaveAccess(ctx, n.rules, lc, u):
			if !n.wait(ctx, scope.Cluster.Name, n.timeoutOf(r)) {
				request.AccessAuthorized(ctx)
				responsewriters.ErrorNegotiated(request.Unavailable("the workspace is not ready yet, try again"), registry.Codecs, schema.GroupVersion{Version: "v1"}, w, r)
				return
			}
			n.awaitOwnerBinding(ctx, n.local.get(scope.Cluster.Name), u)
		}
		next.ServeHTTP(w, r)
	})
}

// find returns the LogicalCluster of a request if it may be new. behind is set if the informer does not contain it yet;
// then the API is only read for front-proxies, because these conceal denials.
func (n *workspaceWaiter) find(r *http.Request, scope request.Scope) (lc *corev1alpha1.LogicalCluster, behind bool) {
	name := scope.Cluster.Name
	if name == "" || scope.VirtualWorkspace != nil || request.IsSystem(name) {
		return nil, false
	}
	if lc = n.local.get(name); lc != nil || r.Header.Get(request.ReadyTimeoutHeader) == "" || !n.authentication.Forwarded(r) {
		return lc, false
	}
	lc, _ = n.local.find(r.Context(), name)
	return lc, true
}

func (n *workspaceWaiter) hasAccess(ctx context.Context, u user.Info) bool {
	decision, _, _ := n.authorizer.Authorize(ctx, authorizer.AttributesRecord{User: u, Verb: authz.VerbAccess, Path: "/"})
	return decision == authorizer.DecisionAllow
}

// wait waits until the logical cluster is ready for users or was deleted. It returns false after the timeout.
func (n *workspaceWaiter) wait(ctx context.Context, name logicalcluster.Name, timeout time.Duration) bool {
	seen := false
	changed, done := n.local.index.Changed(name.String())
	defer done()
	return n.await(ctx, timeout, changed, func() bool {
		lc := n.local.get(name)
		deleted := lc == nil && seen
		seen = lc != nil
		return deleted || seen && tenancy.HasContent(lc.Status.Phase)
	})
}

// await waits until condition returns true. It returns false after the timeout or if too many requests are waiting.
func (n *workspaceWaiter) await(ctx context.Context, timeout time.Duration, changed <-chan struct{}, condition func() bool) bool {
	release, err := n.slots.TakeFor(ctx, 1)
	if err != nil {
		return false
	}
	defer release()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for !condition() {
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

// awaitOwnerBinding makes authorization wait for the binding of the owner, which another replica may have created.
func (n *workspaceWaiter) awaitOwnerBinding(ctx context.Context, lc *corev1alpha1.LogicalCluster, u user.Info) {
	if lc == nil || time.Since(lc.CreationTimestamp.Time) > ownerBindingTimeout || !authz.IsOwner(lc, u) || n.hasAccess(ctx, u) {
		return
	}
	name := logicalcluster.From(lc)
	binding, err := kinds.ClusterRoleBindings.In(n.local.clients.Cluster(name.Path())).Get(ctx, tenancy.OwnerBinding, metav1.GetOptions{})
	if err == nil {
		n.rules.Wrote(name, kinds.ClusterRoleBindings.Resource, binding.ResourceVersion)
	}
}

// timeoutOf returns the timeout of a request. Only front-proxies may specify it.
func (n *workspaceWaiter) timeoutOf(r *http.Request) time.Duration {
	timeout, err := time.ParseDuration(r.Header.Get(request.ReadyTimeoutHeader))
	if err != nil || !n.authentication.Forwarded(r) {
		return readyTimeout
	}
	return min(timeout, maxReadyTimeout)
}

const (
	homeName    = "~"
	homeType    = "home"
	homeTimeout = 5 * time.Second
)

// serveHomes handles requests for a user's own home workspace, whose name is derived from the user's. It runs before
// authorization, because the permission to create is only required if the home workspace does not exist.
func (n *workspaceWaiter) serveHomes(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		scope := request.ScopeFrom(ctx)
		info, ok := apirequest.RequestInfoFrom(ctx)
		u, known := apirequest.UserFrom(ctx)
		if !ok || !known || scope.VirtualWorkspace != nil || scope.Cluster.Name != core.RootCluster || info.Verb != "get" || info.Name != homeName || info.Subresource != "" ||
			info.APIGroup != kinds.Workspaces.Group || info.APIVersion != kinds.Workspaces.Version || info.Resource != kinds.Workspaces.Resource {
			next.ServeHTTP(w, r)
			return
		}
		request.AccessAuthorized(ctx) // all users have access to root
		home, err := n.homeOf(ctx, u)
		if err != nil {
			responsewriters.ErrorNegotiated(err, registry.Codecs, schema.GroupVersion{Version: "v1"}, w, r)
			return
		}
		responsewriters.WriteRawJSON(http.StatusOK, shownHome(home), w)
	})
}

// homeOf returns the home workspace of a user when it is ready, and creates it if necessary.
func (n *workspaceWaiter) homeOf(ctx context.Context, u user.Info) (*tenancyv1alpha1.Workspace, error) {
	attributes := authorizer.AttributesRecord{
		User: u, Verb: "create", APIGroup: kinds.Workspaces.Group, APIVersion: kinds.Workspaces.Version, Resource: kinds.Workspaces.Resource, Name: homeName, ResourceRequest: true,
	}
	denied := responsewriters.ForbiddenStatusError(attributes, authz.NotPermitted)
	if !hasHome(u) {
		return nil, denied
	}
	key := client.Key{Cluster: tenancy.HomesCluster, Name: tenancy.HomeName(u.GetName()).String()}
	ws, err := n.local.workspaces.Lister().Get(key)
	if apierrors.IsNotFound(err) {
		if decision, _, err := n.authorizer.Authorize(ctx, attributes); decision != authorizer.DecisionAllow {
			return nil, cmp.Or(err, error(denied))
		}
		ws, err = n.createHome(ctx, key, u)
	}
	if err != nil {
		return nil, err
	}
	// Two user names may have the same hash. The first one owns the home workspace.
	if owner, err := tenancy.OwnerName(ws.Annotations, key.Cluster); err != nil || owner != u.GetName() {
		return nil, denied
	}
	return n.homeReady(ctx, key)
}

// hasHome reports whether a user may have a home workspace. The name of a service account or of a scoped user may
// identify another user elsewhere.
func hasHome(u user.Info) bool {
	name := u.GetName()
	return name != "" && !strings.HasPrefix(name, request.ReservedPrefix) && len(u.GetExtra()[request.ExtraScopes]) == 0
}

func (n *workspaceWaiter) createHome(ctx context.Context, key client.Key, u user.Info) (*tenancyv1alpha1.Workspace, error) {
	owner, err := reserved.OwnerOf(u)
	if err != nil {
		return nil, err
	}
	workspaces := kinds.Workspaces.In(n.local.clients.Cluster(key.Cluster.Path()))
	ws, err := workspaces.Create(ctx, &tenancyv1alpha1.Workspace{
		ObjectMeta: metav1.ObjectMeta{Name: key.Name, Annotations: map[string]string{
			tenancy.ClusterAnnotation:                               key.Name,
			tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey: owner,
		}},
		Spec: tenancyv1alpha1.WorkspaceSpec{Type: &tenancyv1alpha1.WorkspaceTypeReference{Name: homeType, Path: core.RootCluster.String()}},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return workspaces.Get(ctx, key.Name, metav1.GetOptions{})
	}
	return ws, err
}

// homeReady waits until the informer contains a home workspace that is ready for its user.
func (n *workspaceWaiter) homeReady(ctx context.Context, key client.Key) (*tenancyv1alpha1.Workspace, error) {
	var ready *tenancyv1alpha1.Workspace
	seen := false
	changed, done := n.local.index.WorkspaceChanged(key.Cluster, key.Name)
	defer done()
	n.await(ctx, homeTimeout, changed, func() bool {
		ws, err := n.local.workspaces.Lister().Get(key)
		if err == nil && ws.DeletionTimestamp == nil && tenancy.HasContent(ws.Status.Phase) {
			ready = ws
		}
		deleted := err != nil && seen // the previous one was deleted
		seen = err == nil
		return ready != nil || deleted
	})
	if ready == nil {
		return nil, apierrors.NewTooManyRequests("the home workspace is not ready yet, try again", 1)
	}
	return ready, nil
}

// shownHome returns a home workspace as users see it, without the metadata of the system.
func shownHome(ws *tenancyv1alpha1.Workspace) *tenancyv1alpha1.Workspace {
	return &tenancyv1alpha1.Workspace{
		TypeMeta:   metav1.TypeMeta{APIVersion: tenancyv1alpha1.SchemeGroupVersion.String(), Kind: "Workspace"},
		ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName, CreationTimestamp: ws.CreationTimestamp},
		Spec:       tenancyv1alpha1.WorkspaceSpec{Type: ws.Spec.Type, Cluster: ws.Spec.Cluster, URL: ws.Spec.URL},
		Status:     tenancyv1alpha1.WorkspaceStatus{Phase: ws.Status.Phase, Conditions: ws.Status.Conditions},
	}
}
