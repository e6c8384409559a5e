// Package workspacetype says what type each new Workspace has, and keeps users
// from types that they may not use: for a type, and each that it extends, it
// takes the verb use on it, in the logical cluster where the type is.
package workspacetype

import (
	"context"
	"errors"
	"fmt"
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
	// then all that it extends.
	Types func(ctx context.Context, parent logicalcluster.Name, ws *tenancyv1alpha1.Workspace) (tenancy.Family, error)
	// Timeout is how long a type that is not known is waited for: it may have
	// been created a moment ago, on another shard perhaps. Whoever may not use a
	// type waits as long, or time would tell that it exists.
	Timeout time.Duration
	// MayUse reports whether a user may use a type. Its error says that this could
	// not be found out.
	MayUse func(ctx context.Context, u user.Info, t *tenancyv1alpha1.WorkspaceType) (bool, error)
}

// Plugin sets the type of new Workspaces, and checks who uses it. Administrators
// and the system may create Workspaces of types that do not exist yet.
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

// Admit implements admission.MutationInterface: what the type is, is decided
// once, and everybody can see it.
func (p *Plugin) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	u, ok := workspaceOf(a)
	if !ok || a.GetOperation() != admission.Create {
		return nil
	}
	types, err := p.types(ctx, a, u)
	if err != nil && p.config.Timeout > 0 {
		_ = wait.PollUntilContextTimeout(ctx, poll, p.config.Timeout, false, func(ctx context.Context) (bool, error) {
			types, err = p.types(ctx, a, u)
			return err == nil, nil
		})
	}
	if err != nil || len(types) == 0 {
		return nil //nolint:nilerr // Validate says it, to whom it concerns
	}
	ref := map[string]any{"name": types[0].Name, "path": types[0].Path.String()}
	if err := unstructured.SetNestedMap(u.Object, ref, "spec", "type"); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	u, ok := workspaceOf(a)
	who := a.GetUserInfo()
	if !ok || who == nil || isExempt(ctx, who) {
		return nil
	}
	if a.GetOperation() == admission.Update {
		return checkUnchanged(a, u)
	}
	types, err := p.types(ctx, a, u)
	if errors.Is(err, client.ErrIncomplete) {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("this shard cannot tell the types of workspaces yet, try again: %v", err))
	}
	if err != nil || len(types) == 0 {
		return refused(a, u)
	}
	for _, t := range types {
		may, err := p.config.MayUse(ctx, who, t.WorkspaceType)
		if err != nil {
			return apierrors.NewServiceUnavailable(fmt.Sprintf("cannot find out whether workspace type %s may be used, try again: %v", t.ID(), err))
		}
		if !may {
			p.hold(ctx)
			return refused(a, u)
		}
	}
	return nil
}

// hold waits as long as Admit has waited for a type that does not exist.
func (p *Plugin) hold(ctx context.Context) {
	timer := time.NewTimer(p.config.Timeout)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// types returns the type that u gets and all that it extends.
func (p *Plugin) types(ctx context.Context, a admission.Attributes, u *unstructured.Unstructured) (tenancy.Family, error) {
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return nil, err
	}
	ws := &tenancyv1alpha1.Workspace{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, ws); err != nil {
		return nil, fmt.Errorf("reading the Workspace %s: %w", a.GetName(), err)
	}
	return p.config.Types(ctx, cluster, ws)
}

// refused is one answer for types that do not exist and for those that the user
// may not use: who may not must not learn what there is.
func refused(a admission.Attributes, u *unstructured.Unstructured) error {
	name, _, _ := unstructured.NestedString(u.Object, "spec", "type", "name")
	path, _, _ := unstructured.NestedString(u.Object, "spec", "type", "path")
	what := "the default workspace type"
	switch {
	case path != "":
		what = "workspace type " + path + ":" + name
	case name != "":
		what = "workspace type " + name
	}
	return admission.NewForbidden(a, fmt.Errorf("%s cannot be used: it does not exist, or you do not have the verb use on it and on all types that it extends; ask the administrators of the workspace that it is in", what))
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

func workspaceOf(a admission.Attributes) (*unstructured.Unstructured, bool) {
	if a.GetResource().GroupResource() != workspaces || a.GetSubresource() != "" {
		return nil, false
	}
	u, ok := a.GetObject().(*unstructured.Unstructured)
	return u, ok
}

func isExempt(ctx context.Context, u user.Info) bool {
	return identity.MemberOf(ctx, u, user.SystemPrivilegedGroup, request.GroupLogicalClusterAdmin, request.GroupAdmin)
}
