package tenancy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/kcp-dev/sdk/apis/tenancy/initialization"
	"github.com/kcp-dev/sdk/apis/tenancy/termination"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"

	"github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/request"
)

// maxFamily limits the types that a type extends, directly or indirectly, including itself. All of them are looked up
// for each Workspace and its parent.
//
//reference:limit object | WorkspaceType: types that it extends, directly and indirectly, with itself | 403
const maxFamily = 32

// universal is the default type of Workspaces.
var universal = tenancyv1alpha1.WorkspaceTypeReference{Name: "universal", Path: "root"}

// ContentVersionAnnotation is the version of content that Shardplane installs: a number that increases with
// each change.
//
//reference:metadata WorkspaceTypes and APIExports of Shardplane | bootstrap controller
const ContentVersionAnnotation = "internal.shardplane.io/bootstrap-version"

// bindingVersion is the first version of the type universal that binds the system APIs.
const bindingVersion = 2

// bindsSystem reports whether root's type universal specifies which system APIs workspaces bind. Before that, all
// workspaces have all system APIs.
func (lookup TypeLookup) bindsSystem() bool {
	wt, ok := lookup(logicalcluster.NewPath(universal.Path), universal.Name)
	if !ok {
		return false
	}
	version, err := strconv.Atoi(wt.Annotations[ContentVersionAnnotation])
	return err == nil && version >= bindingVersion
}

// TypeLookup returns the WorkspaceType with this name in the logical cluster with this canonical path.
type TypeLookup func(path logicalcluster.Path, name tenancyv1alpha1.WorkspaceTypeName) (*tenancyv1alpha1.WorkspaceType, bool)

// WorkspaceType is a WorkspaceType and the path of its logical cluster.
type WorkspaceType struct {
	*tenancyv1alpha1.WorkspaceType
	Path logicalcluster.Path
}

// ID returns the path and name of the type, with which types refer to each other.
func (t WorkspaceType) ID() string { return t.Path.Join(t.Name).String() }

// resolve finds the type of a reference: without a path, the closest one between from and the root.
func (lookup TypeLookup) resolve(from logicalcluster.Path, ref tenancyv1alpha1.WorkspaceTypeReference) (WorkspaceType, bool) {
	if ref.Path != "" {
		path := logicalcluster.NewPath(ref.Path)
		wt, ok := lookup(path, ref.Name)
		return WorkspaceType{wt, path}, ok
	}
	for path := from; !path.Empty(); {
		if wt, ok := lookup(path, ref.Name); ok {
			return WorkspaceType{wt, path}, true
		}
		parent, _ := path.Parent()
		if parent.Equal(path) {
			break // system:… is its own parent
		}
		path = parent
	}
	if root := core.RootCluster.Path(); !from.HasPrefix(root) && !request.IsSystem(logicalcluster.Name(from.String())) {
		wt, ok := lookup(root, ref.Name) // root is not an ancestor of home workspaces
		return WorkspaceType{wt, root}, ok
	}
	return WorkspaceType{}, false
}

// closure returns the type and all types that it extends, directly or indirectly.
func (lookup TypeLookup) closure(t WorkspaceType) (Family, error) {
	var all Family
	seen := map[string]bool{}
	var visit func(t WorkspaceType, above []string) error
	visit = func(t WorkspaceType, above []string) error {
		if slices.Contains(above, t.ID()) {
			return fmt.Errorf("workspace type %s extends itself: %s", t.ID(), strings.Join(append(above, t.ID()), " -> "))
		}
		if seen[t.ID()] {
			return nil
		}
		if len(all) == maxFamily {
			return fmt.Errorf("workspace type %s extends %d types or more, directly or not: let it extend fewer than %d", all[0].ID(), maxFamily, maxFamily)
		}
		seen[t.ID()] = true
		all = append(all, t)
		for _, ref := range t.Spec.Extend.With {
			extended, ok := lookup.resolve(t.Path, ref)
			if !ok {
				return fmt.Errorf("workspace type %s extends %s, which does not exist", t.ID(), ref)
			}
			if err := visit(extended, append(slices.Clone(above), t.ID())); err != nil {
				return err
			}
		}
		return nil
	}
	if err := visit(t, nil); err != nil {
		return nil, err
	}
	return all, nil
}

