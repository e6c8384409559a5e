package reserved_test

import (
	"cmp"
	"testing"

	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/admission/reserved"
)

const annotation = "experimental.tenancy.kcp.io/owner"

func workspace(owner string) *unstructured.Unstructured {
	ws := &unstructured.Unstructured{Object: map[string]any{}}
	ws.SetName("ws")
	if owner != "" {
		ws.SetAnnotations(map[string]string{annotation: owner, "other": "x"})
	}
	return ws
}

func TestAdmit(t *testing.T) {
	alice := &user.DefaultInfo{Name: "alice", UID: "1", Groups: []string{"team"}, Extra: map[string][]string{"k": {"v"}}}
	masters := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
	const owner = `{"username":"alice","uid":"1","groups":["team"],"extra":{"k":["v"]}}`
	for _, tc := range []struct {
		name, resource, subresource, want string
		sender                            user.Info
		operation                         admission.Operation
		obj                               *unstructured.Unstructured
		old                               runtime.Object
	}{
		{name: "creator", sender: alice, operation: admission.Create, obj: workspace(""), want: owner},
		{name: "creator with a forged owner", sender: alice, operation: admission.Create, obj: workspace("forged"), want: owner},
		{name: "created for another by the system", sender: masters, operation: admission.Create, obj: workspace("bob"), want: "bob"},
		{name: "created without an owner by the system", sender: masters, operation: admission.Create, obj: workspace("")},
		{name: "changed", sender: alice, operation: admission.Update, obj: workspace("forged"), old: workspace("bob"), want: "bob"},
		{name: "added", sender: alice, operation: admission.Update, obj: workspace("forged"), old: workspace("")},
		{name: "removed", sender: alice, operation: admission.Update, obj: workspace(""), old: workspace("bob"), want: "bob"},
		{name: "changed by the system", sender: masters, operation: admission.Update, obj: workspace("carol"), old: workspace("bob"), want: "carol"},
		{name: "status", sender: alice, subresource: "status", operation: admission.Update, obj: workspace("x"), old: workspace("bob"), want: "x"},
		{name: "other resources", sender: alice, resource: "workspacetypes", operation: admission.Create, obj: workspace("")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			resource := tenancyv1alpha1.SchemeGroupVersion.WithResource(cmp.Or(tc.resource, "workspaces"))
			attributes := admission.NewAttributesRecord(tc.obj, tc.old, schema.GroupVersionKind{}, "", "ws", resource, tc.subresource, tc.operation, nil, false, tc.sender)
			require.NoError(t, reserved.NewWorkspaceOwner().Admit(t.Context(), attributes, nil))
			require.Equal(t, tc.want, tc.obj.GetAnnotations()[annotation])
		})
	}
}
