package authn

import (
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
)

// GroupFilter decides which groups of a user the front-proxy tells shards. In
// both lists "prefix*" stands for all groups that begin with the prefix.
type GroupFilter struct {
	// PassOn are the groups that are told; empty stands for all.
	PassOn []string
	// Drop are groups that are not told, whatever PassOn says.
	Drop []string
}

// DefaultDropGroups are the groups that no client from outside may carry to a
// shard: they are for the servers' own requests. Administrators are members of
// system:kcp:admin.
func DefaultDropGroups() []string {
	return []string{
		user.SystemPrivilegedGroup,
		request.GroupLogicalClusterAdmin,
		"system:kcp:initializer:*",
		"system:kcp:terminator:*",
	}
}

// Filter returns the groups to tell, in their order.
func (f GroupFilter) Filter(groups []string) []string {
	return slices.DeleteFunc(slices.Clone(groups), func(name string) bool {
		return len(f.PassOn) > 0 && !matchesAny(f.PassOn, name) || matchesAny(f.Drop, name)
	})
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
			return strings.HasPrefix(name, prefix)
		}
		return name == pattern
	})
}
