package rbac

import (
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
)

const (
	// maxRules and maxRulesBytes limit the rules that are collected for a user or role, because the number of
	// rules is not limited. Decisions do not collect rules.
	maxRules      = 10_000
	maxRulesBytes = 4 << 20
)

// errManyRules reports that rules were omitted.
var errManyRules = fmt.Errorf("there are more than %d rules, or more than %d MiB: further rules are omitted", maxRules, maxRulesBytes>>20)

// collected contains rules up to the limits.
type collected struct {
	list  []rbacv1.PolicyRule
	bytes int
	// left is true if rules were omitted.
	left bool
}

// add adds a rule, and returns false if a limit is reached.
func (c *collected) add(rule *rbacv1.PolicyRule) bool {
	size := sizeOf(rule)
	if len(c.list) == maxRules || c.bytes+size > maxRulesBytes {
		c.left = true
		return false
	}
	c.bytes += size
	c.list = append(c.list, *rule)
	return true
}

// sizeOf returns the approximate size of a rule in a response.
func sizeOf(rule *rbacv1.PolicyRule) int {
	size := 0
	for _, list := range [][]string{rule.Verbs, rule.APIGroups, rule.Resources, rule.ResourceNames, rule.NonResourceURLs} {
		for _, text := range list {
			size += len(text) + len(`"",`)
		}
	}
	return size
}
