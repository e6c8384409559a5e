package tenancy

import (
	"fmt"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/config"
)

func ref(id string) tenancyv1alpha1.WorkspaceTypeReference {
	path, name := logicalcluster.NewPath(id).Split()
	return tenancyv1alpha1.WorkspaceTypeReference{Path: path.String(), Name: tenancyv1alpha1.WorkspaceTypeName(name)}
}

func refs(ids ...string) []tenancyv1alpha1.WorkspaceTypeReference {
	var all []tenancyv1alpha1.WorkspaceTypeReference
	for _, id := range ids {
		all = append(all, ref(id))
	}
	return all
}

// catalogue returns a lookup of the types that every root has, and of additional ones.
func catalogue(t *testing.T, more map[string]tenancyv1alpha1.WorkspaceTypeSpec) TypeLookup {
	t.Helper()
	types := map[string]*tenancyv1alpha1.WorkspaceType{}
	shipped, err := config.RootWorkspaceTypes()
	require.NoError(t, err)
	for _, wt := range shipped {
		wt.Annotations[logicalcluster.AnnotationKey] = "root"
		types["root:"+wt.Name] = wt
	}
	for id, spec := range more {
		path, name := logicalcluster.NewPath(id).Split()
		types[id] = &tenancyv1alpha1.WorkspaceType{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{logicalcluster.AnnotationKey: path.Base()}},
			Spec:       spec,
		}
	}
	return func(path logicalcluster.Path, name tenancyv1alpha1.WorkspaceTypeName) (*tenancyv1alpha1.WorkspaceType, bool) {
		wt, ok := types[path.Join(string(name)).String()]
		return wt, ok
	}
}

// parentAt returns the LogicalCluster of a parent; the type may be empty.
func parentAt(path, typ string) *corev1alpha1.LogicalCluster {
	lc := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{
		Name:        corev1alpha1.LogicalClusterName,
		Annotations: map[string]string{core.LogicalClusterPathAnnotationKey: path, logicalcluster.AnnotationKey: "parent"},
	}}
	if typ != "" {
		lc.Annotations[tenancyv1alpha1.LogicalClusterTypeAnnotationKey] = typ
	}
	return lc
}