// Family is a type, followed by all types that it extends, directly or indirectly, without duplicates.
type Family []WorkspaceType

// IsUniversal reports whether the type is root:universal or extends it.
func (f Family) IsUniversal() bool {
	id := logicalcluster.NewPath(universal.Path).Join(string(universal.Name)).String()
	return slices.ContainsFunc(f, func(t WorkspaceType) bool { return t.ID() == id })
}

// Allowed returns the type of a Workspace in the logical cluster of parent. This is the type in its spec, otherwise the
// default of its parent's type, otherwise universal. It fails if a type does not exist, or if the type and the parent's
// type do not allow each other. If the type exists, it is returned with the error.
func (lookup TypeLookup) Allowed(ws *tenancyv1alpha1.Workspace, parent *corev1alpha1.LogicalCluster) (Family, error) {
	types, above, err := lookup.find(ws, parent)
	if err != nil || len(above) == 0 {
		return types, err
	}
	return types, allowed(types, above)
}

func (lookup TypeLookup) find(ws *tenancyv1alpha1.Workspace, parent *corev1alpha1.LogicalCluster) (types, above Family, err error) {
	from := PathOf(parent)
	// If the parent's type cannot be read from this shard, it does not limit anything.
	if above, err = lookup.Of(parent); err != nil && !errors.Is(err, ErrNoType) {
		return nil, nil, err
	}
	ref, seenFrom := universal, from
	switch {
	case ws.Spec.Type != nil:
		ref = *ws.Spec.Type
	case len(above) > 0 && above[0].Spec.DefaultChildWorkspaceType != nil:
		ref, seenFrom = *above[0].Spec.DefaultChildWorkspaceType, above[0].Path
	}
	t, ok := lookup.resolve(seenFrom, ref)
	if !ok {
		return nil, above, fmt.Errorf("workspace type %s does not exist", ref)
	}
	if types, err = lookup.closure(t); err != nil {
		return Family{t}, above, fmt.Errorf("%w: %w", ErrExtends, err)
	}
	for _, t := range types {
		if t.DeletionTimestamp != nil {
			return types, above, fmt.Errorf("workspace type %s is being deleted", t.ID())
		}
	}
	return types, above, err
}

// ErrExtends is wrapped by the error of TypeLookup.Allowed if the type exists, but some types that it extends do not.
var ErrExtends = errors.New("cannot determine the extended types")

// ErrNoType is wrapped by the error of TypeLookup.Of if the type does not exist, or cannot be read from this shard.
var ErrNoType = errors.New("does not exist")

// Of returns the type of a logical cluster, with the types that it extends, or nothing if it has no type.
func (lookup TypeLookup) Of(lc *corev1alpha1.LogicalCluster) (Family, error) {
	t, err := lookup.Itself(lc)
	if err != nil || t.WorkspaceType == nil {
		return nil, err
	}
	return lookup.closure(t)
}

// Itself is Of without the extended types.
func (lookup TypeLookup) Itself(lc *corev1alpha1.LogicalCluster) (WorkspaceType, error) {
	path, name := logicalcluster.NewPath(lc.Annotations[tenancyv1alpha1.LogicalClusterTypeAnnotationKey]).Split()
	if name == "" {
		return WorkspaceType{}, nil
	}
	t, ok := lookup.resolve(PathOf(lc), tenancyv1alpha1.WorkspaceTypeReference{
		Path: path.String(), Name: tenancyv1alpha1.WorkspaceTypeName(name),
	})
	if !ok {
		return WorkspaceType{}, fmt.Errorf("workspace type %s %w", path.Join(name), ErrNoType)
	}
	return t, nil
}

// allowed returns an error if the types of child and parent do not allow each other.
func allowed(child, parent Family) error {
	for _, t := range parent {
		if !permits(t, t.Spec.LimitAllowedChildren, child) {
			return fmt.Errorf("workspace type %s does not allow children of type %s", t.ID(), child[0].ID())
		}
	}
	for _, t := range child {
		if !permits(t, t.Spec.LimitAllowedParents, parent) {
			return fmt.Errorf("workspace type %s does not allow parents of type %s", t.ID(), parent[0].ID())
		}
	}
	return nil
}

