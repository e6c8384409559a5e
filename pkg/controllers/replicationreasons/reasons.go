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

// reason is why objects of logical clusters are replicated that have something which
// others refer to.
type reason struct {
	// name is how objects are marked.
	name string
	// rule reports whether a role matters to other shards that has the rule.
	rule func(*rbacv1.PolicyRule) bool
	// subject reports whether a binding does that has the subject, and so its role.
	subject func(*rbacv1.Subject) bool
}

// reasons are all that the server marks objects with. Who may use what a logical cluster
// has is asked on the shards of those who use it.
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

// grants reports whether a rule has one of the verbs, or any if there are none, on a
// resource.
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

// RuleIndex is the index of cluster roles by the reasons of their rules, and RoleIndex and
// SubjectIndex are those of cluster role bindings by their role, and by that and the
// reasons of their subjects.
const (
	RuleIndex    = "replicated-by-rule"
	RoleIndex    = "role"
	SubjectIndex = "replicated-by-subject"
)

// indexKey joins the parts of a key of an index.
func indexKey(parts ...string) string { return strings.Join(parts, "|") }

// IndexByRule is the function of RuleIndex.
func IndexByRule(role *rbacv1.ClusterRole) []string {
	var keys []string
	for _, why := range reasons {
		if slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return why.rule(&r) }) {
			keys = append(keys, indexKey(why.name, logicalcluster.From(role).String(), role.Name))
		}
	}
	return keys
}

// IndexByRole is the function of RoleIndex. A role is one of the logical cluster, or, in
// all of them, of the system.
func IndexByRole(binding *rbacv1.ClusterRoleBinding) []string {
	if binding.RoleRef.Kind != "ClusterRole" {
		return nil
	}
	return []string{indexKey(logicalcluster.From(binding).String(), binding.RoleRef.Name), indexKey("", binding.RoleRef.Name)}
}

// IndexBySubject is the function of SubjectIndex.
func IndexBySubject(binding *rbacv1.ClusterRoleBinding) []string {
	var keys []string
	for _, why := range reasons {
		if hasSubject(why.name, binding) {
			keys = append(keys, indexKey(why.name, logicalcluster.From(binding).String(), binding.RoleRef.Name))
		}
	}
	return keys
}

// hasSubject reports whether a binding has a subject for which a reason holds.
func hasSubject(why string, binding *rbacv1.ClusterRoleBinding) bool {
	at := slices.IndexFunc(reasons, func(r reason) bool { return r.name == why })
	return slices.ContainsFunc(binding.Subjects, func(s rbacv1.Subject) bool { return reasons[at].subject(&s) })
}

// marked returns the value of the annotation that says why an object is replicated, with
// the reasons that hold, and those of others that it has.
func marked(before string, holds func(why string) bool) string {
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

// annotation says of objects why they are replicated.
const annotation = core.ReplicateAnnotationKey
