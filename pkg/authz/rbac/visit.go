package rbac

import (
	"context"
	"fmt"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request/identity"
)

const (
	// checkEvery is after how many values of rules, such as verbs and names, a visit
	// looks whether the request has ended: one rule may have a hundred thousand.
	checkEvery = 4096
	// manyValues are so many that only one visit at a time may look at more in a
	// logical cluster: what its tenant has written takes no more than one core.
	manyValues = 16384
)

// visitor is called with each rule of a user and the binding and subject that
// it comes from, or with the error of a binding whose role does not exist. It
// returns false to end the visit.
type visitor func(b *binding, subject subjectKey, rule *rbacv1.PolicyRule, err error) bool

// visit calls f for the rules that the identities have in a namespace of a
// logical cluster: those of its own bindings, then those of the system's. An
// empty namespace means none: bindings in namespaces do not count. It reports
// whether f has seen all, and fails when ctx ends first.
//
// Of several bindings of the same role only the first counts. No lock is held
// while rules are looked at: roles and bindings that the index has do not change.
func (i *Index) visit(ctx context.Context, name, system logicalcluster.Name, identities []user.Info, namespace string, f visitor) (more bool, err error) {
	own, ofSystem, unlock := i.lock(name, system)
	found := newGrants()
	defer found.release()
	for _, u := range identities {
		found.ofUser(own, ofSystem, u.GetName(), u.GetGroups(), namespace)
		if name == system {
			continue
		}
		// A service account of this logical cluster is not the one of the same
		// name of the system's, so only its groups count there.
		username := u.GetName()
		if identity.IsServiceAccount(u) {
			username = ""
		}
		found.ofUser(ofSystem, nil, username, u.GetGroups(), "")
	}
	unlock()
	return found.visit(ctx, own, f)
}

// lock returns a logical cluster and that of the system, nil where the index has
// nothing of them, for reading until unlock is called.
func (i *Index) lock(name, system logicalcluster.Name) (own, ofSystem *cluster, unlock func()) {
	own = i.get(name)
	if ofSystem = own; name != system {
		ofSystem = i.get(system)
	}
	return own, ofSystem, lockBoth(own, ofSystem)
}

// lockBoth locks what there is of two logical clusters, which may be the same, for
// reading until unlock is called.
func lockBoth(own, ofSystem *cluster) (unlock func()) {
	if own != nil {
		own.mu.RLock()
	}
	if ofSystem != nil && ofSystem != own {
		ofSystem.mu.RLock()
	}
	return func() {
		if ofSystem != nil && ofSystem != own {
			ofSystem.mu.RUnlock()
		}
		if own != nil {
			own.mu.RUnlock()
		}
	}
}

// grant is a role that a user has by a binding, or the error of a binding whose
// role does not exist.
type grant struct {
	binding *binding
	subject subjectKey
	role    *role
	// added are cluster roles, of which role has the rules of those that it
	// aggregates, besides its own.
	added []*role
	err   error
}

// grants are those of one user, each role once.
type grants struct {
	list []grant
	// seen has the roles of list once they are many.
	seen map[grantKey]struct{}
}

var pool = sync.Pool{New: func() any { return &grants{} }}

// newGrants returns grants without any, to be released: each request makes some.
func newGrants() *grants { return pool.Get().(*grants) }

func (g *grants) release() {
	if g.seen == nil { // the memory of many is not kept
		clear(g.list)
		g.list = g.list[:0]
		pool.Put(g)
	}
}

// grantKey tells grants apart: a role of the system's, bound in a logical cluster,
// has what that adds to it.
type grantKey struct {
	role *role
	adds bool
	ref  rbacv1.RoleRef // where there is no role
}

// fewGrants is how many grants are looked through for one of the same role.
const fewGrants = 8

// ofUser adds what a user name and groups have by the bindings of one logical
// cluster. Cluster roles that it does not have are those of ofSystem. The caller
// holds the locks of both.
func (g *grants) ofUser(c, ofSystem *cluster, username string, groups []string, namespace string) {
	if c == nil || len(c.bindings) == 0 {
		return
	}
	if username != "" {
		g.ofSubject(c, ofSystem, subjectKey{kind: kindUser, name: username}, namespace)
	}
	for _, group := range groups {
		g.ofSubject(c, ofSystem, subjectKey{kind: kindGroup, name: group}, namespace)
	}
}

func (g *grants) ofSubject(c, ofSystem *cluster, subject subjectKey, namespace string) {
	for _, b := range c.subjects[subject] {
		g.add(c, ofSystem, b, subject)
	}
	if namespace == "" {
		return
	}
	subject.namespace = namespace
	for _, b := range c.subjects[subject] {
		g.add(c, ofSystem, b, subject)
	}
}

// add adds the role that a binding refers to, unless it is there.
func (g *grants) add(c, ofSystem *cluster, b *binding, subject subjectKey) {
	r, err := c.resolve(ofSystem, b.ref, b.namespace)
	added := grant{binding: b, subject: subject, role: r, err: err}
	// A role of the system's is aggregated there; here it has what this logical
	// cluster adds.
	if err == nil && len(r.aggregates) > 0 && len(c.labelled) > 0 && c.roles[objectKey{name: b.ref.Name}] != r {
		added.added = c.labelledRoles()
	}
	if g.first(&added) {
		g.list = append(g.list, added)
	}
}

