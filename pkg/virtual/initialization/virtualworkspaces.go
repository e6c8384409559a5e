// Package initialization is the views of the initializers and terminators of workspace
// types: the logical clusters that wait for one, and their content for as long as they do.
//
//	/services/initializingworkspaces/<logical cluster>:<type>/clusters/{*,<name>}/…
//	/services/terminatingworkspaces/<logical cluster>:<type>/clusters/{*,<name>}/…
//
// Until a request enters such a view it is one to the type's logical cluster, as with the
// view of an export (pkg/virtual/apiexport).
//
//   - list and watch of the LogicalClusters that wait
//     logicalclusters      get, and update or patch of the status: the initializer or
//     terminator goes, and conditions change (Validator)
//     all else             the content, by the rules in the type, or as the workspace's owner
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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/authz/rbac"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// logicalClusters is what waits.
var logicalClusters = corev1alpha1.Resource("logicalclusters")

// allVerbs and oneVerbs are the verbs that are served of LogicalClusters: of all, and of one.
var (
	allVerbs = definitions.Verbs{Object: []string{"list", "watch"}}
	oneVerbs = definitions.Verbs{Object: []string{"get"}, Status: true}
)

// Config is what the views need.
type Config struct {
	// Type returns a WorkspaceType, wherever it is, if there is one.
	Type func(key client.Key) (*tenancyv1alpha1.WorkspaceType, error)
	// Find returns the LogicalCluster of a logical cluster of the shard, or nil. It may
	// lag behind what a watch of the views has said, and Read does not.
	Find, Read authz.FindLogicalCluster
	// Rules decide about content that is reached as the owner of a workspace. Bounds
	// decide besides about all content, however it is reached.
	Rules  authorizer.Authorizer
	Bounds func(next authorizer.Authorizer) authorizer.Authorizer
	// ServeDocuments tells of some resources, as customresource.Server does.
	ServeDocuments func(w http.ResponseWriter, r *http.Request, resources map[schema.GroupResource]bool, all []*definitions.Definition) bool
	// Codecs encode errors.
	Codecs runtime.NegotiatedSerializer
}

// kind is what the two kinds of views differ in.
type kind struct {
	verb  string
	group string
	// phase is that in which LogicalClusters wait, and label the label of those that do. Terminators
	// are in the status and in labels of every phase.
	phase corev1alpha1.LogicalClusterPhaseType
	label func(id string) (key, value string)
	// permissions are the rules in a type.
	permissions func(t *tenancyv1alpha1.WorkspaceType) []rbacv1.PolicyRule
	// list returns what a LogicalCluster waits for in that phase.
	list func(lc *corev1alpha1.LogicalCluster) []string
}

var kinds = map[*request.Mount]*kind{
	request.InitializingWorkspaces: {
		verb: "initialize", group: request.GroupPrefix + "initializer:", phase: corev1alpha1.LogicalClusterPhaseInitializing,
		label: func(id string) (string, string) {
			return initialization.InitializerToLabel(corev1alpha1.LogicalClusterInitializer(id))
		},
		permissions: func(t *tenancyv1alpha1.WorkspaceType) []rbacv1.PolicyRule { return t.Spec.InitializerPermissions },
		list:        func(lc *corev1alpha1.LogicalCluster) []string { return texts(lc.Status.Initializers) },
	},
	request.TerminatingWorkspaces: {
		verb: "terminate", group: request.GroupPrefix + "terminator:", phase: corev1alpha1.LogicalClusterPhaseTerminating,
		label: func(id string) (string, string) {
			return termination.TerminatorToLabel(corev1alpha1.LogicalClusterTerminator(id))
		},
		permissions: func(t *tenancyv1alpha1.WorkspaceType) []rbacv1.PolicyRule { return t.Spec.TerminatorPermissions },
		list:        func(lc *corev1alpha1.LogicalCluster) []string { return texts(lc.Status.Terminators) },
	},
}

func texts[T ~string](all []T) []string {
	found := make([]string, 0, len(all))
	for _, text := range all {
		found = append(found, string(text))
	}
	return found
}

