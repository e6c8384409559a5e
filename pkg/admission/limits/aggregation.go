package limits

import (
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
)

const (
	maxSelectors    = 64
	maxRequirements = 128
)

// validAggregation refuses more selectors of a ClusterRole, and more in them, than
// there may be, and were before: each is matched with the labels of all ClusterRoles of
// the logical cluster, whenever one of them changes.
func validAggregation(a admission.Attributes) error {
	selectors, requirements := aggregates(a.GetObject())
	hadSelectors, hadRequirements := aggregates(a.GetOldObject())
	const advice = "give the cluster roles that they select a label in common, and select that"
	switch {
	case selectors > maxSelectors && selectors > hadSelectors:
		return admission.NewForbidden(a, fmt.Errorf("aggregationRule.clusterRoleSelectors has %d entries and may have %d: "+advice, selectors, maxSelectors))
	case requirements > maxRequirements && requirements > hadRequirements:
		return admission.NewForbidden(a, fmt.Errorf("the selectors of aggregationRule have %d labels and values of expressions, and may have %d: "+advice, requirements, maxRequirements))
	default:
		return nil
	}
}

// aggregates returns how many selectors a ClusterRole has, and how many labels
// and values of expressions are in all of them; one without values counts as one.
func aggregates(obj runtime.Object) (selectors, requirements int) {
	role, ok := obj.(*rbacv1.ClusterRole)
	if !ok || role.AggregationRule == nil {
		return 0, 0
	}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector := &role.AggregationRule.ClusterRoleSelectors[i]
		requirements += len(selector.MatchLabels)
		for j := range selector.MatchExpressions {
			requirements += max(1, len(selector.MatchExpressions[j].Values))
		}
	}
	return len(role.AggregationRule.ClusterRoleSelectors), requirements
}