func TestAllowed(t *testing.T) {
	types := catalogue(t, map[string]tenancyv1alpha1.WorkspaceTypeSpec{
		"root:org:project":    {Extend: tenancyv1alpha1.WorkspaceTypeExtension{With: refs("root:universal")}, Initializer: true, Terminator: true, AdditionalWorkspaceLabels: map[string]string{"kind": "project", "tier": "1"}},
		"root:org:big":        {Extend: tenancyv1alpha1.WorkspaceTypeExtension{With: refs("project")}, AdditionalWorkspaceLabels: map[string]string{"tier": "2"}},
		"root:org:leaf":       {LimitAllowedChildren: &tenancyv1alpha1.WorkspaceTypeSelector{None: true}},
		"root:org:orphans":    {DefaultChildWorkspaceType: &tenancyv1alpha1.WorkspaceTypeReference{Name: "project"}},
		"root:org:cycle":      {Extend: tenancyv1alpha1.WorkspaceTypeExtension{With: refs("epicycle")}},
		"root:org:epicycle":   {Extend: tenancyv1alpha1.WorkspaceTypeExtension{With: refs("cycle")}},
		"root:org:broken":     {Extend: tenancyv1alpha1.WorkspaceTypeExtension{With: refs("root:nothing")}},
		"root:org:subproject": {LimitAllowedParents: &tenancyv1alpha1.WorkspaceTypeSelector{Types: refs("project")}},
	})
	for name, tc := range map[string]struct {
		typ, parentPath, parentType string
		want, problem               string
	}{
		"default of root":                          {parentPath: "root", parentType: "root:root", want: "root:organization"},
		"default of an organization":               {parentPath: "root:org", parentType: "root:organization", want: "root:universal"},
		"universal without default":                {parentPath: "root:org", want: "root:universal"},
		"default relative to the type":             {parentPath: "root:else", parentType: "root:org:orphans", want: "root:org:project"},
		"reference with path":                      {typ: "root:universal", parentPath: "root:org", parentType: "root:organization", want: "root:universal"},
		"reference without path, ancestor":         {typ: "universal", parentPath: "root:org:a:b", parentType: "root:universal", want: "root:universal"},
		"reference without path, closest ancestor": {typ: "project", parentPath: "root:org:a", parentType: "root:universal", want: "root:org:project"},
		"unknown":                             {typ: "root:nothing", parentPath: "root", parentType: "root:root", problem: "workspace type root:nothing does not exist"},
		"unknown without path":                {typ: "nothing", parentPath: "root:org", problem: "workspace type nothing does not exist"},
		"organization below universal":        {typ: "root:organization", parentPath: "root:x", parentType: "root:universal", problem: "root:organization does not allow parents of type root:universal"},
		"organization below organization":     {typ: "root:organization", parentPath: "root:x", parentType: "root:organization", problem: "root:organization does not allow parents of type root:organization"},
		"team below organization":             {typ: "root:team", parentPath: "root:x", parentType: "root:organization", want: "root:team"},
		"team below team":                     {typ: "root:team", parentPath: "root:x:y", parentType: "root:team", want: "root:team"},
		"team below universal":                {typ: "root:team", parentPath: "root:x:y", parentType: "root:universal", problem: "does not allow parents"},
		"home with parent":                    {typ: "root:home", parentPath: "root", parentType: "root:root", problem: "root:home does not allow parents"},
		"child of a leaf":                     {typ: "root:universal", parentPath: "root:org:l", parentType: "root:org:leaf", problem: "root:org:leaf does not allow children of type root:universal"},
		"type that extends an allowed type":   {typ: "root:org:project", parentPath: "root:org", parentType: "root:organization", want: "root:org:project"},
		"type that extends no allowed type":   {typ: "root:org:leaf", parentPath: "root:org", parentType: "root:organization", problem: "root:organization does not allow children of type root:org:leaf"},
		"parent that extends an allowed type": {typ: "root:org:subproject", parentPath: "root:org:p", parentType: "root:org:big", want: "root:org:subproject"},
		"parent that extends no allowed type": {typ: "root:org:subproject", parentPath: "root:org:p", parentType: "root:universal", problem: "does not allow parents"},
		"parent with unreadable type":         {typ: "root:org:subproject", parentPath: "root:org:p", parentType: "root:unreachable:typ", want: "root:org:subproject"},
		"cycle":                               {typ: "root:org:cycle", parentPath: "root:org", problem: "extends itself: root:org:cycle -> root:org:epicycle -> root:org:cycle"},
		"missing extended type":               {typ: "root:org:broken", parentPath: "root:org", problem: "extends root:nothing, which does not exist"},
		"system cluster":                      {typ: "nothing", parentPath: "system:admin", problem: "does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			ws := &tenancyv1alpha1.Workspace{}
			if tc.typ != "" {
				r := ref(tc.typ)
				ws.Spec.Type = &r
			}
			got, err := types.Allowed(ws, parentAt(tc.parentPath, tc.parentType))
			if tc.problem != "" {
				require.ErrorContains(t, err, tc.problem)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, got[0].ID())
		})
	}
}

