package authn

import (
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// GroupFilter filters the groups of a user. In both lists "prefix*" matches all groups with the prefix, and
// "!group" excludes a group from the other entries of its list.
type GroupFilter struct {
	// PassOn are the permitted groups; empty permits all.
	PassOn []string
	// Drop are removed in any case.
	Drop []string
}

// DefaultDropGroups are groups that external users must not have, because the servers or the system assign
// them. Administrators are members of system:kcp:admin.
func DefaultDropGroups() []string {
	return []string{user.SystemPrivilegedGroup, request.GroupPrefix + "*", "!" + request.GroupAdmin, request.GroupBindingPrefix + "*"}
}

// homeGroups are groups that servers derive from the logical cluster of a user. They are not part of
// DropGroups because front-proxies apply these to service accounts too.
func homeGroups() []string {
	return []string{serviceaccount.AllServiceAccountsGroup, serviceaccount.ServiceAccountGroupPrefix + "*", identity.ClusterGroupPrefix + "*"}
}

// withGroups returns a response with filtered groups.
func withGroups(response *authenticator.Response, groups GroupFilter) *authenticator.Response {
	u := response.User
	return &authenticator.Response{Audiences: response.Audiences, User: &user.DefaultInfo{
		Name: u.GetName(), UID: u.GetUID(), Groups: groups.Filter(u.GetGroups()), Extra: u.GetExtra(),
	}}
}

// Filter returns the remaining groups in their order.
func (f GroupFilter) Filter(groups []string) []string {
	return slices.DeleteFunc(slices.Clone(groups), func(name string) bool {
		return len(f.PassOn) > 0 && !matchesAny(f.PassOn, name) || matchesAny(f.Drop, name)
	})
}

func matchesAny(patterns []string, name string) bool {
	return !slices.Contains(patterns, "!"+name) && slices.ContainsFunc(patterns, func(pattern string) bool {
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
			return strings.HasPrefix(name, prefix)
		}
		return name == pattern
	})
}
