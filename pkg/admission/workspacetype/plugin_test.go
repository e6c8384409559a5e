package workspacetype_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/admission/workspacetype"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/test/bubble"
)

func typed(name, path string) *unstructured.Unstructured {
	ws := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace"}}
	ws.SetName("ws")
	if name != "" {
		ref := map[string]any{"name": name}
		if path != "" {
			ref["path"] = path
		}
		ws.Object["spec"] = map[string]any{"type": ref}
	}
	return ws
}

func mounting(ws *unstructured.Unstructured, object string) *unstructured.Unstructured {
	_ = unstructured.SetNestedField(ws.Object, object, "spec", "mount", "ref", "name")
	return ws
}

// plugin has the types root:base, root:special, which extends it, root:lonely, which is not allowed,
// root:broken, which extends a missing type, and root:flaky. may lists the users of types, and reads their
// readers.
func plugin(may, reads map[string][]string) percluster.Plugin {
	known := func(name string) tenancy.WorkspaceType {
		return tenancy.WorkspaceType{WorkspaceType: &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: name}}, Path: logicalcluster.NewPath("root")}
	}
	return workspacetype.NewWorkspaceType(workspacetype.Config{
		Types: func(_ context.Context, parent logicalcluster.Name, ws *tenancyv1alpha1.Workspace) (tenancy.Family, error) {
			if parent != "here" {
				return nil, errors.New("no such parent")
			}
			if ws.Spec.Type == nil {
				return tenancy.Family{known("base")}, nil
			}
			switch string(ws.Spec.Type.Name) {
			case "base", "flaky":
				return tenancy.Family{known(string(ws.Spec.Type.Name))}, nil
			case "special":
				return tenancy.Family{known("special"), known("base")}, nil
			case "lonely":
				return tenancy.Family{known("lonely")}, errors.New("it allows no parents")
			case "broken":
				return tenancy.Family{known("broken")}, fmt.Errorf("%w: root:missing does not exist", tenancy.ErrExtends)
			case "early":
				return nil, fmt.Errorf("types of other shards: %w", client.ErrIncomplete)
			default:
				return nil, errors.New("it does not exist")
			}
		},
		May: func(_ context.Context, u user.Info, verb string, t *tenancyv1alpha1.WorkspaceType) (bool, error) {
			switch {
			case t.Name == "flaky":
				return false, errors.New("connection refused")
			case verb == "get":
				return slices.Contains(reads[u.GetName()], t.Name), nil
			default:
				return slices.Contains(may[u.GetName()], t.Name), nil
			}
		},
		WouldSee: func(_ context.Context, u user.Info, parent logicalcluster.Name, ref tenancyv1alpha1.WorkspaceTypeReference) bool {
			return parent == "here" && slices.Contains(reads[u.GetName()], ref.Path+":"+string(ref.Name))
		},
	})
}

// genericDenial is the response to users who must not see the reason.
const genericDenial = "the workspace type cannot be used: it does not exist, or you do not have the verb use on it and on all types that it extends, or it is not allowed"

// isUnavailable reports whether clients retry the request.
func isUnavailable(err error) bool {
	_, later := apierrors.SuggestsClientDelay(err)
	return later && apierrors.IsServiceUnavailable(err)
}

