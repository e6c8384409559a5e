package reserved

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/admission/initialization"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/storage/claims"
)

var (
	errNotMade = errors.New("logical clusters are made by the system: create a Workspace")
	// A finalizer of a child would keep whoever owns the Workspace from deleting it.
	errFinalizer = errors.New("finalizers keep the Workspace that owns the logical cluster from being deleted: only administrators and the system may add any, and providers of APIs, through the view of an APIExport whose permission claim is accepted")
	errOwned     = errors.New("a logical cluster goes with the Workspace that owns it: delete that (spec.directlyDeletable is not set)")
)

var (
	// logicalClusterFields are the fields of a LogicalCluster that only the system
	// sets: all that say what it is.
	logicalClusterFields = [][]string{{"spec"}}
	// fixedFields are those of them that administrators do not set either: who it is for,
	// and what it waits for.
	fixedFields = [][]string{{"spec", "createdBy"}, {"spec", "owner"}, {"spec", "initializers"}, {"spec", "terminators"}}
)

const scheduling, initializing, ready, inactive, unavailable, terminating = corev1alpha1.LogicalClusterPhaseScheduling, corev1alpha1.LogicalClusterPhaseInitializing,
	corev1alpha1.LogicalClusterPhaseReady, corev1alpha1.LogicalClusterPhaseInactive, corev1alpha1.LogicalClusterPhaseUnavailable, corev1alpha1.LogicalClusterPhaseTerminating

// moves are the phases to which administrators may lead a LogicalCluster from each: none is
// back, and its end comes by its deletion.
var moves = map[corev1alpha1.LogicalClusterPhaseType][]corev1alpha1.LogicalClusterPhaseType{
	"":           {scheduling, initializing},
	scheduling:   {initializing},
	initializing: {ready},
	ready:        {inactive, unavailable},
	inactive:     {ready},
	unavailable:  {ready},
}

// makes reports whether a user makes LogicalClusters itself, beside the system.
func makes(ctx context.Context, u user.Info) bool {
	return identity.MemberOf(ctx, u, request.GroupExternalLogicalClusterAdmin, request.GroupWorkspaceBootstrapper)
}

func checkLogicalCluster(ctx context.Context, a admission.Attributes, as who) error {
	if as > administrators && makes(ctx, a.GetUserInfo()) {
		as = administrators
	}
	switch {
	case a.GetSubresource() == "status" && initialization.Field(ctx) != "":
		return nil // that plugin says what may change
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

// claimed reports whether a write comes through the view of another logical cluster's APIExport, by
// a permission claim that is accepted for the object. Who only administers the logical cluster can
// accept claims of its own exports as well, which therefore do not count.
func claimed(ctx context.Context, a admission.Attributes) bool {
	cluster, err := request.ClusterNameFrom(ctx)
	through, _ := request.ThroughFrom(ctx)
	set := claims.From(ctx)
	return err == nil && set != nil && set.Resource() == logicalClusters && through.Mount == request.APIExports && through.Provider != cluster && set.Selection(cluster).Matches(a.GetOldObject())
}

// addsFinalizer reports whether an update adds a finalizer.
func addsFinalizer(a admission.Attributes) bool {
	now, _ := metadataOf(a.GetObject())
	before, known := metadataOf(a.GetOldObject())
	return now != nil && slices.ContainsFunc(now.GetFinalizers(), func(f string) bool {
		return !known || !slices.Contains(before.GetFinalizers(), f)
	})
}

// checkStatus denies an administrator what would not be the life of a logical cluster.
func checkStatus(a admission.Attributes) error {
	before, now := phaseOf(a.GetOldObject()), phaseOf(a.GetObject())
	if before != now && !slices.Contains(moves[before], now) {
		return admission.NewForbidden(a, fmt.Errorf("status.phase cannot become %s: of %s it becomes one of %v", now, before, moves[before]))
	}
	for _, list := range []struct {
		name string
		in   corev1alpha1.LogicalClusterPhaseType
	}{{"initializers", initializing}, {"terminators", terminating}} {
		had, has := listOf(a.GetOldObject(), "status", list.name), listOf(a.GetObject(), "status", list.name)
		if before != initializing && now == initializing && list.in == initializing {
			if wanted := listOf(a.GetObject(), "spec", list.name); !slices.Equal(has, wanted) {
				return admission.NewForbidden(a, fmt.Errorf("status.initializers starts as spec.initializers: %v", wanted))
			}
			continue
		}
		removed := len(has) < len(had) && !slices.ContainsFunc(has, func(id string) bool { return !slices.Contains(had, id) })
		if !slices.Equal(had, has) && (before != list.in || !removed) {
			return admission.NewForbidden(a, fmt.Errorf("status.%s can only lose what is in it, while status.phase is %s", list.name, list.in))
		}
		if left := len(has) > 0; left && before == list.in && now != before {
			return admission.NewForbidden(a, fmt.Errorf("status.phase stays %s until status.%s is empty", before, list.name))
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
