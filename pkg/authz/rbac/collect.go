package rbac

import (
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
)

const (
	// maxRules and maxRulesBytes bound what is collected of the rules of one user, or of one
	// role, which a tenant can write without end. Decisions collect nothing.
	maxRules      = 10_000
	maxRulesBytes = 4 << 20
)

// errManyRules says that rules were left out.
var errManyRules = fmt.Errorf("there are more than %d rules, or more than %d MiB: those that are left out allow things as well", maxRules, maxRulesBytes>>20)

// collected are rules up to the bounds.
type collected struct {
	list  []rbacv1.PolicyRule
	bytes int
	// left is set where there are more.
	left bool
}

// add adds a rule, and reports whether there was room.
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

// sizeOf returns about how many bytes a rule has in an answer.
func sizeOf(rule *rbacv1.PolicyRule) int {
	size := 0
	for _, list := range [][]string{rule.Verbs, rule.APIGroups, rule.Resources, rule.ResourceNames, rule.NonResourceURLs} {
		for _, text := range list {
			size += len(text) + len(`"",`)
		}
	}
	return size
}
