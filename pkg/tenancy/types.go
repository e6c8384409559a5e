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

// maxFamily is how many types a type is, with all that it extends, directly or
// not. All of them are looked up for each Workspace and its parent.
const maxFamily = 32

// universal is the type of a Workspace where nothing says another one.
var universal = tenancyv1alpha1.WorkspaceTypeReference{Name: "universal", Path: "root"}

// ContentVersionAnnotation is, on a WorkspaceType or APIExport that Shardplane comes with, the
// version of its content: a number that rises with each change.
const ContentVersionAnnotation = "internal.shardplane.io/bootstrap-version"

// bindingVersion is the version of the type universal since which it binds what all
// workspaces had without.
const bindingVersion = 2

// bindsSystem reports whether root's type universal says which of the system's kinds
// workspaces bind. As long as it does not, nobody else does, and workspaces have all of them.
func (lookup TypeLookup) bindsSystem() bool {
	wt, ok := lookup(logicalcluster.NewPath(universal.Path), universal.Name)
	if !ok {
		return false
	}
	version, err := strconv.Atoi(wt.Annotations[ContentVersionAnnotation])
	return err == nil && version >= bindingVersion
}

// TypeLookup returns the WorkspaceType of that name in the logical cluster with
// that canonical path.
type TypeLookup func(path logicalcluster.Path, name tenancyv1alpha1.WorkspaceTypeName) (*tenancyv1alpha1.WorkspaceType, bool)

// WorkspaceType is a WorkspaceType and the path of the logical cluster where it
// was found.
type WorkspaceType struct {
	*tenancyv1alpha1.WorkspaceType
	Path logicalcluster.Path
}

// ID returns path and name of the type, by which types refer to each other.
func (t WorkspaceType) ID() string { return t.Path.Join(t.Name).String() }

// resolve finds the type that ref means, seen from the logical cluster at from:
// without a path, the closest one on the way up to the root.
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
			break // system:… has no parent but itself
		}
		path = parent
	}
	if root := core.RootCluster.Path(); !from.HasPrefix(root) && !request.IsSystem(logicalcluster.Name(from.String())) {
		wt, ok := lookup(root, ref.Name) // paths of homes do not lead there
		return WorkspaceType{wt, root}, ok
	}
	return WorkspaceType{}, false
}

// closure returns the type and all types that it extends, directly or not.
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

// Family is a type, and then all that it extends, directly or not, each once.
type Family []WorkspaceType

// IsUniversal reports whether the type is root:universal or extends it.
func (f Family) IsUniversal() bool {
	id := logicalcluster.NewPath(universal.Path).Join(string(universal.Name)).String()
	return slices.ContainsFunc(f, func(t WorkspaceType) bool { return t.ID() == id })
}

// Allowed returns the type that a Workspace in the logical cluster of parent has or
// will get: the one in its spec, else the default of its parent's type, else
// universal. It fails if the type, or one that it extends, does not exist, and if the
// type and that of the parent do not allow each other; a type that exists is
// returned then, too.
func (lookup TypeLookup) Allowed(ws *tenancyv1alpha1.Workspace, parent *corev1alpha1.LogicalCluster) (Family, error) {
	types, above, err := lookup.find(ws, parent)
	if err != nil || len(above) == 0 {
		return types, err
	}
	return types, allowed(types, above)
}

// find returns the type of the parent, too.
func (lookup TypeLookup) find(ws *tenancyv1alpha1.Workspace, parent *corev1alpha1.LogicalCluster) (types, above Family, err error) {
	from := PathOf(parent)
	// Where the type of the parent cannot be read from here, it limits nothing.
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

// ErrExtends is wrapped by the error of TypeLookup.Allowed if the type exists, but what it
// extends does not, or not all of it.
var ErrExtends = errors.New("what the type extends cannot be found out")

// ErrNoType is wrapped by the error of TypeLookup.Of if the type does not exist, or
// cannot be read from here.
var ErrNoType = errors.New("it does not exist")

// Of returns the type of a logical cluster, with what it extends. It is empty where there
// is none. It fails if one of these types does not exist.
func (lookup TypeLookup) Of(lc *corev1alpha1.LogicalCluster) (Family, error) {
	t, err := lookup.Itself(lc)
	if err != nil || t.WorkspaceType == nil {
		return nil, err
	}
	return lookup.closure(t)
}

// Itself is Of without what the type extends.
func (lookup TypeLookup) Itself(lc *corev1alpha1.LogicalCluster) (WorkspaceType, error) {
	path, name := logicalcluster.NewPath(lc.Annotations[tenancyv1alpha1.LogicalClusterTypeAnnotationKey]).Split()
	if name == "" {
		return WorkspaceType{}, nil
	}
	t, ok := lookup.resolve(PathOf(lc), tenancyv1alpha1.WorkspaceTypeReference{
		Path: path.String(), Name: tenancyv1alpha1.WorkspaceTypeName(name),
	})
	if !ok {
		return WorkspaceType{}, fmt.Errorf("workspace type %s: %w", path.Join(name), ErrNoType)
	}
	return t, nil
}

// allowed checks a child against its parent and a parent against its child.
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

// permits reports whether a selector of t matches others.
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
	// Path leads to the logical cluster of the export.
	Path string
	// Export is its name.
	Export string
	// Maintain says that it is bound in those that exist as well, and as the export wants
	// it.
	Maintain bool
}

// DefaultBindings returns those of the type and of what it extends, each once. It is
// maintained if one of these types says so.
func (f Family) DefaultBindings() []DefaultBinding {
	var all []DefaultBinding
	for _, t := range f {
		lifecycle := t.Spec.DefaultAPIBindingLifecycle
		maintain := lifecycle != nil && *lifecycle == tenancyv1alpha1.APIBindingLifecycleModeMaintain
		for _, ref := range t.Spec.DefaultAPIBindings {
			path := ref.Path
			if path == "" {
				path = logicalcluster.From(t.WorkspaceType).String()
			}
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

// IsSystem reports whether a binding is to what root exports of the system. Nobody waits for
// those: until they are there, a logical cluster has all of it.
func (b DefaultBinding) IsSystem() bool {
	return b.Path == core.RootCluster.String() && config.IsRootExport(b.Export)
}

// SystemBindings returns the value of SystemBindingsAnnotation of a new logical cluster. It is
// empty as long as the types, which are root's, do not say yet what logical clusters bind.
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

// Initializers returns those of the type and of what it extends, in the order of kcp: extended types
// come first, and the servers' own, which makes the default bindings, is the last.
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

// Terminators returns those of the type and of what it extends; extended types come first, as in kcp.
func (f Family) Terminators() []corev1alpha1.LogicalClusterTerminator {
	var all []corev1alpha1.LogicalClusterTerminator
	for _, t := range f.extendedFirst() {
		if t.Spec.Terminator {
			all = append(all, termination.TerminatorForType(t.WorkspaceType))
		}
	}
	return all
}

// extendedFirst returns the types in kcp's order of initializers and terminators: those that the type
// extends, and then the type.
func (f Family) extendedFirst() Family {
	if len(f) == 0 {
		return nil
	}
	return append(slices.Clone(f[1:]), f[0])
}

// Labels returns what Workspaces of the type are labelled with; the type itself
// wins over what it extends.
func (f Family) Labels() map[string]string {
	all := map[string]string{}
	for _, t := range slices.Backward(f) {
		maps.Copy(all, t.Spec.AdditionalWorkspaceLabels)
	}
	return all
}
