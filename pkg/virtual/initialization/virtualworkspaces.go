// Package initialization serves the virtual workspaces of the initializers and terminators of WorkspaceTypes. They
// contain the logical clusters that wait for one, and their content while they wait.
//
//	/services/initializingworkspaces/<logical cluster>:<type>/clusters/{*,<name>}/…
//	/services/terminatingworkspaces/<logical cluster>:<type>/clusters/{*,<name>}/…
//
// As in pkg/virtual/apiexport, a request is first authorized as a request to the type's logical cluster.
//
//   - list and watch of the waiting LogicalClusters
//     logicalclusters      get, and update or patch of the status: only the initializer or terminator
//     may be removed, and conditions may be changed (Validator)
//     other resources      the content, according to the rules in the type, or as the workspace's owner
package initialization

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/kcp-dev/sdk/apis/tenancy/initialization"
	"github.com/kcp-dev/sdk/apis/tenancy/termination"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/authz/rbac"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

var logicalClusters = corev1alpha1.Resource("logicalclusters")

// allVerbs and oneVerbs are the verbs for the LogicalClusters in the wildcard and in one logical cluster.
var (
	allVerbs = definitions.Verbs{Object: []string{"list", "watch"}}
	oneVerbs = definitions.Verbs{Object: []string{"get"}, Status: true}
)

// VirtualWorkspaces serves the virtual workspaces of all WorkspaceTypes.
type VirtualWorkspaces struct {
	// Type returns a WorkspaceType from any shard.
	Type func(key client.Key) (*tenancyv1alpha1.WorkspaceType, error)
	// Find returns the LogicalCluster of a logical cluster on this shard, or nil. It may lag behind watches of the
	// virtual workspaces. Read does not.
	Find, Read authz.FindLogicalCluster
	// Rules authorizes access to content as the owner of a workspace.
	Rules authorizer.Authorizer
	// Bounds adds checks that apply to all content.
	Bounds func(next authorizer.Authorizer) authorizer.Authorizer
	// ServeDocuments serves discovery and OpenAPI for some resources, as in customresource.Server.
	ServeDocuments func(w http.ResponseWriter, r *http.Request, resources map[schema.GroupResource]bool, all []*definitions.Definition) bool
}

// kind contains the differences between the virtual workspaces of initializers and of terminators.
type kind struct {
	verb, group string
	// phase is the phase in which LogicalClusters wait. It must be checked, because the status and the labels
	// contain terminators in every phase.
	phase corev1alpha1.LogicalClusterPhaseType
	// label returns the label of LogicalClusters that wait.
	label       func(id string) (key, value string)
	permissions func(t *tenancyv1alpha1.WorkspaceType) []rbacv1.PolicyRule
	// waits reports whether a LogicalCluster waits for an initializer or terminator in that phase.
	waits func(lc *corev1alpha1.LogicalCluster, id string) bool
}

var kinds = map[*request.Mount]*kind{
	request.InitializingWorkspaces: {
		verb: "initialize", group: request.GroupPrefix + "initializer:", phase: corev1alpha1.LogicalClusterPhaseInitializing,
		label: func(id string) (string, string) {
			return initialization.InitializerToLabel(corev1alpha1.LogicalClusterInitializer(id))
		},
		permissions: func(t *tenancyv1alpha1.WorkspaceType) []rbacv1.PolicyRule { return t.Spec.InitializerPermissions },
		waits: func(lc *corev1alpha1.LogicalCluster, id string) bool {
			return slices.Contains(lc.Status.Initializers, corev1alpha1.LogicalClusterInitializer(id))
		},
	},
	request.TerminatingWorkspaces: {
		verb: "terminate", group: request.GroupPrefix + "terminator:", phase: corev1alpha1.LogicalClusterPhaseTerminating,
		label: func(id string) (string, string) {
			return termination.TerminatorToLabel(corev1alpha1.LogicalClusterTerminator(id))
		},
		permissions: func(t *tenancyv1alpha1.WorkspaceType) []rbacv1.PolicyRule { return t.Spec.TerminatorPermissions },
		waits: func(lc *corev1alpha1.LogicalCluster, id string) bool {
			return slices.Contains(lc.Status.Terminators, corev1alpha1.LogicalClusterTerminator(id))
		},
	},
}

// Mounts returns the mounts of the virtual workspaces.
func Mounts() []*request.Mount {
	return []*request.Mount{request.InitializingWorkspaces, request.TerminatingWorkspaces}
}

