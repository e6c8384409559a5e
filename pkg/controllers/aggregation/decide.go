package aggregation

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// maxBytes is the maximum size of an aggregated role, and of its rules as JSON, which cache servers store. The request
// limit of etcd is 1.5 MiB.
//
//reference:limit object | aggregated ClusterRole: size of the rules | the role keeps its rules
const maxBytes = 1 << 20

var errTooLarge = errors.New("the rules are too large")

// aggregate returns role with the distinct rules of the roles that it selects, in the order of their names. It stops when
// ctx is done, because a tenant can have many roles and selectors.
func aggregate(ctx context.Context, role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) (*rbacv1.ClusterRole, error) {
	selected, err := selectedBy(ctx, role, all)
	if err != nil {
		return nil, err
	}
	rules := []rbacv1.PolicyRule{}
	known := map[string]bool{}
	bytes := 0
	for _, other := range selected {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("collecting rules: %w", err)
		}
		for _, rule := range other.Rules {
			text, err := json.Marshal(rule)
			if err != nil {
				return nil, fmt.Errorf("encoding a rule: %w", err)
			}
			if known[string(text)] {
				continue
			}
			known[string(text)] = true
			rules = append(rules, *rule.DeepCopy())
			if bytes += len(text); bytes > maxBytes {
				return nil, errTooLarge
			}
		}
	}
	if equality.Semantic.DeepEqual(role.Rules, rules) {
		return role, nil
	}
	updated := role.DeepCopy()
	updated.Rules = rules
	if updated.Size() > maxBytes {
		return nil, errTooLarge
	}
	return updated, nil
}

// selectedBy returns the other roles that role aggregates, in the order of their names.
func selectedBy(ctx context.Context, role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) ([]*rbacv1.ClusterRole, error) {
	var selectors []labels.Selector
	for i := range role.AggregationRule.ClusterRoleSelectors {
		if selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i]); err == nil {
			selectors = append(selectors, selector)
		}
	}
	var selected []*rbacv1.ClusterRole
	for _, other := range all {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("matching selectors: %w", err)
		}
		matches := func(selector labels.Selector) bool { return selector.Matches(labels.Set(other.Labels)) }
		if other.Name != role.Name && slices.ContainsFunc(selectors, matches) {
			selected = append(selected, other)
		}
	}
	slices.SortFunc(selected, func(a, b *rbacv1.ClusterRole) int { return cmp.Compare(a.Name, b.Name) })
	return selected, nil
}
