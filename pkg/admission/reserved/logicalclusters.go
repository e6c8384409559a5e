package reserved

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	validation "k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

var (
	errNotMade = errors.New("LogicalClusters are created by the system: create a Workspace")
	// A finalizer would prevent the owner of the Workspace from deleting it.
	errFinalizer = errors.New("finalizers delay the deletion of the Workspace that owns the logical cluster: only administrators, the system, and providers with an accepted permission claim, through the virtual workspace of their APIExport, may add them")
	errOwned     = errors.New("a logical cluster is deleted with the Workspace that owns it: delete the Workspace (spec.directlyDeletable is not set)")
)

var (
	logicalClusterFields = [][]string{{"spec"}}
	// fixedFields are the fields that administrators must not set either.
	fixedFields = [][]string{{"spec", "createdBy"}, {"spec", "owner"}, {"spec", "initializers"}, {"spec", "terminators"}}
)

const scheduling, initializing, ready, inactive, unavailable, terminating = corev1alpha1.LogicalClusterPhaseScheduling, corev1alpha1.LogicalClusterPhaseInitializing,
	corev1alpha1.LogicalClusterPhaseReady, corev1alpha1.LogicalClusterPhaseInactive, corev1alpha1.LogicalClusterPhaseUnavailable, corev1alpha1.LogicalClusterPhaseTerminating

// moves are the phases that administrators may set, by current phase. Deletion sets the other phases.
var moves = map[corev1alpha1.LogicalClusterPhaseType][]corev1alpha1.LogicalClusterPhaseType{
	"":           {scheduling, initializing},
	scheduling:   {initializing},
	initializing: {ready},
	ready:        {inactive, unavailable},
	inactive:     {ready},
	unavailable:  {ready},
}

// makes reports whether a user may create LogicalClusters besides the system.
func makes(ctx context.Context, u user.Info) bool {
	return identity.MemberOf(ctx, u, request.GroupExternalLogicalClusterAdmin, request.GroupWorkspaceBootstrapper)
}

func checkLogicalCluster(ctx context.Context, a admission.Attributes, as privilege) error {
	if as > administrators && makes(ctx, a.GetUserInfo()) {
		as = administrators
	}
	switch {
	case a.GetSubresource() == "status" && removable(ctx) != "":
		return nil // Initialization checks it
	case a.GetOperation() == admission.Create:
		return admission.NewForbidden(a, errNotMade)
	case a.GetOperation() == admission.Delete:
		if direct, found := field(a.GetOldObject(), "spec", "directlyDeletable"); !found || direct != true {
			return admission.NewForbidden(a, errOwned)
		}
		return nil
	case a.GetSubresource() == "status" && as == administrators:
		return checkStatus(a)
	case a.GetSubresource() == "status":
		return unchangedStatus(a)
	case as == administrators:
		return unchanged(a, fixedFields)
	case addsFinalizer(a) && !claimed(ctx, a):
		return admission.NewForbidden(a, errFinalizer)
	default:
		return unchanged(a, logicalClusterFields)
	}
}

// claimed reports whether a write comes through the virtual workspace of an APIExport in another logical
// cluster, with an accepted permission claim for the object. Claims of exports in the same logical cluster do
// not count, because its administrators could accept them themselves.
func claimed(ctx context.Context, a admission.Attributes) bool {
	cluster, err := request.ClusterNameFrom(ctx)
	through, _ := request.ThroughFrom(ctx)
	set := claims.From(ctx)
	return err == nil && set != nil && set.Resource() == logicalClusters && through.Mount == request.APIExports && through.Provider != cluster && set.Selection(cluster).Matches(a.GetOldObject())
}

func addsFinalizer(a admission.Attributes) bool {
	now, _ := metadataOf(a.GetObject())
	before, known := metadataOf(a.GetOldObject())
	return now != nil && slices.ContainsFunc(now.GetFinalizers(), func(f string) bool {
		return !known || !slices.Contains(before.GetFinalizers(), f)
	})
}