// Views are those of all workspace types.
type VirtualWorkspaces struct{ config Config }

// New returns the views.
func New(config Config) *VirtualWorkspaces { return &VirtualWorkspaces{config} }

// Mounts are where the views are.
func Mounts() []*request.Mount {
	return []*request.Mount{request.InitializingWorkspaces, request.TerminatingWorkspaces}
}

// entry is what a request through a view is about.
type entry struct {
	*kind
	workspaceType client.Key
	// id is how LogicalClusters name the initializer or terminator.
	id string
	in request.Cluster
}

func entryOf(ctx context.Context) entry {
	scope := request.ScopeFrom(ctx)
	e := entry{kind: kinds[scope.Mount], workspaceType: client.Key{Cluster: scope.Cluster.Name, Name: scope.VirtualWorkspace.Name}, in: scope.VirtualWorkspace.In}
	e.id = e.workspaceType.Cluster.Path().Join(e.workspaceType.Name).String()
	return e
}

// Needs returns what opens a view: the verb initialize, or terminate, on the type.
func (*VirtualWorkspaces) Needs(ctx context.Context, a authorizer.Attributes) authorizer.Attributes {
	e := entryOf(ctx)
	gv := tenancyv1alpha1.SchemeGroupVersion
	return authorizer.AttributesRecord{
		User: a.GetUser(), Verb: e.verb, ResourceRequest: true,
		APIGroup: gv.Group, APIVersion: gv.Version, Resource: "workspacetypes", Name: e.workspaceType.Name,
	}
}

// Permits decides what authz.Views does.
func (v *VirtualWorkspaces) Permits(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	e := entryOf(ctx)
	if e.in.Wildcard {
		return authorizer.DecisionAllow, "", nil // what there is not is 404
	}
	lc, err := v.waits(ctx, e)
	if err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	if a.IsResourceRequest() && isLogicalClusters(a.GetAPIGroup(), a.GetResource()) {
		return authorizer.DecisionAllow, "", nil // enter rejects what is not served
	}
	if lc == nil {
		return authorizer.DecisionDeny, "the logical cluster does not wait for " + e.id, nil // whichever it is
	}
	as, rules, err := v.actsAs(e, lc, a.GetUser())
	if errors.Is(err, errNoOwner) {
		return authorizer.DecisionDeny, err.Error(), nil
	}
	if err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	content := v.config.Rules
	if len(rules) > 0 {
		content = authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool { return rbac.Allows(a, &rule) }) {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "not in the permissions that the WorkspaceType " + e.id + " declares", nil
		})
	}
	return v.config.Bounds(content).Authorize(request.WithClusterName(ctx, e.in.Name), authz.As(a, as))
}

// Shows reports what authz.Views does: whether the logical cluster waits.
func (v *VirtualWorkspaces) Shows(ctx context.Context) bool {
	e := entryOf(ctx)
	if e.in.Wildcard {
		return true
	}
	lc, err := v.waits(ctx, e)
	return err == nil && lc != nil
}

func isLogicalClusters(group, resource string) bool {
	return group == logicalClusters.Group && resource == logicalClusters.Resource
}

// waits returns the LogicalCluster that the view is of, if it waits.
func (v *VirtualWorkspaces) waits(ctx context.Context, e entry) (*corev1alpha1.LogicalCluster, error) {
	if e.in.Name == "" || request.IsSystem(e.in.Name) {
		return nil, nil //nolint:nilnil // it is not here
	}
	for _, find := range []authz.FindLogicalCluster{v.config.Find, v.config.Read} {
		lc, err := find(ctx, e.in.Name)
		if lc == nil || err != nil {
			return nil, err
		}
		if lc.Status.Phase == e.phase && slices.Contains(e.list(lc), e.id) {
			return lc, nil
		}
	}
	return nil, nil //nolint:nilnil // it does not wait
}

// errNoOwner is the answer to who would act as the owner of what the system has made.
var errNoOwner = errors.New("nobody owns the logical cluster: declare permissions in the WorkspaceType")

