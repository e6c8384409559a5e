package rbac

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Allows reports whether a rule allows a request.
func Allows(a authorizer.Attributes, rule *rbacv1.PolicyRule) bool {
	if !contains(rule.Verbs, rbacv1.VerbAll, a.GetVerb()) {
		return false
	}
	if !a.IsResourceRequest() {
		return slices.ContainsFunc(rule.NonResourceURLs, func(pattern string) bool { return pathMatches(pattern, a.GetPath()) })
	}
	return contains(rule.APIGroups, rbacv1.APIGroupAll, a.GetAPIGroup()) &&
		slices.ContainsFunc(rule.Resources, func(pattern string) bool { return resourceMatches(pattern, a.GetResource(), a.GetSubresource()) }) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, a.GetName()))
}

func contains(values []string, all, value string) bool {
	for _, v := range values {
		if v == all || v == value {
			return true
		}
	}
	return false
}

// resourceMatches matches a resource with a pattern: "*", "resource", "resource/subresource" or
// "*/subresource".
func resourceMatches(pattern, resource, subresource string) bool {
	if pattern == rbacv1.ResourceAll {
		return true
	}
	if subresource == "" {
		return pattern == resource
	}
	prefix, suffix, found := strings.Cut(pattern, "/")
	return found && suffix == subresource && (prefix == resource || prefix == "*")
}

// pathMatches matches a path with a pattern that may end in "*".
func pathMatches(pattern, path string) bool {
	if pattern == rbacv1.NonResourceAll || pattern == path {
		return true
	}
	return strings.HasSuffix(pattern, "*") && strings.HasPrefix(path, strings.TrimRight(pattern, "*"))
}
