package aggregation

import (
	"cmp"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// aggregate returns role with the rules of those of all that it selects, in the
// order of their names, each once.
func aggregate(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) *rbacv1.ClusterRole {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b *rbacv1.ClusterRole) int { return cmp.Compare(a.Name, b.Name) })
	rules := []rbacv1.PolicyRule{}
	known := map[string]bool{}
	for _, other := range all {
		if other.Name == role.Name || !selects(role, other) {
			continue
		}
		for _, rule := range other.Rules {
			if text := rule.String(); !known[text] {
				known[text] = true
				rules = append(rules, *rule.DeepCopy())
			}
		}
	}
	if equality.Semantic.DeepEqual(role.Rules, rules) {
		return role
	}
	updated := role.DeepCopy()
	updated.Rules = rules
	return updated
}

// selects reports whether role aggregates other.
func selects(role, other *rbacv1.ClusterRole) bool {
	if role.AggregationRule == nil {
		return false
	}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err == nil && selector.Matches(labels.Set(other.Labels)) {
			return true
		}
	}
	return false
}
