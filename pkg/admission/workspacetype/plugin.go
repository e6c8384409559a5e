// Package workspacetype says what type each new Workspace has, and refuses those whose
// type does not exist, is not allowed where it would be, or may not be used by its
// creator: for a type, and each that it extends, that takes the verb use on it, in
// the logical cluster where the type is.
//
// Which of these it is, is told to those who may read the type, and what it extends.
// All others get one answer, after the same time.
//
// And it refuses WorkspaceTypes that no Workspace could have as they are meant.
package workspacetype

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// poll is how often a type that is waited for is looked up.
const poll = 20 * time.Millisecond

var workspaces = schema.GroupResource{Group: tenancyv1alpha1.SchemeGroupVersion.Group, Resource: "workspaces"}

// Config is what the plugin asks.
type Config struct {
	// Types returns the type that a new Workspace in a logical cluster gets, and
	// then all that it extends. Its error says why such a Workspace cannot be there;
	// the first type is returned with it, if that exists.
	Types func(ctx context.Context, parent logicalcluster.Name, ws *tenancyv1alpha1.Workspace) (tenancy.Family, error)
	// Timeout is how long a type that is not known is waited for: it may have
	// been created a moment ago, on another shard perhaps. Whoever may not use a
	// type waits as long, or time would tell that it exists.
	Timeout time.Duration
	// May reports whether a user may do something with a type. Its error says that this
	// could not be found out.
	May func(ctx context.Context, u user.Info, verb string, t *tenancyv1alpha1.WorkspaceType) (bool, error)
	// WouldSee reports whether a user could read a type of that name, if there was one, in
	// the logical cluster at the path, and where it would be looked for without a path.
	WouldSee func(ctx context.Context, u user.Info, parent logicalcluster.Name, ref tenancyv1alpha1.WorkspaceTypeReference) bool
}

// Plugin sets the type of new Workspaces, and checks who uses it. Administrators
// and the system need no rule for it.
type Plugin struct {
	*admission.Handler
	config Config
}

var (
	_ admission.MutationInterface   = &Plugin{}
	_ admission.ValidationInterface = &Plugin{}
)

// New returns the plugin.
func New(config Config) *Plugin {
	return &Plugin{Handler: admission.NewHandler(admission.Create, admission.Update), config: config}
}

// Admit implements admission.MutationInterface: what the type is, is decided once, and everybody
// can see it. Who may not use it is refused here already: hooks, and the validation by schema,
// would else come at once where the type exists.
func (p *Plugin) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	u, ok := workspaceOf(a)
	if !ok || a.GetOperation() != admission.Create || mountOf(u) != nil {
		return nil
	}
	ws, err := typed(a, u)
	if err != nil {
		return nil //nolint:nilerr // validation by schema says it better
	}
	types, err := p.judge(ctx, a, ws)
	if err != nil || len(types) == 0 {
		return err
	}
	ref := map[string]any{"name": types[0].Name, "path": types[0].Path.String()}
	if err := unstructured.SetNestedMap(u.Object, ref, "spec", "type"); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

// Validate implements admission.ValidationInterface. It judges again what is created, which hooks
// may have changed.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() == workspaceTypes && a.GetSubresource() == "" {
		return checkType(ctx, a)
	}
	u, ok := workspaceOf(a)
	who := a.GetUserInfo()
	if !ok {
		return nil
	}
	if err := checkMount(ctx, a, u); err != nil {
		return err
	}
	if who == nil || mountOf(u) != nil {
		return nil
	}
	if a.GetOperation() == admission.Update {
		if identity.Administers(ctx, who) {
			return nil
		}
		return checkUnchanged(a, u)
	}
	ws, err := typed(a, u)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	_, err = p.judge(ctx, a, ws)
	return err
}

// judge returns the type that a Workspace gets and all that it extends, or why it cannot be
// created. Whoever may not know which of the reasons it is gets all of them after the same time.
func (p *Plugin) judge(ctx context.Context, a admission.Attributes, ws *tenancyv1alpha1.Workspace) (tenancy.Family, error) {
	start := time.Now()
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	types, reason := p.config.Types(ctx, cluster, ws)
	if unknown(types, reason) && p.config.Timeout > 0 {
		resume := request.Pause(ctx)
		_ = wait.PollUntilContextTimeout(ctx, poll, p.config.Timeout, false, func(ctx context.Context) (bool, error) {
			types, reason = p.config.Types(ctx, cluster, ws)
			return !unknown(types, reason), nil
		})
		resume()
	}
	who := a.GetUserInfo()
	switch {
	case errors.Is(reason, client.ErrIncomplete):
		return nil, request.Unavailable(fmt.Sprintf("this shard cannot tell the types of workspaces yet, try again: %v", reason))
	case who == nil:
		return types, nil
	case reason == nil && !identity.Administers(ctx, who):
		if reason, err = p.mayUse(ctx, who, types); err != nil {
			return nil, err
		}
	default:
	}
	if reason == nil {
		return types, nil
	}
	if p.mayKnow(ctx, who, types, ws, reason) {
		return nil, admission.NewForbidden(a, fmt.Errorf("the workspace type cannot be used: %w", reason))
	}
	p.hold(ctx, start)
	return nil, admission.NewForbidden(a, errRefused)
}

