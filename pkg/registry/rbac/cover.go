package rbac

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
)

// maxComparisons limits the work of comparing rules. The comparison expands rules to every combination of group,
// resource, verb and name, which may not fit into memory for a single object of the permitted size.
const maxComparisons = 1 << 20

// combinations returns the number of rules after expansion, but at most maxComparisons+1.
func combinations(rules []rbacv1.PolicyRule) int {
	total := 0
	for _, rule := range rules {
		total = bounded(total + product(len(rule.APIGroups), len(rule.Resources), len(rule.Verbs), max(len(rule.ResourceNames), 1)))
		total = bounded(total + product(len(rule.NonResourceURLs), len(rule.Verbs)))
	}
	return total
}

func product(factors ...int) int {
	n := 1
	for _, factor := range factors {
		n = bounded(n * factor)
	}
	return n
}

func bounded(n int) int { return min(n, maxComparisons+1) }

// coversWhole reports whether each of rules is covered by a rule of own with wildcards only, as administrators have.
func coversWhole(own, rules []rbacv1.PolicyRule) bool {
	all := func(rule rbacv1.PolicyRule, lists ...[]string) bool {
		return slices.Contains(rule.Verbs, "*") && len(rule.ResourceNames) == 0 &&
			!slices.ContainsFunc(lists, func(list []string) bool { return !slices.Contains(list, "*") })
	}
	resources := slices.ContainsFunc(own, func(rule rbacv1.PolicyRule) bool { return all(rule, rule.APIGroups, rule.Resources) })
	paths := slices.ContainsFunc(own, func(rule rbacv1.PolicyRule) bool { return all(rule, rule.NonResourceURLs) })
	return !slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool {
		return len(rule.NonResourceURLs) > 0 && !paths || len(rule.Resources) > 0 && !resources
	})
}
