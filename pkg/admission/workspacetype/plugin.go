// Package workspacetype is the admission plugin that sets the type of new Workspaces and validates
// WorkspaceTypes. It rejects Workspaces whose type does not exist, is not allowed in the parent, or may not
// be used by the creator. The creator needs the verb use on the type and on all types that it extends.
//
// The reason is returned only to users who may read the type and the types that it extends. Other users get
// the same response after the same time in all cases.
package workspacetype

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// poll is the interval at which a missing type is looked up.
const poll = 20 * time.Millisecond

var workspaces = tenancyv1alpha1.Resource("workspaces")

// Config configures the plugin.
type Config struct {
	// Types returns the type of a new Workspace in a logical cluster, followed by all types that it extends. If the
	// Workspace cannot be created, it returns the reason as an error, along with the first type if that exists.
	Types func(ctx context.Context, parent logicalcluster.Name, ws *tenancyv1alpha1.Workspace) (tenancy.Family, error)
	// Timeout is the time to wait for an unknown type, which may just have been created on another shard. Responses
	// to users who may not use a type take the same time, because their time would disclose that the type exists.
	Timeout time.Duration
	// May reports whether a user has a verb on a type.
	May func(ctx context.Context, u user.Info, verb string, t *tenancyv1alpha1.WorkspaceType) (bool, error)
	// WouldSee reports whether a user could read a type with that name if it existed. Its logical cluster is the
	// one at the path or, without a path, the one in which the type would be looked up.
	WouldSee func(ctx context.Context, u user.Info, parent logicalcluster.Name, ref tenancyv1alpha1.WorkspaceTypeReference) bool
}

// NewWorkspaceType returns the plugin. Administrators and the system need no permission to use a type.
func NewWorkspaceType(c Config) percluster.Plugin {
	return percluster.Plugin{Handler: admission.NewHandler(admission.Create, admission.Update), Admits: c.admit, Validates: c.validate}
}

// admit also rejects Workspaces, because the time of webhooks and validation would disclose that the type exists.
func (c Config) admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	u, ok := workspaceOf(a)
	if !ok || a.GetOperation() != admission.Create || mountOf(u) != nil {
		return nil
	}
	ws, err := typed(a, u)
	if err != nil {
		return nil //nolint:nilerr // schema validation returns a better error
	}
	types, err := c.authorizedTypes(ctx, a, ws)
	if err != nil || len(types) == 0 {
		return err
	}
	ref := map[string]any{"name": types[0].Name, "path": types[0].Path.String()}
	if err := unstructured.SetNestedMap(u.Object, ref, "spec", "type"); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

// validate checks again, because webhooks may have changed a Workspace since admit.
func (c Config) validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() == workspaceTypes && a.GetSubresource() == "" {
		return checkType(ctx, a)
	}
	ws, ok := workspaceOf(a)
	u := a.GetUserInfo()
	if !ok {
		return nil
	}
	if err := checkMount(ctx, a, ws); err != nil {
		return err
	}
	if u == nil || mountOf(ws) != nil {
		return nil
	}
	if a.GetOperation() == admission.Update {
		if identity.Administers(ctx, u) {
			return nil
		}
		return checkUnchanged(a, ws)
	}
	created, err := typed(a, ws)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	_, err = c.authorizedTypes(ctx, a, created)
	return err
}