// first reports whether there is no grant of the same role yet.
func (g *grants) first(added *grant) bool {
	key := added.key()
	if g.seen == nil && len(g.list) < fewGrants {
		for i := range g.list {
			if g.list[i].key() == key {
				return false
			}
		}
		return true
	}
	if g.seen == nil {
		g.seen = make(map[grantKey]struct{}, 2*len(g.list))
		for i := range g.list {
			g.seen[g.list[i].key()] = struct{}{}
		}
	}
	if _, known := g.seen[key]; known {
		return false
	}
	g.seen[key] = struct{}{}
	return true
}

func (g *grant) key() grantKey {
	if g.err != nil {
		return grantKey{ref: g.binding.ref}
	}
	return grantKey{role: g.role, adds: g.added != nil}
}

// visit calls f for each rule, until it returns false or ctx ends. of has the
// bindings of most grants; it may be nil.
func (g *grants) visit(ctx context.Context, of *cluster, f visitor) (more bool, err error) {
	w := walk{cluster: of, check: checkEvery}
	defer w.leave()
	for i := range g.list {
		found := &g.list[i]
		if found.err != nil {
			if !f(found.binding, found.subject, nil, found.err) {
				return false, nil
			}
			continue
		}
		if more, err := w.rules(ctx, found, found.role, f); !more {
			return false, err
		}
		for _, added := range found.added {
			if err := w.step(ctx, 1); err != nil {
				return false, err
			}
			if !found.role.selects(added) {
				continue
			}
			if more, err := w.rules(ctx, found, added, f); !more {
				return false, err
			}
		}
	}
	return true, nil
}

// walk counts what a visit looks at.
type walk struct {
	cluster *cluster
	looked  int
	// check is how many have been looked at when ctx is looked at next.
	check   int
	entered bool
}

func (w *walk) rules(ctx context.Context, g *grant, r *role, f visitor) (more bool, err error) {
	for i := range r.rules {
		if err := w.step(ctx, values(&r.rules[i])); err != nil {
			return false, err
		}
		if !f(g.binding, g.subject, &r.rules[i], nil) {
			return false, nil
		}
	}
	return true, nil
}

// values returns how much there is of a rule to be compared.
func values(rule *rbacv1.PolicyRule) int {
	return 1 + len(rule.Verbs) + len(rule.APIGroups) + len(rule.Resources) + len(rule.ResourceNames) + len(rule.NonResourceURLs)
}

// step counts values of rules before they are looked at. It waits for other visits of
// the logical cluster where these are many, and fails when ctx ends.
func (w *walk) step(ctx context.Context, values int) error {
	w.looked += values
	if w.looked < w.check {
		return nil
	}
	w.check = w.looked + checkEvery
	if w.looked >= manyValues && !w.entered && w.cluster != nil {
		select {
		case w.cluster.busy <- struct{}{}:
			w.entered = true
		case <-ctx.Done():
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("the request ended before all of the user's rules were looked at, which have more than %d values: %w", w.looked, err)
	}
	return nil
}

// leave lets the next visit look at many rules.
func (w *walk) leave() {
	if w.entered {
		<-w.cluster.busy
	}
}

// labelledRoles returns the cluster roles with labels. The caller holds the lock
// for reading, so that the list, which is made once, is a copy.
func (c *cluster) labelledRoles() []*role {
	if made := c.labelledList.Load(); made != nil {
		return *made
	}
	list := make([]*role, 0, len(c.labelled))
	for _, r := range c.labelled {
		list = append(list, r)
	}
	c.labelledList.Store(&list)
	return list
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
func (c *cluster) resolve(ofSystem *cluster, ref rbacv1.RoleRef, namespace string) (*role, error) {
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
	if ofSystem != nil && ref.Kind == "ClusterRole" {
		if r := ofSystem.roles[key]; r != nil {
			return r, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: kind}, ref.Name)
}

// rulesIn returns the rules of the role that a binding in a namespace of a
// logical cluster refers to.
func (i *Index) rulesIn(ctx context.Context, name, system logicalcluster.Name, ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	own, ofSystem, unlock := i.lock(name, system)
	found := newGrants()
	defer found.release()
	c := own
	if c == nil {
		c = &cluster{}
	}
	found.add(c, ofSystem, &binding{objectKey: objectKey{namespace: namespace}, ref: ref}, subjectKey{})
	unlock()
	if err := found.list[0].err; err != nil {
		return nil, err
	}
	var rules collected
	if _, err := found.visit(ctx, own, func(_ *binding, _ subjectKey, rule *rbacv1.PolicyRule, _ error) bool {
		return rules.add(rule)
	}); err != nil {
		return nil, err
	}
	if rules.left {
		resource := map[bool]string{true: "roles", false: "clusterroles"}[ref.Kind == "Role"]
		return nil, apierrors.NewForbidden(rbacv1.Resource(resource), ref.Name, errManyRules)
	}
	return rules.list, nil
}
