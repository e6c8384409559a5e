package defaults

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

// state is what the default bindings of a logical cluster have come to.
type state struct {
	// invalid is why it is not known what the type binds.
	invalid error
	// failed are those that could not be made, with what to do.
	failed []string
	// waiting are the names of those that are not bound yet.
	waiting []string
}

// waits reports whether the logical cluster waits for default bindings to be initialized.
func waits(lc *corev1alpha1.LogicalCluster) bool {
	return slices.Contains(lc.Status.Initializers, tenancyv1alpha1.WorkspaceAPIBindingsInitializer)
}

// tell returns the LogicalCluster with what has become of its default bindings, in the
// condition of that kind.
func (s *state) tell(lc *corev1alpha1.LogicalCluster, kind conditionsv1alpha1.ConditionType) *corev1alpha1.LogicalCluster {
	lc = lc.DeepCopy()
	switch {
	case s.invalid != nil:
		conditions.MarkFalse(lc, kind, tenancyv1alpha1.WorkspaceInitializedWorkspaceTypeInvalid, conditionsv1alpha1.ConditionSeverityError,
			"%v: create it, or mend the type that names it. It is looked at again when it changes", s.invalid)
	case len(s.failed) > 0:
		conditions.MarkFalse(lc, kind, tenancyv1alpha1.WorkspaceInitializedAPIBindingErrors, conditionsv1alpha1.ConditionSeverityError,
			"%s", strings.Join(s.failed, "; "))
	case len(s.waiting) > 0:
		conditions.MarkFalse(lc, kind, tenancyv1alpha1.WorkspaceInitializedWaitingOnAPIBindings, conditionsv1alpha1.ConditionSeverityInfo,
			"Not bound yet: APIBinding %s. The conditions of these say what they wait for", strings.Join(s.waiting, ", "))
	default:
		conditions.MarkTrue(lc, kind)
	}
	return lc
}

// complete reports whether all that is wanted is bound.
func (s *state) complete() bool { return s.invalid == nil && len(s.failed)+len(s.waiting) == 0 }

// initialized returns the LogicalCluster without the initializer for default bindings.
func initialized(lc *corev1alpha1.LogicalCluster) *corev1alpha1.LogicalCluster {
	lc = lc.DeepCopy()
	lc.Status.Initializers = slices.DeleteFunc(lc.Status.Initializers, func(i corev1alpha1.LogicalClusterInitializer) bool {
		return i == tenancyv1alpha1.WorkspaceAPIBindingsInitializer
	})
	return lc
}

// bindingFor returns the binding that a logical cluster has to an export by default: with
// all its claims accepted.
func bindingFor(cluster logicalcluster.Name, want tenancy.DefaultBinding, export *apisv1alpha2.APIExport) *apisv1alpha2.APIBinding {
	return &apisv1alpha2.APIBinding{
		ObjectMeta: metav1.ObjectMeta{Name: apis.DefaultBindingName(cluster, want.Path, want.Export)},
		Spec: apisv1alpha2.APIBindingSpec{
			Reference:        apisv1alpha2.BindingReference{Export: &apisv1alpha2.ExportBindingReference{Path: want.Path, Name: want.Export}},
			PermissionClaims: accepted(export.Spec.PermissionClaims),
		},
	}
}

// accepted returns claims as they are accepted: for what their export proposes, or all.
func accepted(claims []apisv1alpha2.PermissionClaim) []apisv1alpha2.AcceptablePermissionClaim {
	all := make([]apisv1alpha2.AcceptablePermissionClaim, 0, len(claims))
	for i := range claims {
		selector := apisv1alpha2.PermissionClaimSelector{MatchAll: true}
		if claims[i].DefaultSelector != nil {
			selector = *claims[i].DefaultSelector.DeepCopy()
		}
		all = append(all, apisv1alpha2.AcceptablePermissionClaim{
			ScopedPermissionClaim: apisv1alpha2.ScopedPermissionClaim{PermissionClaim: *claims[i].DeepCopy(), Selector: selector},
			State:                 apisv1alpha2.ClaimAccepted,
		})
	}
	return all
}

// maintained returns an existing binding as its type wants it: with the claims that the
// export makes now, accepted. The finalizers of known need not be there.
func maintained(known *apisv1alpha2.APIBinding, export *apisv1alpha2.APIExport) (updated *apisv1alpha2.APIBinding, changed bool) {
	claims := accepted(export.Spec.PermissionClaims)
	if equality.Semantic.DeepEqual(known.Spec.PermissionClaims, claims) {
		return known, false
	}
	updated = known.DeepCopy()
	updated.Spec.PermissionClaims = claims
	return updated, true
}

// another is what to do about a binding that has the name of a default one.
func another(name string, want tenancy.DefaultBinding) string {
	return fmt.Sprintf("APIBinding %s is to another APIExport than %s:%s, which the workspace type names: delete it", name, want.Path, want.Export)
}

// missing is what to do about an export that does not exist.
func missing(want tenancy.DefaultBinding) string {
	return fmt.Sprintf("APIExport %s:%s does not exist: create it, and this goes on, or take it out of spec.defaultAPIBindings of the workspace type", want.Path, want.Export)
}

// isSystems reports whether a binding is to what root exports of the system.
func isSystems(binding *apisv1alpha2.APIBinding) bool {
	ref := binding.Spec.Reference.Export
	return ref != nil && tenancy.DefaultBinding{Path: ref.Path, Export: ref.Name}.IsSystem()
}