// actsAs returns as whom a user reaches the content of a logical cluster: as itself with an
// additional group if the type declares permissions, otherwise as the owner, restricted to this
// logical cluster, because the author of a type must not obtain the owner's permissions in others.
func (v *VirtualWorkspaces) actsAs(e entry, lc *corev1alpha1.LogicalCluster, u user.Info) (as user.Info, rules []rbacv1.PolicyRule, err error) {
	t, err := v.config.Type(e.workspaceType)
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
	// An administrator that has made it is its owner there, and no administrator.
	groups := slices.DeleteFunc(slices.Clone(owner.Groups), authz.IsPrivilegedGroup)
	info := &user.DefaultInfo{Name: owner.Username, UID: owner.UID, Groups: groups, Extra: map[string][]string{}}
	for key, values := range owner.Extra {
		info.Extra[key] = values
	}
	return identity.Within(e.in.Name, info), nil, nil
}

// Wrap returns the filter that has requests enter their views, as that of exports does.
func (v *VirtualWorkspaces) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scope := request.ScopeFrom(r.Context())
		info, ok := genericapirequest.RequestInfoFrom(r.Context())
		if !ok {
			v.respond(w, r, apierrors.NewInternalError(errors.New("no request info in the context")))
			return
		}
		e := entryOf(r.Context())
		if _, err := v.config.Type(e.workspaceType); err != nil {
			v.respond(w, r, request.Unavailable(fmt.Sprintf("the WorkspaceType %s is not known here: %v", e.id, err)))
			return
		}
		// Of one logical cluster all content is visible, and serveAll selects by labels.
		ctx := request.WithThrough(request.WithCluster(r.Context(), e.in), request.Through{
			Mount: scope.Mount, Provider: e.workspaceType.Cluster, VirtualWorkspace: e.workspaceType.Name, Unrestricted: true,
		})
		r = r.WithContext(identity.WithSender(ctx))
		if e.in.Wildcard {
			v.serveAll(w, r, e, info, next)
			return
		}
		entered, err := v.enter(r, e, info)
		if err != nil {
			v.respond(w, r, err)
			return
		}
		next.ServeHTTP(w, entered)
	})
}

// serveAll serves what waits, and what tells of it.
func (v *VirtualWorkspaces) serveAll(w http.ResponseWriter, r *http.Request, e entry, info *genericapirequest.RequestInfo, next http.Handler) {
	switch {
	case !info.IsResourceRequest && v.config.ServeDocuments(w, r.WithContext(definitions.WithVerbs(r.Context(), logicalClusters, allVerbs)), map[schema.GroupResource]bool{logicalClusters: true}, nil):
	case !info.IsResourceRequest, !isLogicalClusters(info.APIGroup, info.Resource), info.Subresource != "":
		v.respond(w, r, apierrors.NewGenericServerResponse(http.StatusNotFound, info.Verb, schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, info.Name,
			"of all logical clusters there are the LogicalClusters that wait, and nothing else", 0, false))
	case !slices.Contains(allVerbs.Object, info.Verb):
		v.respond(w, r, apierrors.NewMethodNotSupported(logicalClusters, info.Verb))
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
}

// enter returns a request as it goes on in one logical cluster.
func (v *VirtualWorkspaces) enter(r *http.Request, e entry, info *genericapirequest.RequestInfo) (*http.Request, error) {
	ctx := r.Context()
	lc, err := v.waits(ctx, e)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	own := info.IsResourceRequest && isLogicalClusters(info.APIGroup, info.Resource)
	switch {
	case lc == nil && own:
		return nil, apierrors.NewNotFound(logicalClusters, info.Name)
	case lc == nil: // since it was authorized
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
			Message: fmt.Sprintf("the logical cluster does not wait for %s any more", e.id),
		}}
	case own:
		return r, refusal(info)
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

// refusal returns the error for a request that is not served of a LogicalCluster.
func refusal(info *genericapirequest.RequestInfo) error {
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

func (v *VirtualWorkspaces) respond(w http.ResponseWriter, r *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, v.config.Codecs, schema.GroupVersion{Version: "v1"}, w, r)
}