func permits(t WorkspaceType, selector *tenancyv1alpha1.WorkspaceTypeSelector, others Family) bool {
	switch {
	case selector == nil:
		return true
	case selector.None:
		return false
	case len(selector.Types) == 0:
		return true
	}
	return slices.ContainsFunc(selector.Types, func(ref tenancyv1alpha1.WorkspaceTypeReference) bool {
		path := t.Path
		if ref.Path != "" {
			path = logicalcluster.NewPath(ref.Path)
		}
		id := path.Join(string(ref.Name)).String()
		return slices.ContainsFunc(others, func(other WorkspaceType) bool { return other.ID() == id })
	})
}

// DefaultBinding is an export that is bound in each logical cluster of a type.
type DefaultBinding struct {
	// Path is the path of the export's logical cluster, and Export its name.
	Path, Export string
	// Maintain is set if existing logical clusters get the binding, too, and if it follows the claims of the export.
	Maintain bool
}

// DefaultBindings returns the bindings of all types, without duplicates.
func (f Family) DefaultBindings() []DefaultBinding {
	var all []DefaultBinding
	for _, t := range f {
		lifecycle := t.Spec.DefaultAPIBindingLifecycle
		maintain := lifecycle != nil && *lifecycle == tenancyv1alpha1.APIBindingLifecycleModeMaintain
		for _, ref := range t.Spec.DefaultAPIBindings {
			path := cmp.Or(ref.Path, logicalcluster.From(t.WorkspaceType).String())
			i := slices.IndexFunc(all, func(b DefaultBinding) bool { return b.Path == path && b.Export == ref.Export })
			if i < 0 {
				i = len(all)
				all = append(all, DefaultBinding{Path: path, Export: ref.Export})
			}
			all[i].Maintain = all[i].Maintain || maintain
		}
	}
	return all
}

// IsSystem reports whether the binding is to one of root's exports of system APIs. Initialization does not wait for
// these, because a logical cluster has all system APIs until they are bound.
func (b DefaultBinding) IsSystem() bool {
	return b.Path == core.RootCluster.String() && config.IsRootExport(b.Export)
}

// SystemBindings returns the value of SystemBindingsAnnotation for a new logical cluster. It is empty until root's
// types specify which system APIs logical clusters bind.
func (f Family) SystemBindings(lookup TypeLookup) string {
	if !lookup.bindsSystem() {
		return ""
	}
	var names []string
	for _, b := range f.DefaultBindings() {
		if b.IsSystem() {
			names = append(names, b.Export)
		}
	}
	return cmp.Or(strings.Join(names, ","), SystemBound)
}

// Initializers returns the initializers of all types in kcp's order: extended types first, and the servers' own
// initializer, which creates the default bindings, last.
func (f Family) Initializers() []corev1alpha1.LogicalClusterInitializer {
	var all []corev1alpha1.LogicalClusterInitializer
	for _, t := range f.extendedFirst() {
		if t.Spec.Initializer {
			all = append(all, initialization.InitializerForType(t.WorkspaceType))
		}
	}
	if slices.ContainsFunc(f.DefaultBindings(), func(b DefaultBinding) bool { return !b.IsSystem() }) {
		all = append(all, tenancyv1alpha1.WorkspaceAPIBindingsInitializer)
	}
	return all
}

// Terminators returns the terminators of all types. Extended types come first, as in kcp.
func (f Family) Terminators() []corev1alpha1.LogicalClusterTerminator {
	var all []corev1alpha1.LogicalClusterTerminator
	for _, t := range f.extendedFirst() {
		if t.Spec.Terminator {
			all = append(all, termination.TerminatorForType(t.WorkspaceType))
		}
	}
	return all
}

// extendedFirst returns the types in kcp's order of initializers and terminators.
func (f Family) extendedFirst() Family {
	if len(f) == 0 {
		return nil
	}
	return append(slices.Clone(f[1:]), f[0])
}

// Labels returns the labels of Workspaces of the type. The type itself takes precedence over extended types.
func (f Family) Labels() map[string]string {
	all := map[string]string{}
	for _, t := range slices.Backward(f) {
		maps.Copy(all, t.Spec.AdditionalWorkspaceLabels)
	}
	return all
}