type entry struct {
	*kind
	workspaceType client.Key
	id            string // of the initializer or terminator
	in            request.Cluster
}

func entryOf(ctx context.Context) entry {
	scope := request.ScopeFrom(ctx)
	e := entry{kind: kinds[scope.Mount], workspaceType: client.Key{Cluster: scope.Cluster.Name, Name: scope.VirtualWorkspace.Name}, in: scope.VirtualWorkspace.In}
	e.id = e.workspaceType.Cluster.Path().Join(e.workspaceType.Name).String()
	return e
}

// Needs returns the permission that is required for access: the verb initialize, or terminate, on the type.
func (*VirtualWorkspaces) Needs(ctx context.Context, a authorizer.Attributes) (authorizer.Attributes, error) {
	e := entryOf(ctx)
	gv := tenancyv1alpha1.SchemeGroupVersion
	return authorizer.AttributesRecord{
		User: a.GetUser(), Verb: e.verb, ResourceRequest: true,
		APIGroup: gv.Group, APIVersion: gv.Version, Resource: "workspacetypes", Name: e.workspaceType.Name,
	}, nil
}

// Permits implements authz.VirtualWorkspaces.
func (v *VirtualWorkspaces) Permits(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	e := entryOf(ctx)
	if e.in.Wildcard {
		return authorizer.DecisionAllow, "", nil // other resources are not found
	}
	lc, err := v.waiting(ctx, e)
	if err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	if a.IsResourceRequest() && isLogicalClusters(a.GetAPIGroup(), a.GetResource()) {
		return authorizer.DecisionAllow, "", nil // redirect rejects other verbs
	}
	if lc == nil {
		return authorizer.DecisionDeny, "the logical cluster does not wait for " + e.id, nil // even if it does not exist
	}
	as, rules, err := v.actsAs(e, lc, a.GetUser())
	if errors.Is(err, errNoOwner) {
		return authorizer.DecisionDeny, err.Error(), nil
	}
	if err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	content := v.Rules
	if len(rules) > 0 {
		content = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool { return rbac.Allows(a, &rule) }) {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "not in the permissions that the WorkspaceType " + e.id + " declares", nil
		})
	}
	return v.Bounds(content).Authorize(request.WithClusterName(ctx, e.in.Name), authz.As(a, as))
}

// Shows implements authz.VirtualWorkspaces: it reports whether the logical cluster waits.
func (v *VirtualWorkspaces) Shows(ctx context.Context) bool {
	e := entryOf(ctx)
	if e.in.Wildcard {
		return true
	}
	lc, err := v.waiting(ctx, e)
	return err == nil && lc != nil
}

func isLogicalClusters(group, resource string) bool {
	return group == logicalClusters.Group && resource == logicalClusters.Resource
}

// waiting returns the LogicalCluster if it waits for the initializer or terminator.
func (v *VirtualWorkspaces) waiting(ctx context.Context, e entry) (*corev1alpha1.LogicalCluster, error) {
	if e.in.Name == "" || request.IsSystem(e.in.Name) {
		return nil, nil //nolint:nilnil // never on this shard
	}
	for _, find := range []authz.FindLogicalCluster{v.Find, v.Read} {
		lc, err := find(ctx, e.in.Name)
		if lc == nil || err != nil {
			return nil, err
		}
		if lc.Status.Phase == e.phase && e.waits(lc, e.id) {
			return lc, nil
		}
	}
	return nil, nil //nolint:nilnil // not waiting
}

// errNoOwner is returned for logical clusters that the system has created.
var errNoOwner = errors.New("the logical cluster has no owner: declare permissions in the WorkspaceType")

// actsAs returns the user with which content is accessed. If the type declares permissions, it is the sender with an
// additional group. Otherwise it is the owner, but without permissions in other logical clusters.
func (v *VirtualWorkspaces) actsAs(e entry, lc *corev1alpha1.LogicalCluster, u user.Info) (as user.Info, rules []rbacv1.PolicyRule, err error) {
	t, err := v.Type(e.workspaceType)
	if err != nil {
		return nil, nil, fmt.Errorf("looking up the WorkspaceType %s: %w", e.id, err)
	}
	if rules = e.permissions(t); len(rules) > 0 {
		groups := append(slices.Clone(u.GetGroups()), e.group+e.id)
		return &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: groups, Extra: u.GetExtra()}, rules, nil
	}
	var owner authenticationv1.UserInfo
	text := lc.Annotations[tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey]
	if text == "" {
		return nil, nil, errNoOwner
	}
	if err := json.Unmarshal([]byte(text), &owner); err != nil {
		return nil, nil, fmt.Errorf("annotation %s is not a user: %w", tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey, err)
	}
	// An administrator who creates a workspace owns it, but does not act as an administrator here.
	groups := slices.DeleteFunc(slices.Clone(owner.Groups), authz.IsPrivilegedGroup)
	info := &user.DefaultInfo{Name: owner.Username, UID: owner.UID, Groups: groups, Extra: map[string][]string{}}
	for key, values := range owner.Extra {
		info.Extra[key] = values
	}
	return identity.Within(e.in.Name, info), nil, nil
}

