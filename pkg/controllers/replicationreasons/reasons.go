package replicationreasons

import (
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/apis"
	"github.com/kcp-dev/sdk/apis/core"
	"github.com/kcp-dev/sdk/apis/tenancy"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/authz/rbac"
	"github.com/shardplane/shardplane/pkg/request"
)

// reason is a reason to replicate objects of a logical cluster, because other shards refer to its content.
type reason struct {
	name string // in the annotation
	// rule and subject report whether other shards need roles with the rule, and bindings with the subject.
	rule    func(*rbacv1.PolicyRule) bool
	subject func(*rbacv1.Subject) bool
}

// reasons are all reasons that this package manages. Access to the content of a logical cluster is authorized on the shards
// of its users.
var reasons = []reason{
	{
		name: apis.GroupName, // where there are exports
		rule: func(r *rbacv1.PolicyRule) bool {
			return grants(r, apis.GroupName, "apiexports", "bind") || grants(r, apis.GroupName, "apiexports/content")
		},
		subject: func(s *rbacv1.Subject) bool {
			return (s.Kind == rbacv1.UserKind || s.Kind == rbacv1.GroupKind) && strings.HasPrefix(s.Name, request.GroupBindingPrefix)
		},
	},
	{
		name: tenancy.GroupName, // where there are workspace types
		rule: func(r *rbacv1.PolicyRule) bool {
			return grants(r, tenancy.GroupName, "workspacetypes", "use", "initialize", "terminate")
		},
		subject: func(*rbacv1.Subject) bool { return false },
	},
	{
		name: core.GroupName, // where the LogicalCluster itself is replicated
		rule: func(r *rbacv1.PolicyRule) bool {
			return rbac.Allows(authorizer.AttributesRecord{Verb: authz.VerbAccess, Path: "/"}, r)
		},
		subject: func(*rbacv1.Subject) bool { return false },
	},
}

// grants reports whether a rule grants one of the verbs, or any verb if there are none, for a resource.
func grants(r *rbacv1.PolicyRule, group, resource string, verbs ...string) bool {
	has := func(in []string, some ...string) bool {
		return slices.ContainsFunc(in, func(value string) bool { return value == rbacv1.VerbAll || slices.Contains(some, value) })
	}
	_, subresource, _ := strings.Cut(resource, "/")
	if len(r.Verbs) == 0 || len(verbs) > 0 && !has(r.Verbs, verbs...) || !has(r.APIGroups, group) {
		return false
	}
	return has(r.Resources, resource) || subresource != "" && slices.Contains(r.Resources, "*/"+subresource)
}

// RuleIndex indexes cluster roles by the reasons of their rules. RoleIndex indexes cluster role bindings by their role, and
// SubjectIndex by their role and the reasons of their subjects.
const (
	RuleIndex    = "replicated-by-rule"
	RoleIndex    = "role"
	SubjectIndex = "replicated-by-subject"
)

func indexKey(parts ...string) string { return strings.Join(parts, "|") }

// IndexByRule is the index function of RuleIndex.
func IndexByRule(role *rbacv1.ClusterRole) []string {
	var keys []string
	for _, why := range reasons {
		if slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return why.rule(&r) }) {
			keys = append(keys, indexKey(why.name, logicalcluster.From(role).String(), role.Name))
		}
	}
	return keys
}

// IndexByRole is the index function of RoleIndex. A role may be in the same logical cluster, or a system role.
func IndexByRole(binding *rbacv1.ClusterRoleBinding) []string {
	if binding.RoleRef.Kind != "ClusterRole" {
		return nil
	}
	return []string{indexKey(logicalcluster.From(binding).String(), binding.RoleRef.Name), indexKey("", binding.RoleRef.Name)}
}

// IndexBySubject is the index function of SubjectIndex.
func IndexBySubject(binding *rbacv1.ClusterRoleBinding) []string {
	var keys []string
	for _, why := range reasons {
		if hasSubject(why.name, binding) {
			keys = append(keys, indexKey(why.name, logicalcluster.From(binding).String(), binding.RoleRef.Name))
		}
	}
	return keys
}

func hasSubject(why string, binding *rbacv1.ClusterRoleBinding) bool {
	at := slices.IndexFunc(reasons, func(r reason) bool { return r.name == why })
	return slices.ContainsFunc(binding.Subjects, func(s rbacv1.Subject) bool { return reasons[at].subject(&s) })
}

// annotated returns the updated value of the annotation. Other reasons do not change.
func annotated(before string, holds func(why string) bool) string {
	var all []string
	if before != "" {
		all = strings.Split(before, ",")
	}
	for _, why := range reasons {
		switch has := slices.Contains(all, why.name); {
		case has && !holds(why.name):
			all = slices.DeleteFunc(all, func(other string) bool { return other == why.name })
		case !has && holds(why.name):
			all = append(all, why.name)
		}
	}
	return strings.Join(all, ",")
}

const annotation = core.ReplicateAnnotationKey