// checkStatus rejects changes of the status by administrators that are not transitions of the lifecycle.
func checkStatus(a admission.Attributes) error {
	before, now := phaseOf(a.GetOldObject()), phaseOf(a.GetObject())
	if before != now && !slices.Contains(moves[before], now) {
		return admission.NewForbidden(a, fmt.Errorf("status.phase cannot change from %s to %s: the next phases are %v", before, now, moves[before]))
	}
	for _, list := range []struct {
		name string
		in   corev1alpha1.LogicalClusterPhaseType
	}{{"initializers", initializing}, {"terminators", terminating}} {
		had, has := listOf(a.GetOldObject(), "status", list.name), listOf(a.GetObject(), "status", list.name)
		if before != initializing && now == initializing && list.in == initializing {
			if wanted := listOf(a.GetObject(), "spec", list.name); !slices.Equal(has, wanted) {
				return admission.NewForbidden(a, fmt.Errorf("status.initializers must initially equal spec.initializers: %v", wanted))
			}
			continue
		}
		removed := len(has) < len(had) && !slices.ContainsFunc(has, func(id string) bool { return !slices.Contains(had, id) })
		if !slices.Equal(had, has) && (before != list.in || !removed) {
			return admission.NewForbidden(a, fmt.Errorf("entries of status.%s can only be removed, and only while status.phase is %s", list.name, list.in))
		}
		if len(has) > 0 && before == list.in && now != before {
			return admission.NewForbidden(a, fmt.Errorf("status.phase must be %s until status.%s is empty", before, list.name))
		}
	}
	return unchanged(a, [][]string{{"status", "URL"}})
}

func phaseOf(obj runtime.Object) corev1alpha1.LogicalClusterPhaseType {
	phase, _ := field(obj, "status", "phase")
	text, _ := phase.(string)
	return corev1alpha1.LogicalClusterPhaseType(text)
}

func listOf(obj runtime.Object, path ...string) []string {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	list, _, _ := unstructured.NestedStringSlice(u.Object, path...)
	return list
}

// Initialization is the admission plugin for updates of LogicalClusters through the virtual workspaces of
// initializers and terminators. They may only remove themselves from the status and set conditions.
type Initialization struct{ *admission.Handler }

var _ admission.ValidationInterface = Initialization{}

// NewInitialization returns the plugin.
func NewInitialization() Initialization {
	return Initialization{admission.NewHandler(admission.Update)}
}

// removable returns the field of the status of a LogicalCluster that a request through the virtual workspace of
// an initializer or terminator may change, or "" for other requests.
func removable(ctx context.Context) string {
	through, _ := request.ThroughFrom(ctx)
	switch through.Mount {
	case request.InitializingWorkspaces:
		return "initializers"
	case request.TerminatingWorkspaces:
		return "terminators"
	default:
		return ""
	}
}

// Validate implements admission.ValidationInterface.
func (Initialization) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	list := removable(ctx)
	if list == "" || a.GetResource().GroupResource() != logicalClusters {
		return nil
	}
	through, _ := request.ThroughFrom(ctx)
	own := through.Provider.Path().Join(through.VirtualWorkspace).String()
	before, after := statusOf(a.GetOldObject()), statusOf(a.GetObject())
	waitedFor, _, _ := unstructured.NestedStringSlice(before, list)
	waitsFor, _, _ := unstructured.NestedStringSlice(after, list)
	without := slices.DeleteFunc(slices.Clone(waitedFor), func(id string) bool { return id == own })
	path := validation.NewPath("status")
	var errs validation.ErrorList
	if !slices.Equal(waitsFor, waitedFor) && !slices.Equal(waitsFor, without) {
		errs = append(errs, validation.Invalid(path.Child(list), waitsFor, fmt.Sprintf("only %s may be removed through this virtual workspace", own)))
	}
	for _, status := range []map[string]any{before, after} {
		delete(status, list)
		delete(status, "conditions")
	}
	if !equality.Semantic.DeepEqual(before, after) {
		errs = append(errs, validation.Forbidden(path, fmt.Sprintf("only %s and conditions may be changed through this virtual workspace", list)))
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(corev1alpha1.Kind("LogicalCluster"), a.GetName(), errs)
	}
	return nil
}

func statusOf(obj runtime.Object) map[string]any {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	status, _, _ := unstructured.NestedMap(u.Object, "status")
	return status
}
