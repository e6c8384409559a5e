package workspace

import (
	"maps"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/kcp-dev/sdk/apis/tenancy/initialization"
	"github.com/kcp-dev/sdk/apis/tenancy/termination"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
)

// universal is the type of a Workspace where nothing says another one.
var universal = tenancyv1alpha1.WorkspaceTypeReference{Name: "universal", Path: "root"}

// lookupType returns the WorkspaceType of that name in the logical cluster with
// that canonical path.
type lookupType func(path logicalcluster.Path, name tenancyv1alpha1.WorkspaceTypeName) (*tenancyv1alpha1.WorkspaceType, bool)

// resolvedType is a WorkspaceType and where it was found.
type resolvedType struct {
	*tenancyv1alpha1.WorkspaceType
	path logicalcluster.Path
}

// id returns path and name of the type, by which types refer to each other.
func (t resolvedType) id() string { return t.path.Join(t.Name).String() }

// resolve finds the type that ref means, seen from the logical cluster at from:
// without a path, the closest one on the way up to the root.
func (lookup lookupType) resolve(from logicalcluster.Path, ref tenancyv1alpha1.WorkspaceTypeReference) (resolvedType, bool) {
	if ref.Path != "" {
		path := logicalcluster.NewPath(ref.Path)
		wt, ok := lookup(path, ref.Name)
		return resolvedType{wt, path}, ok
	}
	for path := from; !path.Empty(); {
		if wt, ok := lookup(path, ref.Name); ok {
			return resolvedType{wt, path}, true
		}
		parent, _ := path.Parent()
		if parent.Equal(path) {
			break // system:… has no parent but itself
		}
		path = parent
	}
	return resolvedType{}, false
}

// closure returns the type and all types that it extends, directly or not.
func (lookup lookupType) closure(t resolvedType) ([]resolvedType, *problem) {
	var all []resolvedType
	seen := map[string]bool{}
	var visit func(t resolvedType, above []string) *problem
	visit = func(t resolvedType, above []string) *problem {
		if slices.Contains(above, t.id()) {
			return problemf(reasonTypeInvalid, "workspace type %s extends itself: %s", t.id(), strings.Join(append(above, t.id()), " -> "))
		}
		if seen[t.id()] {
			return nil
		}
		seen[t.id()] = true
		all = append(all, t)
		for _, ref := range t.Spec.Extend.With {
			extended, ok := lookup.resolve(t.path, ref)
			if !ok {
				return problemf(reasonTypeInvalid, "workspace type %s extends %s, which does not exist", t.id(), ref)
			}
			if p := visit(extended, append(slices.Clone(above), t.id())); p != nil {
				return p
			}
		}
		return nil
	}
	if p := visit(t, nil); p != nil {
		return nil, p
	}
	return all, nil
}

// family is a type with all that it extends.
type family []resolvedType

// typeOf returns the type of a Workspace, with what it extends: the one in its
// spec, else the default of its parent's type, else universal. It is a problem
// if the type does not exist, or if parent and child do not allow each other.
func (lookup lookupType) typeOf(ws *tenancyv1alpha1.Workspace, parent *corev1alpha1.LogicalCluster) (family, *problem) {
	types, above, p := lookup.find(ws, parent)
	if p != nil || len(above) == 0 {
		return types, p
	}
	return types, allowed(types, above)
}

// find is typeOf without asking whether parent and child allow each other. It
// returns the type of the parent, too.
func (lookup lookupType) find(ws *tenancyv1alpha1.Workspace, parent *corev1alpha1.LogicalCluster) (types, above family, p *problem) {
	from := pathOf(parent)
	if above, p = lookup.parentType(parent); p != nil {
		return nil, nil, p
	}
	ref, seenFrom := universal, from
	switch {
	case ws.Spec.Type != nil:
		ref = *ws.Spec.Type
	case len(above) > 0 && above[0].Spec.DefaultChildWorkspaceType != nil:
		ref, seenFrom = *above[0].Spec.DefaultChildWorkspaceType, above[0].path
	}
	t, ok := lookup.resolve(seenFrom, ref)
	if !ok {
		return nil, above, problemf(reasonTypeInvalid, "workspace type %s does not exist", ref)
	}
	types, p = lookup.closure(t)
	return types, above, p
}

// parentType returns the type of the parent, with what it extends. It is empty
// where the parent has none or where it cannot be read from here.
func (lookup lookupType) parentType(parent *corev1alpha1.LogicalCluster) (family, *problem) {
	path, name := logicalcluster.NewPath(parent.Annotations[typeAnnotation]).Split()
	if name == "" {
		return nil, nil
	}
	t, ok := lookup.resolve(pathOf(parent), tenancyv1alpha1.WorkspaceTypeReference{
		Path: path.String(), Name: tenancyv1alpha1.WorkspaceTypeName(name),
	})
	if !ok {
		return nil, nil
	}
	return lookup.closure(t)
}

// allowed checks a child against its parent and a parent against its child.
func allowed(child, parent family) *problem {
	for _, t := range parent {
		if !permits(t, t.Spec.LimitAllowedChildren, child) {
			return problemf(reasonTypeInvalid, "workspace type %s does not allow children of type %s", t.id(), child[0].id())
		}
	}
	for _, t := range child {
		if !permits(t, t.Spec.LimitAllowedParents, parent) {
			return problemf(reasonTypeInvalid, "workspace type %s does not allow parents of type %s", t.id(), parent[0].id())
		}
	}
	return nil
}

// permits tells whether a selector of t matches others.
func permits(t resolvedType, selector *tenancyv1alpha1.WorkspaceTypeSelector, others family) bool {
	switch {
	case selector == nil:
		return true
	case selector.None:
		return false
	case len(selector.Types) == 0:
		return true
	}
	return slices.ContainsFunc(selector.Types, func(ref tenancyv1alpha1.WorkspaceTypeReference) bool {
		path := t.path
		if ref.Path != "" {
			path = logicalcluster.NewPath(ref.Path)
		}
		id := path.Join(string(ref.Name)).String()
		return slices.ContainsFunc(others, func(other resolvedType) bool { return other.id() == id })
	})
}

// initializers returns those of the type and of what it extends.
func (f family) initializers() []corev1alpha1.LogicalClusterInitializer {
	var all []corev1alpha1.LogicalClusterInitializer
	for _, t := range f {
		if t.Spec.Initializer {
			all = append(all, initialization.InitializerForType(t.WorkspaceType))
		}
	}
	return all
}

// terminators returns those of the type and of what it extends.
func (f family) terminators() []corev1alpha1.LogicalClusterTerminator {
	var all []corev1alpha1.LogicalClusterTerminator
	for _, t := range f {
		if t.Spec.Terminator {
			all = append(all, termination.TerminatorForType(t.WorkspaceType))
		}
	}
	return all
}

// labels returns what Workspaces of the type are labelled with; the type itself
// wins over what it extends.
func (f family) labels() map[string]string {
	all := map[string]string{}
	for _, t := range slices.Backward(f) {
		maps.Copy(all, t.Spec.AdditionalWorkspaceLabels)
	}
	return all
}
