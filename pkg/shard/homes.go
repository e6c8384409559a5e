package shard

import (
	"context"
	"net/http"
	"strings"
	"time"

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

	"github.com/shardplane/shardplane/pkg/admission/workspaceowner"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	// homeName is what users ask for in root to get their home workspace.
	homeName = "~"
	// homeType is the type of home workspaces, in root.
	homeType = "home"
	// homeTimeout is how long a request waits for a home workspace to become ready.
	homeTimeout = 5 * time.Second
)

// homes serve users their home workspaces. Each is a Workspace that nobody but the system
// sees, with a name that follows from the user's, and gets its logical cluster as all others do.
type homes struct {
	*newborns
	workspaces *client.Informer[*tenancyv1alpha1.Workspace]
}

// wrap is the filter of requests for the home of who sends them, in root. It stands before
// authorization: the right to create is asked for only where there is none yet.
func (h *homes) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		scope := request.ScopeFrom(ctx)
		info, ok := apirequest.RequestInfoFrom(ctx)
		who, known := apirequest.UserFrom(ctx)
		if !ok || !known || scope.VirtualWorkspace != nil || scope.Cluster.Name != core.RootCluster || info.Verb != "get" || info.Name != homeName || info.Subresource != "" ||
			info.APIGroup != kinds.Workspaces.Group || info.APIVersion != kinds.Workspaces.Version || info.Resource != kinds.Workspaces.Resource {
			next.ServeHTTP(w, r)
			return
		}
		request.AccessAuthorized(ctx) // everybody enters root
		home, err := h.of(ctx, who)
		if err != nil {
			responsewriters.ErrorNegotiated(err, registry.Codecs, schema.GroupVersion{Version: "v1"}, w, r)
			return
		}
		responsewriters.WriteRawJSON(http.StatusOK, shownHome(home), w)
	})
}

// of returns the home of a user when it is ready. It is made where there is none.
func (h *homes) of(ctx context.Context, who user.Info) (*tenancyv1alpha1.Workspace, error) {
	attributes := authorizer.AttributesRecord{
		User: who, Verb: "create", APIGroup: kinds.Workspaces.Group, APIVersion: kinds.Workspaces.Version, Resource: kinds.Workspaces.Resource, Name: homeName, ResourceRequest: true,
	}
	denied := responsewriters.ForbiddenStatusError(attributes, authz.NotPermitted)
	if !hasHome(who) {
		return nil, denied
	}
	key := client.Key{Cluster: tenancy.HomesCluster, Name: tenancy.HomeName(who.GetName()).String()}
	ws, err := h.workspaces.Lister().Get(key)
	if apierrors.IsNotFound(err) {
		if decision, _, err := h.access.Authorize(ctx, attributes); decision != authorizer.DecisionAllow {
			return nil, orDenied(err, denied)
		}
		ws, err = h.create(ctx, key, who)
	}
	if err != nil {
		return nil, err
	}
	// Two names may have one hash: the home is of who came first.
	if owner, err := tenancy.OwnerName(ws.Annotations, key.Cluster); err != nil || owner != who.GetName() {
		return nil, denied
	}
	return h.ready(ctx, key)
}

// orDenied returns what an authorizer has failed of, or that it denies.
func orDenied(err error, denied *apierrors.StatusError) error {
	if err != nil {
		return err
	}
	return denied
}

// hasHome reports whether a user may have a home. Names of service accounts, and of users that
// are restricted to some logical clusters, are those of others elsewhere.
func hasHome(who user.Info) bool {
	name := who.GetName()
	return name != "" && !strings.HasPrefix(name, request.ReservedPrefix) && len(who.GetExtra()[request.ExtraScopes]) == 0
}

// create creates the Workspace of a home, or returns the one that is there.
func (h *homes) create(ctx context.Context, key client.Key, who user.Info) (*tenancyv1alpha1.Workspace, error) {
	owner, err := workspaceowner.OwnerOf(who)
	if err != nil {
		return nil, err
	}
	workspaces := kinds.Workspaces.In(h.local.clients.Cluster(key.Cluster.Path()))
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

// ready waits until the informer has a home that is for its user.
func (h *homes) ready(ctx context.Context, key client.Key) (*tenancyv1alpha1.Workspace, error) {
	var ready *tenancyv1alpha1.Workspace
	seen := false
	changed, done := h.local.index.WorkspaceChanged(key.Cluster, key.Name)
	defer done()
	h.await(ctx, homeTimeout, changed, func() bool {
		ws, err := h.workspaces.Lister().Get(key)
		if err == nil && ws.DeletionTimestamp == nil && tenancy.HasContent(ws.Status.Phase) {
			ready = ws
		}
		gone := err != nil && seen // the former one
		seen = err == nil
		return ready != nil || gone
	})
	if ready == nil {
		return nil, apierrors.NewTooManyRequests("the home workspace is not ready yet, try again", 1)
	}
	return ready, nil
}

// shownHome is what users see of their home, whose Workspace is the system's.
func shownHome(ws *tenancyv1alpha1.Workspace) *tenancyv1alpha1.Workspace {
	return &tenancyv1alpha1.Workspace{
		TypeMeta:   metav1.TypeMeta{APIVersion: tenancyv1alpha1.SchemeGroupVersion.String(), Kind: "Workspace"},
		ObjectMeta: metav1.ObjectMeta{Name: corev1alpha1.LogicalClusterName, CreationTimestamp: ws.CreationTimestamp},
		Spec:       tenancyv1alpha1.WorkspaceSpec{Type: ws.Spec.Type, Cluster: ws.Spec.Cluster, URL: ws.Spec.URL},
		Status:     tenancyv1alpha1.WorkspaceStatus{Phase: ws.Status.Phase, Conditions: ws.Status.Conditions},
	}
}
