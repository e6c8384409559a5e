package rbac

import (
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// describe formats rules for users. Rules that differ only in their verbs are combined.
func describe(rules []rbacv1.PolicyRule) []string {
	type group struct {
		rule  rbacv1.PolicyRule
		verbs []string
	}
	var groups []*group
	byText := map[string]*group{}
	for _, rule := range rules {
		verbs := rule.Verbs
		rule.Verbs = nil
		text := describeRule(rule)
		g := byText[text]
		if g == nil {
			g = &group{rule: rule}
			byText[text] = g
			groups = append(groups, g)
		}
		for _, verb := range verbs {
			if !slices.Contains(g.verbs, verb) {
				g.verbs = append(g.verbs, verb)
			}
		}
	}
	texts := make([]string, 0, len(groups))
	for _, g := range groups {
		g.rule.Verbs = g.verbs
		texts = append(texts, describeRule(g.rule))
	}
	slices.Sort(texts)
	return texts
}

func describeRule(rule rbacv1.PolicyRule) string {
	var parts []string
	for _, p := range []struct {
		name   string
		values []string
	}{
		{"APIGroups", rule.APIGroups},
		{"Resources", rule.Resources},
		{"NonResourceURLs", rule.NonResourceURLs},
		{"ResourceNames", rule.ResourceNames},
		{"Verbs", rule.Verbs},
	} {
		if len(p.values) > 0 {
			parts = append(parts, fmt.Sprintf("%s:%s", p.name, strings.ReplaceAll(fmt.Sprintf("%q", p.values), `" "`, `", "`)))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}
