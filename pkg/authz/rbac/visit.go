package rbac

import (
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request/identity"
)

// visitor is called with each rule of a user and the binding and subject that
// it comes from, or with the error of a binding whose role does not exist. It
// returns false to end the visit.
type visitor func(b *binding, subject subjectKey, rule *rbacv1.PolicyRule, err error) bool

// visit calls f for the rules that the identities have in a namespace of a
// logical cluster: those of its own bindings, then those of the system's. An
// empty namespace means none: bindings in namespaces do not count.
func (i *Index) visit(name, system logicalcluster.Name, identities []user.Info, namespace string, f visitor) {
	own, shared, unlock := i.lock(name, system)
	defer unlock()
	for _, u := range identities {
		if !own.visitSubjects(shared, u.GetName(), u.GetGroups(), namespace, f) {
			return
		}
		if name == system {
			continue
		}
		// A service account of this logical cluster is not the one of the same
		// name of the system's, so only its groups count there.
		username := u.GetName()
		if identity.IsServiceAccount(u) {
			username = ""
		}
		if !shared.visitSubjects(nil, username, u.GetGroups(), "", f) {
			return
		}
	}
}

// lock returns a logical cluster and that of the system, nil where the index has
// nothing of them, for reading until unlock is called.
func (i *Index) lock(name, system logicalcluster.Name) (own, shared *cluster, unlock func()) {
	own = i.get(name)
	if own != nil {
		own.mu.RLock()
	}
	if name == system {
		shared = own
	} else if shared = i.get(system); shared != nil {
		shared.mu.RLock()
	}
	return own, shared, func() {
		if shared != nil && shared != own {
			shared.mu.RUnlock()
		}
		if own != nil {
			own.mu.RUnlock()
		}
	}
}

// visitSubjects calls f for the rules that a user name and groups have by the
// bindings of one logical cluster. Cluster roles that it does not have are
// those of shared.
func (c *cluster) visitSubjects(shared *cluster, username string, groups []string, namespace string, f visitor) bool {
	if c == nil || len(c.bindings) == 0 {
		return true
	}
	if username != "" && !c.visitSubject(shared, subjectKey{kind: kindUser, name: username}, namespace, f) {
		return false
	}
	for _, group := range groups {
		if !c.visitSubject(shared, subjectKey{kind: kindGroup, name: group}, namespace, f) {
			return false
		}
	}
	return true
}

func (c *cluster) visitSubject(shared *cluster, subject subjectKey, namespace string, f visitor) bool {
	for _, b := range c.subjects[subject] {
		if !c.visitRules(shared, b, subject, f) {
			return false
		}
	}
	if namespace == "" {
		return true
	}
	subject.namespace = namespace
	for _, b := range c.subjects[subject] {
		if !c.visitRules(shared, b, subject, f) {
			return false
		}
	}
	return true
}

// visitRules calls f for the rules of the role that a binding refers to.
func (c *cluster) visitRules(shared *cluster, b *binding, subject subjectKey, f visitor) bool {
	r, err := c.resolve(shared, b.ref, b.namespace)
	if err != nil {
		return f(b, subject, nil, err)
	}
	for i := range r.rules {
		if !f(b, subject, &r.rules[i], nil) {
			return false
		}
	}
	// A role of the system's is aggregated there; here it has what this logical
	// cluster adds.
	if len(r.aggregates) == 0 || len(c.labelled) == 0 || c.roles[objectKey{name: b.ref.Name}] == r {
		return true
	}
	for _, added := range c.labelled {
		if !r.selects(added) {
			continue
		}
		for i := range added.rules {
			if !f(b, subject, &added.rules[i], nil) {
				return false
			}
		}
	}
	return true
}

// selects reports whether r aggregates another role.
func (r *role) selects(other *role) bool {
	for _, selector := range r.aggregates {
		if selector.Matches(other.labels) {
			return true
		}
	}
	return false
}

// resolve returns the role that a binding in a namespace refers to.
func (c *cluster) resolve(shared *cluster, ref rbacv1.RoleRef, namespace string) (*role, error) {
	var key objectKey
	var kind string
	switch ref.Kind {
	case "Role":
		key, kind = objectKey{namespace, ref.Name}, "role"
	case "ClusterRole":
		key, kind = objectKey{name: ref.Name}, "clusterrole"
	default:
		return nil, fmt.Errorf("unsupported role reference kind: %q", ref.Kind)
	}
	if c != nil && (key.namespace == "") == (ref.Kind == "ClusterRole") {
		if r := c.roles[key]; r != nil {
			return r, nil
		}
	}
	if shared != nil && ref.Kind == "ClusterRole" {
		if r := shared.roles[key]; r != nil {
			return r, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: kind}, ref.Name)
}

// rulesIn returns the rules of the role that a binding in a namespace of a
// logical cluster refers to.
func (i *Index) rulesIn(name, system logicalcluster.Name, ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	c, shared, unlock := i.lock(name, system)
	defer unlock()
	if _, err := c.resolve(shared, ref, namespace); err != nil {
		return nil, err
	}
	if c == nil {
		c = &cluster{}
	}
	var rules []rbacv1.PolicyRule
	c.visitRules(shared, &binding{objectKey: objectKey{namespace: namespace}, ref: ref}, subjectKey{}, func(_ *binding, _ subjectKey, rule *rbacv1.PolicyRule, _ error) bool {
		rules = append(rules, *rule)
		return true
	})
	return rules, nil
}