func TestPlugin(t *testing.T) {
	p := plugin(map[string][]string{"alice": {"base", "special", "lonely"}, "bob": {"base"}, "carol": {"special"}, "carla": {"special"}, "half": {"special", "broken"}, "user": {"base"}},
		map[string][]string{"carla": {"special", "base"}, "half": {"special", "broken"}, "user": {"special"}, "reader": {"special", "base", "lonely", "root:none"}})
	for _, tc := range []struct {
		name, sender, wantType, message string
		groups                          []string
		ws, old                         *unstructured.Unstructured
		cluster                         logicalcluster.Name
		refused                         func(error) bool
	}{
		{name: "default", sender: "bob", ws: typed("", ""), wantType: "base"},
		{name: "named", sender: "alice", ws: typed("special", ""), wantType: "special"},
		{name: "no permission", sender: "bob", ws: typed("special", "root"), wantType: "special", refused: apierrors.IsForbidden, message: genericDenial},
		{name: "no permission for an extended type", sender: "carol", ws: typed("special", ""), wantType: "special", refused: apierrors.IsForbidden, message: genericDenial},
		{name: "no permission for the default type", sender: "carol", ws: typed("", ""), refused: apierrors.IsForbidden, message: genericDenial},
		{name: "no such type", sender: "alice", ws: typed("none", ""), wantType: "none", refused: apierrors.IsForbidden, message: genericDenial},
		{name: "type not allowed", sender: "alice", ws: typed("lonely", "root"), wantType: "lonely", refused: apierrors.IsForbidden, message: genericDenial},
		{name: "no permission, readable type", sender: "reader", ws: typed("special", ""), wantType: "special", refused: apierrors.IsForbidden, message: "cannot be used: you do not have the verb use on workspacetypes/special in root"},
		{name: "no permission for an extended type, readable types", sender: "carla", ws: typed("special", ""), wantType: "special", refused: apierrors.IsForbidden, message: "you do not have the verb use on workspacetypes/base in root"},
		{name: "type not allowed, readable type", sender: "reader", ws: typed("lonely", "root"), wantType: "lonely", refused: apierrors.IsForbidden, message: "cannot be used: it allows no parents"},
		{name: "no such type, would be readable", sender: "reader", ws: typed("none", "root"), wantType: "none", refused: apierrors.IsForbidden, message: "cannot be used: it does not exist"},
		{name: "no permission for an extended type, not readable", sender: "half", ws: typed("special", ""), wantType: "special", refused: apierrors.IsForbidden, message: genericDenial},
		{name: "no permission, but for the extended type", sender: "user", ws: typed("special", ""), wantType: "special", refused: apierrors.IsForbidden, message: "you do not have the verb use on workspacetypes/special in root"},
		{name: "missing extended type", sender: "half", ws: typed("broken", "root"), wantType: "broken", refused: apierrors.IsForbidden, message: genericDenial},
		{name: "missing extended type, administrator", sender: "root", groups: []string{"system:kcp:admin"}, ws: typed("broken", "root"), wantType: "broken", refused: apierrors.IsForbidden, message: "root:missing does not exist"},
		{name: "no such type in any parent", sender: "reader", ws: typed("none", ""), wantType: "none", refused: apierrors.IsForbidden, message: genericDenial},
		{name: "no such type, administrator", sender: "root", groups: []string{"system:kcp:admin"}, ws: typed("none", ""), wantType: "none", refused: apierrors.IsForbidden, message: "cannot be used: it does not exist"},
		{name: "no such type, system", sender: "root", groups: []string{user.SystemPrivilegedGroup}, ws: typed("none", ""), wantType: "none", refused: apierrors.IsForbidden, message: "cannot be used: it does not exist"},
		{name: "type not allowed, administrator", sender: "root", groups: []string{"system:kcp:admin"}, ws: typed("lonely", "root"), wantType: "lonely", refused: apierrors.IsForbidden, message: "it allows no parents"},
		{name: "administrator without permission", sender: "root", groups: []string{"system:kcp:admin"}, ws: typed("special", ""), wantType: "special"},
		{name: "system", sender: "root", groups: []string{user.SystemPrivilegedGroup}, ws: typed("flaky", ""), wantType: "flaky"},
		{name: "failed authorization", sender: "alice", ws: typed("flaky", ""), wantType: "flaky", refused: isUnavailable, message: "connection refused"},
		{name: "incomplete data", sender: "alice", ws: typed("early", ""), wantType: "early", refused: isUnavailable, message: "try again"},
		{name: "no such parent", sender: "alice", cluster: "missing", ws: typed("base", ""), wantType: "base", refused: apierrors.IsForbidden},
		{name: "unchanged", sender: "bob", ws: typed("special", "root"), old: typed("special", "root"), wantType: "special"},
		{name: "changed", sender: "alice", ws: typed("base", "root"), old: typed("special", "root"), wantType: "base", refused: apierrors.IsForbidden, message: "immutable"},
		{name: "removed", sender: "alice", ws: typed("", ""), old: typed("special", "root"), refused: apierrors.IsForbidden, message: "immutable"},
		{name: "added by an update", sender: "alice", ws: typed("base", "root"), old: typed("", ""), wantType: "base", refused: apierrors.IsForbidden, message: "immutable"},
		{name: "mount", sender: "stranger", ws: mounting(typed("", ""), "x")},
		{name: "mount with a type", sender: "alice", ws: mounting(typed("base", ""), "x"), wantType: "base", refused: apierrors.IsForbidden, message: "no spec.type"},
		{name: "mount with a type, administrator", sender: "root", groups: []string{"system:kcp:admin"}, ws: mounting(typed("base", ""), "x"), wantType: "base", refused: apierrors.IsForbidden},
		{name: "mount with a type, system", sender: "root", groups: []string{user.SystemPrivilegedGroup}, ws: mounting(typed("base", ""), "x"), wantType: "base"},
		{name: "unchanged mount with a type", sender: "alice", ws: mounting(typed("base", ""), "x"), old: mounting(typed("base", ""), "x"), wantType: "base"},
		{name: "type added to a mount", sender: "alice", ws: mounting(typed("base", ""), "x"), old: mounting(typed("", ""), "x"), wantType: "base", refused: apierrors.IsForbidden},
		{name: "mount changed", sender: "alice", ws: mounting(typed("", ""), "y"), old: mounting(typed("", ""), "x"), refused: apierrors.IsForbidden, message: "spec.mount is immutable"},
		{name: "mount removed", sender: "alice", ws: typed("", ""), old: mounting(typed("", ""), "x"), refused: apierrors.IsForbidden, message: "spec.mount is immutable"},
		{name: "mount added by the system", sender: "root", groups: []string{user.SystemPrivilegedGroup}, ws: mounting(typed("", ""), "x"), old: typed("", ""), refused: apierrors.IsForbidden, message: "spec.mount is immutable"},
		{name: "type added by the system", sender: "root", groups: []string{user.SystemPrivilegedGroup}, ws: typed("base", "root"), old: typed("", ""), wantType: "base"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			operation, old := admission.Create, runtime.Object(nil)
			if tc.old != nil {
				operation, old = admission.Update, tc.old
			}
			ctx := request.WithClusterName(t.Context(), cmp.Or(tc.cluster, "here"))
			a := admission.NewAttributesRecord(tc.ws, old, schema.GroupVersionKind{}, "", "ws", tenancyv1alpha1.SchemeGroupVersion.WithResource("workspaces"), "",
				operation, nil, false, &user.DefaultInfo{Name: tc.sender, Groups: tc.groups})
			before := tc.ws.DeepCopy()
			admitted := p.Admit(ctx, a, nil)
			if admitted != nil {
				require.Equal(t, before, tc.ws, "a rejected object has changed, which discloses the path of the type")
			}
			_, mounts, _ := unstructured.NestedMap(tc.ws.Object, "spec", "mount")
			require.Equal(t, tc.refused != nil && tc.old == nil && !mounts, admitted != nil,
				"a type that cannot be used must be rejected before other plugins admit the object: %v", admitted)
			got, _, err := unstructured.NestedString(tc.ws.Object, "spec", "type", "name")
			require.NoError(t, err)
			require.Equal(t, tc.wantType, got)
			err = p.Validate(ctx, a, nil)
			if tc.refused == nil {
				require.NoError(t, err)
				return
			}
			require.True(t, tc.refused(err), "%v", err)
			require.ErrorContains(t, err, tc.message)
			if admitted != nil {
				require.Equal(t, err, admitted)
			}
		})
	}
}