// authorizedTypes returns the type of a Workspace and all types that it extends, or the reason for its rejection. For
// users who may not see the reason, all rejections take the same time.
func (c Config) authorizedTypes(ctx context.Context, a admission.Attributes, ws *tenancyv1alpha1.Workspace) (tenancy.Family, error) {
	start := time.Now()
	cluster, _ := request.ClusterNameFrom(ctx)
	types, reason := c.Types(ctx, cluster, ws)
	if unknown(types, reason) && c.Timeout > 0 {
		resume := request.Pause(ctx)
		_ = wait.PollUntilContextTimeout(ctx, poll, c.Timeout, false, func(ctx context.Context) (bool, error) {
			types, reason = c.Types(ctx, cluster, ws)
			return !unknown(types, reason), nil
		})
		resume()
	}
	u := a.GetUserInfo()
	switch {
	case errors.Is(reason, client.ErrIncomplete):
		return nil, request.Unavailable(fmt.Sprintf("the workspace types have not been read yet, try again: %v", reason))
	case u == nil:
		return types, nil
	case reason == nil && !identity.Administers(ctx, u):
		var err error
		if reason, err = c.mayUse(ctx, u, types); err != nil {
			return nil, err
		}
	default:
	}
	if reason == nil {
		return types, nil
	}
	if c.mayRead(ctx, u, types, ws, reason) {
		return nil, admission.NewForbidden(a, fmt.Errorf("the workspace type cannot be used: %w", reason))
	}
	c.delay(ctx, start)
	return nil, admission.NewForbidden(a, errRefused)
}

// errRefused is returned to users who may not see the reason. It does not name the type.
var errRefused = errors.New("the workspace type cannot be used: it does not exist, or you do not have the verb use on it and on all types that it extends, or it is not allowed in this workspace; contact the administrators of its workspace")

// mayUse returns a reason if the user may not use the types.
func (c Config) mayUse(ctx context.Context, u user.Info, types tenancy.Family) (reason, err error) {
	for _, t := range types {
		may, err := c.May(ctx, u, "use", t.WorkspaceType)
		if err != nil {
			return nil, request.Unavailable(fmt.Sprintf("failed to authorize the use of workspace type %s, try again: %v", t.ID(), err))
		}
		if !may {
			return fmt.Errorf("you do not have the verb use on workspacetypes/%s in %s", t.Name, t.Path), nil
		}
	}
	return nil, nil
}

// mayRead reports whether the user may see the reason for a rejection. The user must be allowed to read or use each
// extended type, because the author of a type chooses the types that it extends.
func (c Config) mayRead(ctx context.Context, u user.Info, types tenancy.Family, ws *tenancyv1alpha1.Workspace, reason error) bool {
	if identity.Administers(ctx, u) {
		return true
	}
	if errors.Is(reason, tenancy.ErrExtends) {
		return false
	}
	for i, t := range types {
		may, err := c.May(ctx, u, "get", t.WorkspaceType)
		if err == nil && !may && i > 0 {
			may, err = c.May(ctx, u, "use", t.WorkspaceType)
		}
		if err != nil || !may {
			return false
		}
	}
	if len(types) > 0 {
		return true
	}
	cluster, err := request.ClusterNameFrom(ctx)
	ref := ws.Spec.Type
	return err == nil && ref != nil && ref.Name != "" && c.WouldSee(ctx, u, cluster, *ref)
}

func unknown(types tenancy.Family, err error) bool { return err != nil && len(types) == 0 }

