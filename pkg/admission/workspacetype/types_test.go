package workspacetype_test

import (
	"cmp"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/admission/workspacetype"
	"github.com/shardplane/shardplane/pkg/request"
)

func writeType(t *testing.T, cluster logicalcluster.Name, subresource string, now, old *unstructured.Unstructured) error {
	t.Helper()
	gv := schema.GroupVersion{Group: "tenancy.kcp.io", Version: "v1alpha1"}
	var before runtime.Object
	operation, options := admission.Create, runtime.Object(&metav1.CreateOptions{})
	if old != nil {
		before, operation, options = old, admission.Update, &metav1.UpdateOptions{}
	}
	a := admission.NewAttributesRecord(now, before, gv.WithKind("WorkspaceType"), "", now.GetName(), gv.WithResource("workspacetypes"), subresource, operation, options, false,
		&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})
	return workspacetype.NewWorkspaceType(workspacetype.Config{}).Validate(request.WithClusterName(t.Context(), cluster), a, nil)
}

func typeOf(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	wt := &unstructured.Unstructured{}
	require.NoError(t, yaml.Unmarshal([]byte("{apiVersion: tenancy.kcp.io/v1alpha1, kind: WorkspaceType, metadata: {name: "+name+"}, spec: {"+spec+"}}"), &wt.Object))
	return wt
}

// TestTypes checks names and references of types, also of the system. Unchanged references are accepted.
func TestTypes(t *testing.T) {
	const (
		child    = "defaultChildWorkspaceType: {name: a}"
		children = "limitAllowedChildren: {types: [{name: a, path: 'root:org'}, {name: b}]}"
		parents  = "limitAllowedParents: {types: [{name: a}]}"
		neither  = "limitAllowedParents: {}"
		both     = "limitAllowedChildren: {none: true, types: [{name: a, path: root}]}"
	)
	fine := "defaultChildWorkspaceType: {name: a, path: root}, limitAllowedChildren: {none: true}, limitAllowedParents: {types: [{name: a, path: 2okdry95y5lkv}]}, extend: {with: [{name: a}]}"
	for name, tc := range map[string]struct {
		name                        string // t if empty
		cluster                     logicalcluster.Name
		spec, old, forbids, invalid string
		update                      bool
	}{
		"empty spec":                     {},
		"all references":                 {spec: fine},
		"any":                            {name: "any", forbids: "metadata.name any is reserved"},
		"system":                         {name: "system", forbids: "metadata.name system is reserved"},
		"root":                           {name: "root", forbids: "metadata.name root is reserved for the type of the logical cluster root"},
		"root in root":                   {name: "root", cluster: "root"},
		"system in root":                 {name: "system", cluster: "root", forbids: "reserved"},
		"unchanged reserved name":        {name: "system", update: true},
		"child without a path":           {spec: child, forbids: "spec.defaultChildWorkspaceType.path must be set"},
		"children without a path":        {spec: children, forbids: "spec.limitAllowedChildren.types[1].path must be set"},
		"parents without a path":         {spec: parents, forbids: "spec.limitAllowedParents.types[0].path must be set"},
		"empty path":                     {spec: "defaultChildWorkspaceType: {name: a, path: ''}", forbids: "path must be set"},
		"neither none nor types":         {spec: neither, invalid: "spec.limitAllowedParents: Invalid value"},
		"both none and types":            {spec: both, invalid: "must have exactly one of none and types"},
		"none is false":                  {spec: "limitAllowedChildren: {none: false}"}, // as in kcp, for all types
		"unchanged invalid references":   {update: true, spec: child + ", " + children + ", " + neither, old: child + ", " + children + ", " + neither},
		"unchanged none and types":       {update: true, spec: both, old: both},
		"reference without a path added": {update: true, spec: parents, old: "limitAllowedParents: {types: [{name: b}]}", forbids: "spec.limitAllowedParents.types[0].path must be set"},
		"valid reference added":          {update: true, spec: "limitAllowedParents: {types: [{name: b, path: root}, {name: a}]}", old: parents},
		"references removed":             {update: true, old: children},
		"child without a path changed":   {update: true, spec: "defaultChildWorkspaceType: {name: b}", old: child, forbids: "path must be set"},
		"limit becomes empty":            {update: true, spec: neither, old: parents, invalid: "must have exactly one"},
		"limit becomes valid":            {update: true, spec: "limitAllowedChildren: {none: true}", old: both},
	} {
		t.Run(name, func(t *testing.T) {
			name := cmp.Or(tc.name, "t")
			var old *unstructured.Unstructured
			if tc.update {
				old = typeOf(t, name, tc.old)
			}
			err := writeType(t, cmp.Or(tc.cluster, "here"), "", typeOf(t, name, tc.spec), old)
			switch {
			case tc.forbids != "":
				require.True(t, apierrors.IsForbidden(err), "%v", err)
				require.ErrorContains(t, err, tc.forbids)
			case tc.invalid != "":
				require.True(t, apierrors.IsInvalid(err), "%v", err)
				require.ErrorContains(t, err, tc.invalid)
			default:
				require.NoError(t, err)
			}
		})
	}
	old := typeOf(t, "system", child)
	require.NoError(t, writeType(t, "here", "status", old, old))
}

// TestTypesOfRoot checks that the built-in types are valid.
func TestTypesOfRoot(t *testing.T) {
	shipped, err := config.RootWorkspaceTypes()
	require.NoError(t, err)
	for _, wt := range shipped {
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(wt)
		require.NoError(t, err)
		require.NoError(t, writeType(t, "root", "", &unstructured.Unstructured{Object: object}, nil), wt.Name)
	}
}