// errRefused is the one answer for all who may not know more. It does not name the type.
var errRefused = errors.New("the workspace type cannot be used: it does not exist, or you do not have the verb use on it and on all types that it extends, or it is not allowed in this workspace; ask the administrators of the workspace that it is in")

// mayUse returns why the user may not use the types, if that is so.
func (p *Plugin) mayUse(ctx context.Context, who user.Info, types tenancy.Family) (reason, err error) {
	for _, t := range types {
		may, err := p.config.May(ctx, who, "use", t.WorkspaceType)
		if err != nil {
			return nil, request.Unavailable(fmt.Sprintf("cannot find out whether workspace type %s may be used, try again: %v", t.ID(), err))
		}
		if !may {
			return fmt.Errorf("you do not have the verb use on workspacetypes/%s in %s", t.Name, t.Path), nil
		}
	}
	return nil, nil
}

// mayKnow reports whether the user is told why the type is refused. Whoever writes a type
// chooses what it extends, so reading that type is not enough: all of it must be known to
// the user, to read or to use.
func (p *Plugin) mayKnow(ctx context.Context, who user.Info, types tenancy.Family, ws *tenancyv1alpha1.Workspace, reason error) bool {
	if identity.Administers(ctx, who) {
		return true
	}
	if errors.Is(reason, tenancy.ErrExtends) {
		return false
	}
	for i, t := range types {
		may, err := p.config.May(ctx, who, "get", t.WorkspaceType)
		if err == nil && !may && i > 0 {
			may, err = p.config.May(ctx, who, "use", t.WorkspaceType)
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
	return err == nil && ref != nil && ref.Name != "" && p.config.WouldSee(ctx, who, cluster, *ref)
}

// unknown reports whether a type is none that is known.
func unknown(types tenancy.Family, err error) bool { return err != nil && len(types) == 0 }

// hold waits as long as is waited for a type that does not exist. Who has waited for that was paused
// meanwhile, and is not once more: to get a seat again may take time, which would tell.
func (p *Plugin) hold(ctx context.Context, start time.Time) {
	left := time.Until(start.Add(p.config.Timeout))
	if left <= 0 {
		return
	}
	defer request.Pause(ctx)()
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// typed returns a Workspace as a Go type.
func typed(a admission.Attributes, u *unstructured.Unstructured) (*tenancyv1alpha1.Workspace, error) {
	ws := &tenancyv1alpha1.Workspace{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, ws); err != nil {
		return nil, fmt.Errorf("reading the Workspace %s: %w", a.GetName(), err)
	}
	return ws, nil
}

// checkUnchanged denies to change the type after it was checked.
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

// checkMount denies to give a Workspace that mounts something a type, and to make one a mount,
// or none any more: it has a logical cluster, or it has none.
func checkMount(ctx context.Context, a admission.Attributes, u *unstructured.Unstructured) error {
	mount, who := mountOf(u), a.GetUserInfo()
	if old, ok := a.GetOldObject().(*unstructured.Unstructured); ok && !reflect.DeepEqual(mount, mountOf(old)) {
		return admission.NewForbidden(a, errors.New("spec.mount is immutable"))
	}
	if mount == nil || who == nil || identity.MemberOf(ctx, who, user.SystemPrivilegedGroup, request.GroupLogicalClusterAdmin) {
		return nil
	}
	if a.GetOperation() == admission.Update {
		return checkUnchanged(a, u)
	}
	if _, typed, _ := unstructured.NestedFieldNoCopy(u.Object, "spec", "type"); !typed {
		return nil
	}
	return admission.NewForbidden(a, errors.New("a Workspace with spec.mount has no logical cluster of its own, and no spec.type: leave one of the two out"))
}

// mountOf returns what a Workspace mounts, or nil.
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