func TestOtherResourcesAreIgnored(t *testing.T) {
	p := plugin(nil, nil)
	for _, tc := range []struct{ resource, subresource string }{{"workspacetypes", ""}, {"workspaces", "status"}} {
		ws := typed("", "")
		a := admission.NewAttributesRecord(ws, nil, schema.GroupVersionKind{}, "", "ws", tenancyv1alpha1.SchemeGroupVersion.WithResource(tc.resource), tc.subresource,
			admission.Create, nil, false, &user.DefaultInfo{Name: "stranger"})
		require.NoError(t, p.Admit(t.Context(), a, nil))
		require.NoError(t, p.Validate(t.Context(), a, nil))
		require.NotContains(t, ws.Object, "spec")
	}
}

// TestNewTypes checks that a type is used as soon as it becomes known, and that rejections take the same time
// whether or not the type exists, before and after webhooks. The request releases its seat equally often in
// all cases.
func TestNewTypes(t *testing.T) {
	const timeout = 100 * time.Millisecond
	lookups := 0
	p := workspacetype.NewWorkspaceType(workspacetype.Config{
		WouldSee: func(context.Context, user.Info, logicalcluster.Name, tenancyv1alpha1.WorkspaceTypeReference) bool {
			return false
		},
		Types: func(_ context.Context, _ logicalcluster.Name, ws *tenancyv1alpha1.Workspace) (tenancy.Family, error) {
			if lookups++; ws.Spec.Type.Name == "none" || ws.Spec.Type.Name == "new" && lookups < 3 {
				return nil, errors.New("it does not exist")
			}
			found := tenancy.Family{{WorkspaceType: &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: string(ws.Spec.Type.Name)}}, Path: logicalcluster.NewPath("root")}}
			if ws.Spec.Type.Name == "lonely" {
				return found, errors.New("it allows no parents")
			}
			return found, nil
		},
		May: func(_ context.Context, _ user.Info, verb string, t *tenancyv1alpha1.WorkspaceType) (bool, error) {
			return verb == "use" && t.Name != "forbidden", nil
		},
		Timeout: timeout,
	})
	for name, allowed := range map[string]bool{"new": true, "none": false, "forbidden": false, "lonely": false} {
		lookups = 0
		a := admission.NewAttributesRecord(typed(name, ""), nil, schema.GroupVersionKind{}, "", "ws", tenancyv1alpha1.SchemeGroupVersion.WithResource("workspaces"), "",
			admission.Create, nil, false, &user.DefaultInfo{Name: "alice"})
		bubble.Test(t, func(t *testing.T) {
			check := func(call func(context.Context, admission.Attributes, admission.ObjectInterfaces) error, waits time.Duration) {
				start, pauses, paused := time.Now(), 0, time.Duration(0)
				ctx := request.WithPause(request.WithClusterName(t.Context(), "here"), func() (resume func()) {
					began := time.Now()
					pauses++
					return func() { paused += time.Since(began) }
				})
				err := call(ctx, a, nil)
				require.Equal(t, allowed, err == nil, "%s: %v", name, err)
				require.Equal(t, waits, time.Since(start), name)
				require.Equal(t, waits, paused, name)
				require.Equal(t, waits > 0, pauses == 1, name)
			}
			if allowed {
				check(p.Admit, 2*20*time.Millisecond)
				check(p.Validate, 0)
				return
			}
			check(p.Admit, timeout)
			check(p.Validate, timeout) // also after a change by a webhook
		})
	}
}