// Serve serves a request, or returns an error.
func (v *VirtualWorkspaces) Serve(w http.ResponseWriter, r *http.Request, info *genericapirequest.RequestInfo, next http.Handler) error {
	e := entryOf(r.Context())
	if _, err := v.Type(e.workspaceType); err != nil {
		return request.Unavailable(fmt.Sprintf("the WorkspaceType %s is not available on this shard: %v", e.id, err))
	}
	// In one logical cluster all content is accessible. In the wildcard, serveAll selects by labels.
	ctx := request.WithThrough(request.WithCluster(r.Context(), e.in), request.Through{
		Mount: request.ScopeFrom(r.Context()).Mount, Provider: e.workspaceType.Cluster, VirtualWorkspace: e.workspaceType.Name, Unrestricted: true,
	})
	r = r.WithContext(identity.WithSender(ctx))
	if e.in.Wildcard {
		return v.serveAll(w, r, e, info, next)
	}
	redirected, err := v.redirect(r, e, info)
	if err == nil {
		next.ServeHTTP(w, redirected)
	}
	return err
}

func (v *VirtualWorkspaces) serveAll(w http.ResponseWriter, r *http.Request, e entry, info *genericapirequest.RequestInfo, next http.Handler) error {
	switch {
	case !info.IsResourceRequest && v.ServeDocuments(w, r.WithContext(definitions.WithVerbs(r.Context(), logicalClusters, allVerbs)), map[schema.GroupResource]bool{logicalClusters: true}, nil):
	case !info.IsResourceRequest, !isLogicalClusters(info.APIGroup, info.Resource), info.Subresource != "":
		return request.NotFound("for all logical clusters (*), only waiting LogicalClusters are served")
	case !slices.Contains(allVerbs.Object, info.Verb):
		return apierrors.NewMethodNotSupported(logicalClusters, info.Verb)
	default:
		key, value := e.label(e.id)
		selected := r.Clone(r.Context())
		query := r.URL.Query()
		selector := key + "=" + value + "," + tenancyv1alpha1.WorkspacePhaseLabel + "=" + string(e.phase)
		if given := query.Get("labelSelector"); given != "" {
			selector = given + "," + selector
		}
		query.Set("labelSelector", selector)
		selected.URL = &url.URL{Path: r.URL.Path, RawQuery: query.Encode()}
		next.ServeHTTP(w, selected)
	}
	return nil
}

func (v *VirtualWorkspaces) redirect(r *http.Request, e entry, info *genericapirequest.RequestInfo) (*http.Request, error) {
	ctx := r.Context()
	lc, err := v.waiting(ctx, e)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	own := info.IsResourceRequest && isLogicalClusters(info.APIGroup, info.Resource)
	switch {
	case lc == nil && own:
		return nil, apierrors.NewNotFound(logicalClusters, info.Name)
	case lc == nil: // changed after authorization
		return nil, request.StatusError(http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf("the logical cluster no longer waits for %s", e.id))
	case own:
		return r, validate(info)
	}
	u, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewInternalError(errors.New("no user in the context"))
	}
	as, _, err := v.actsAs(e, lc, u)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	ctx = definitions.WithVerbs(ctx, logicalClusters, oneVerbs)
	return r.WithContext(genericapirequest.WithUser(ctx, as)), nil
}

func validate(info *genericapirequest.RequestInfo) error {
	served := oneVerbs.Object
	switch info.Subresource {
	case "":
	case "status":
		served = []string{"get", "update", "patch"}
	default:
		return apierrors.NewNotFound(logicalClusters, info.Name)
	}
	if !slices.Contains(served, info.Verb) {
		return apierrors.NewMethodNotSupported(logicalClusters, info.Verb)
	}
	return nil
}