func TestFamily(t *testing.T) {
	types := catalogue(t, map[string]tenancyv1alpha1.WorkspaceTypeSpec{
		"root:org:deep": {Terminator: true},
		"root:org:base": {Extend: tenancyv1alpha1.WorkspaceTypeExtension{With: refs("deep")}, Initializer: true, Terminator: true, AdditionalWorkspaceLabels: map[string]string{"kind": "base", "tier": "1"}},
		"root:org:big":  {Extend: tenancyv1alpha1.WorkspaceTypeExtension{With: refs("base", "base")}, Terminator: true, Initializer: true, AdditionalWorkspaceLabels: map[string]string{"tier": "2"}},
	})
	big, ok := types.resolve(logicalcluster.NewPath("root:org"), ref("big"))
	require.True(t, ok)
	all, err := types.closure(big)
	require.NoError(t, err)
	require.Len(t, all, 3, "each type must be included once")
	require.Equal(t, []corev1alpha1.LogicalClusterInitializer{"org:base", "org:big"}, all.Initializers())
	require.Equal(t, []corev1alpha1.LogicalClusterTerminator{"org:base", "org:deep", "org:big"}, all.Terminators())
	require.Empty(t, Family(nil).Terminators())
	require.Equal(t, map[string]string{"kind": "base", "tier": "2"}, all.Labels(), "labels of a type must override those of extended types")
}

// TestSystemBindings: a new logical cluster has the system bindings of its type in an annotation, and no initializer
// waits for them.
func TestSystemBindings(t *testing.T) {
	binds := func(exports ...string) (refs []tenancyv1alpha1.APIExportReference) {
		for _, name := range exports {
			refs = append(refs, tenancyv1alpha1.APIExportReference{Path: "root", Export: name})
		}
		return refs
	}
	types := catalogue(t, map[string]tenancyv1alpha1.WorkspaceTypeSpec{
		"root:org:bare":  {},
		"root:org:some":  {DefaultAPIBindings: binds("topology.kcp.io")},
		"root:org:mixed": {DefaultAPIBindings: binds("widgets"), Extend: tenancyv1alpha1.WorkspaceTypeExtension{With: refs("root:universal")}},
	})
	for name, want := range map[string]string{"bare": "true", "some": "topology.kcp.io", "mixed": "tenancy.kcp.io,topology.kcp.io"} {
		first, ok := types.resolve(logicalcluster.NewPath("root:org"), ref(name))
		require.True(t, ok)
		all, err := types.closure(first)
		require.NoError(t, err)
		require.Equal(t, want, all.SystemBindings(types))
		if name == "mixed" {
			require.Equal(t, []corev1alpha1.LogicalClusterInitializer{tenancyv1alpha1.WorkspaceAPIBindingsInitializer}, all.Initializers())
		} else {
			require.Empty(t, all.Initializers())
		}
		universal, _ := types(core.RootCluster.Path(), "universal")
		version := universal.Annotations[ContentVersionAnnotation]
		universal.Annotations[ContentVersionAnnotation] = "1"
		require.Empty(t, all.SystemBindings(types), "system bindings must be empty if root has an older content version")
		universal.Annotations[ContentVersionAnnotation] = version
	}
}

// TestFamilyIsBounded extends types up to the limit, and beyond.
func TestFamilyIsBounded(t *testing.T) {
	chain := map[string]tenancyv1alpha1.WorkspaceTypeSpec{}
	name := func(n int) string { return fmt.Sprintf("root:org:t%d", n) }
	for n := range maxFamily + 1 {
		chain[name(n)] = tenancyv1alpha1.WorkspaceTypeSpec{Extend: tenancyv1alpha1.WorkspaceTypeExtension{With: refs(fmt.Sprintf("t%d", n+1))}}
	}
	chain[name(maxFamily)] = tenancyv1alpha1.WorkspaceTypeSpec{}
	types := catalogue(t, chain)
	of := func(n int) (Family, error) {
		first, ok := types.resolve(logicalcluster.NewPath("root:org"), ref(fmt.Sprintf("t%d", n)))
		require.True(t, ok)
		return types.closure(first)
	}
	all, err := of(1)
	require.NoError(t, err)
	require.Len(t, all, maxFamily)
	_, err = of(0)
	require.EqualError(t, err, "workspace type root:org:t0 extends 32 types or more, directly or not: let it extend fewer than 32")
}
