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

// GroupFilter decides which groups of a user the front-proxy tells shards. In
// both lists "prefix*" stands for all groups that begin with the prefix, and
// "!group" takes a group out of what the others of its list stand for.
type GroupFilter struct {
	// PassOn are the groups that are told; empty stands for all.
	PassOn []string
	// Drop are groups that are not told, whatever PassOn says.
	Drop []string
}

// DefaultDropGroups are the groups that nobody from outside has: they are for the
// servers' own requests, or say what the system itself has found out about a user.
// Administrators are members of system:kcp:admin.
func DefaultDropGroups() []string {
	return []string{user.SystemPrivilegedGroup, request.GroupPrefix + "*", "!" + request.GroupAdmin, request.GroupBindingPrefix + "*"}
}

// homeGroups say where a user is at home, which servers find out themselves. They
// are dropped beside DropGroups, which front-proxies apply to real service
// accounts as well.
func homeGroups() []string {
	return []string{serviceaccount.AllServiceAccountsGroup, serviceaccount.ServiceAccountGroupPrefix + "*", identity.ClusterGroupPrefix + "*"}
}

// withGroups returns a response with the groups that a filter leaves.
func withGroups(response *authenticator.Response, groups GroupFilter) *authenticator.Response {
	who := response.User
	return &authenticator.Response{Audiences: response.Audiences, User: &user.DefaultInfo{
		Name: who.GetName(), UID: who.GetUID(), Groups: groups.Filter(who.GetGroups()), Extra: who.GetExtra(),
	}}
}

// Filter returns the groups to tell, in their order.
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