// delay waits until the time that a request with a type that does not exist takes. After such a wait it must not pause
// the request again, because getting a seat again takes time, which would disclose the reason.
func (c Config) delay(ctx context.Context, start time.Time) {
	remaining := time.Until(start.Add(c.Timeout))
	if remaining <= 0 {
		return
	}
	defer request.Pause(ctx)()
	timer := time.NewTimer(remaining)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func typed(a admission.Attributes, u *unstructured.Unstructured) (*tenancyv1alpha1.Workspace, error) {
	ws := &tenancyv1alpha1.Workspace{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, ws); err != nil {
		return nil, fmt.Errorf("reading the Workspace %s: %w", a.GetName(), err)
	}
	return ws, nil
}

func checkUnchanged(a admission.Attributes, u *unstructured.Unstructured) error {
	old, ok := a.GetOldObject().(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	for _, field := range []string{"name", "path"} {
		before, had, _ := unstructured.NestedString(old.Object, "spec", "type", field)
		after, has, _ := unstructured.NestedString(u.Object, "spec", "type", field)
		if had != has || before != after {
			return admission.NewForbidden(a, errors.New("spec.type is immutable"))
		}
	}
	return nil
}

// checkMount rejects a type for a Workspace with a mount, and changes of the mount, because a mounted
// Workspace has no logical cluster of its own.
func checkMount(ctx context.Context, a admission.Attributes, u *unstructured.Unstructured) error {
	mount, sender := mountOf(u), a.GetUserInfo()
	if old, ok := a.GetOldObject().(*unstructured.Unstructured); ok && !reflect.DeepEqual(mount, mountOf(old)) {
		return admission.NewForbidden(a, errors.New("spec.mount is immutable"))
	}
	if mount == nil || sender == nil || identity.MemberOf(ctx, sender, user.SystemPrivilegedGroup, request.GroupLogicalClusterAdmin) {
		return nil
	}
	if a.GetOperation() == admission.Update {
		return checkUnchanged(a, u)
	}
	if _, typed, _ := unstructured.NestedFieldNoCopy(u.Object, "spec", "type"); !typed {
		return nil
	}
	return admission.NewForbidden(a, errors.New("a Workspace with spec.mount must have no spec.type, because it has no logical cluster of its own: remove one of the two fields"))
}

func mountOf(u *unstructured.Unstructured) any {
	mount, _, _ := unstructured.NestedFieldNoCopy(u.Object, "spec", "mount")
	return mount
}

func workspaceOf(a admission.Attributes) (*unstructured.Unstructured, bool) {
	if a.GetResource().GroupResource() != workspaces || a.GetSubresource() != "" {
		return nil, false
	}
	u, ok := a.GetObject().(*unstructured.Unstructured)
	return u, ok
}

var workspaceTypes = tenancyv1alpha1.Resource("workspacetypes")

// checkType rejects reserved names and, like kcp, new references to other types without a path.
func checkType(ctx context.Context, a admission.Attributes) error {
	now, ok := a.GetObject().(*unstructured.Unstructured)
	if !ok || now == nil {
		return nil
	}
	if name := now.GetName(); a.GetOperation() == admission.Create {
		if slices.Contains(tenancyv1alpha1.WorkspaceTypeReservedNames(), name) {
			return admission.NewForbidden(a, fmt.Errorf("metadata.name %s is reserved: choose another one", name))
		}
		if cluster, _ := request.ClusterFrom(ctx); name == core.RootCluster.String() && cluster.Name != core.RootCluster {
			return admission.NewForbidden(a, errors.New("metadata.name root is reserved for the type of the logical cluster root: choose another one"))
		}
	}
	spec := specOf(now)
	var before map[string]any
	if old, ok := a.GetOldObject().(*unstructured.Unstructured); ok && old != nil {
		before = specOf(old)
	}
	const child = "defaultChildWorkspaceType"
	if spec[child] != nil && !hasPath(spec[child]) && !reflect.DeepEqual(spec[child], before[child]) {
		return admission.NewForbidden(a, pathless("spec."+child))
	}
	for _, name := range []string{"limitAllowedChildren", "limitAllowedParents"} {
		if selector, is := spec[name].(map[string]any); is && !reflect.DeepEqual(selector, before[name]) {
			old, _ := before[name].(map[string]any)
			if err := checkSelector(a, name, selector, old); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkSelector rejects a changed selector of types if it is invalid.
func checkSelector(a admission.Attributes, name string, selector, before map[string]any) error {
	_, none := selector["none"]
	types, some := selector["types"].([]any)
	if none == some {
		return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), field.ErrorList{
			field.Invalid(field.NewPath("spec", name), selector, "must have exactly one of none and types"),
		})
	}
	known, _ := before["types"].([]any)
	for i, ref := range types {
		if !hasPath(ref) && !slices.ContainsFunc(known, func(k any) bool { return reflect.DeepEqual(k, ref) }) {
			return admission.NewForbidden(a, pathless(fmt.Sprintf("spec.%s.types[%d]", name, i)))
		}
	}
	return nil
}

func pathless(field string) error {
	return fmt.Errorf("%s.path must be set to the workspace of the type", field)
}

func hasPath(ref any) bool {
	fields, _ := ref.(map[string]any)
	path, _ := fields["path"].(string)
	return path != ""
}

func specOf(wt *unstructured.Unstructured) map[string]any {
	spec, _ := wt.Object["spec"].(map[string]any)
	return spec
}
