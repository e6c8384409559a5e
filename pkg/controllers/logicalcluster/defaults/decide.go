package defaults

import (
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

type state struct {
	invalid error    // why the bindings of the type are unknown
	failed  []string // messages for bindings that could not be created
	waiting []string // names of bindings that are not bound yet
}

// waits reports whether the initialization of the logical cluster waits for default bindings.
func waits(lc *corev1alpha1.LogicalCluster) bool {
	return slices.Contains(lc.Status.Initializers, tenancyv1alpha1.WorkspaceAPIBindingsInitializer)
}

func (s *state) withCondition(lc *corev1alpha1.LogicalCluster, kind conditionsv1alpha1.ConditionType) *corev1alpha1.LogicalCluster {
	lc = lc.DeepCopy()
	switch {
	case s.invalid != nil:
		conditions.MarkFalse(lc, kind, tenancyv1alpha1.WorkspaceInitializedWorkspaceTypeInvalid, conditionsv1alpha1.ConditionSeverityError,
			"%v: create it, or fix the type that references it", s.invalid)
	case len(s.failed) > 0:
		conditions.MarkFalse(lc, kind, tenancyv1alpha1.WorkspaceInitializedAPIBindingErrors, conditionsv1alpha1.ConditionSeverityError,
			"%s", strings.Join(s.failed, "; "))
	case len(s.waiting) > 0:
		conditions.MarkFalse(lc, kind, tenancyv1alpha1.WorkspaceInitializedWaitingOnAPIBindings, conditionsv1alpha1.ConditionSeverityInfo,
			"Not bound yet: APIBinding %s. See their conditions", strings.Join(s.waiting, ", "))
	default:
		conditions.MarkTrue(lc, kind)
	}
	return lc
}

func (s *state) complete() bool { return s.invalid == nil && len(s.failed)+len(s.waiting) == 0 }

// bindingFor returns a default binding to an export, with all permission claims accepted.
func bindingFor(cluster logicalcluster.Name, want tenancy.DefaultBinding, export *apisv1alpha2.APIExport) *apisv1alpha2.APIBinding {
	return &apisv1alpha2.APIBinding{
		ObjectMeta: metav1.ObjectMeta{Name: apis.DefaultBindingName(cluster, want.Path, want.Export)},
		Spec: apisv1alpha2.APIBindingSpec{
			Reference:        apisv1alpha2.BindingReference{Export: &apisv1alpha2.ExportBindingReference{Path: want.Path, Name: want.Export}},
			PermissionClaims: accepted(export.Spec.PermissionClaims),
		},
	}
}

// accepted returns accepted claims, with the default selector of the export if there is one.
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
