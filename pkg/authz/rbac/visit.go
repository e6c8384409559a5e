package rbac

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request/identity"
)

const (
	// checkEvery is the number of values in rules, e.g. verbs and names, after which a visit checks its context. One
	// rule may have a hundred thousand values.
	checkEvery = 4096
	// manyValues is the number of values after which a visit excludes other visits, so that a tenant occupies
	// at most one core.
	manyValues = 16384
	// pause is the number of lookups of subjects and roles after which a visit releases the lock for waiters, e.g. the
	// informer that updates the index.
	pause = 256
	// lookUp is the number of values that take as long as a lookup.
	lookUp = 16
	// maxFailures is the number of missing roles in an error.
	//
	//reference:none
	maxFailures = 10
)

// visitor is called with each rule of a user and its binding and subject. The rule is nil if the role of the
// binding does not exist. It returns false to stop the visit.
type visitor func(b *binding, subject subjectKey, rule *rbacv1.PolicyRule) bool

// visit calls f for the rules of the identities in a namespace of a logical cluster. The rules of its own
// bindings precede the rules of the system's bindings. If namespace is empty, bindings in namespaces are
// ignored. It returns whether f has been called for all rules, and an error if ctx ends.
//
// If several bindings have the same role, only the first one is used. No lock is held while f is called,
// because roles and bindings in the index are immutable. A visit of many bindings releases the lock for
// writers in between. It uses the bindings of a subject at the time of the lookup, and the current roles.
func (i *Index) visit(ctx context.Context, name, system logicalcluster.Name, identities []user.Info, namespace string, f visitor) (more bool, err error) {
	own, ofSystem := i.pair(name, system)
	return visit(ctx, own, ofSystem, false, identities, namespace, f)
}

// visit visits the bindings of a logical cluster and, unless they are replicas, those of the system's.
func visit(ctx context.Context, own, ofSystem *cluster, replicas bool, identities []user.Info, namespace string, f visitor) (more bool, err error) {
	found := newGrants(own, ofSystem)
	defer found.release()
	for _, u := range identities {
		if more, err := found.ofUser(ctx, own, u.GetName(), u.GetGroups(), namespace, f); !more {
			return false, err
		}
		if replicas || own == ofSystem {
			continue
		}
		// In the logical cluster of the system, only the groups of a service account are used,
		// because the service account of the same name there is another one.
		username := u.GetName()
		if identity.IsServiceAccount(u) {
			username = ""
		}
		if more, err := found.ofUser(ctx, ofSystem, username, u.GetGroups(), "", f); !more {
			return false, err
		}
	}
	return found.visit(ctx, f)
}

// pair returns a logical cluster and the logical cluster of the system, or nil if they have no
// content.
func (i *Index) pair(name, system logicalcluster.Name) (own, ofSystem *cluster) {
	own = i.get(name)
	if ofSystem = own; name != system {
		ofSystem = i.get(system)
	}
	return own, ofSystem
}

// rlock locks two logical clusters, which may be nil or the same, for reading.
func rlock(own, ofSystem *cluster) {
	if own != nil {
		own.mu.RLock()
	}
	if ofSystem != nil && ofSystem != own {
		ofSystem.mu.RLock()
	}
}

func runlock(own, ofSystem *cluster) {
	if ofSystem != nil && ofSystem != own {
		ofSystem.mu.RUnlock()
	}
	if own != nil {
		own.mu.RUnlock()
	}
}

// grant is a role that a user has by a binding.
type grant struct {
	binding *binding
	subject subjectKey
	// role is nil if it does not exist.
	role *role
	// added are the cluster roles of the logical cluster at a version. role may aggregate some of them.
	added   []*role
	version uint64
}

// grants are the distinct roles of one user that have not been visited yet. They are looked up with the locks
// of two logical clusters held.
type grants struct {
	own, ofSystem *cluster

	list []grant
	// seen contains the roles of list and of previous lists, if there are many.
	seen map[grantKey]struct{}
	// lookups is the number of lookups since the locks were taken.
	lookups int
	walk    walk
}

var pool = sync.Pool{New: func() any { return &grants{} }}

// newGrants takes the locks and returns pooled grants for one visit, which must be released.
func newGrants(own, ofSystem *cluster) *grants {
	g := pool.Get().(*grants)
	g.own, g.ofSystem = own, ofSystem
	g.walk = walk{cluster: own, check: checkEvery}
	rlock(own, ofSystem)
	return g
}

func (g *grants) release() {
	g.walk.leave()
	if g.seen == nil { // large slices are not pooled
		clear(g.list)
		*g = grants{list: g.list[:0]}
		pool.Put(g)
	}
}

// ofUser looks up the roles of a user name and groups by the bindings of a logical cluster, which may be nil.
// It visits roles between the lookups. If it returns false, the locks have been released.
func (g *grants) ofUser(ctx context.Context, c *cluster, username string, groups []string, namespace string, f visitor) (more bool, err error) {
	if c == nil || c.bindings.len() == 0 {
		return true, nil
	}
	if username != "" {
		if more, err := g.ofSubject(ctx, c, subjectKey{kind: kindUser, name: username}, namespace, f); !more {
			return false, err
		}
	}
	for _, group := range groups {
		if more, err := g.ofSubject(ctx, c, subjectKey{kind: kindGroup, name: group}, namespace, f); !more {
			return false, err
		}
	}
	return true, nil
}

func (g *grants) ofSubject(ctx context.Context, c *cluster, subject subjectKey, namespace string, f visitor) (more bool, err error) {
	for {
		of, version := c.subjects.get(subject), c.version
		if more, err := g.lookedUp(ctx, f); !more {
			return false, err
		}
		for _, b := range of.all {
			if b.in(version) {
				g.add(c, b, subject)
			}
			if more, err := g.lookedUp(ctx, f); !more {
				return false, err
			}
		}
		if subject.namespace == namespace {
			return true, nil
		}
		subject.namespace = namespace
	}
}

// lookedUp counts a lookup. After many lookups, it releases the locks, visits the grants, and takes the locks
// again if there is more to do.
func (g *grants) lookedUp(ctx context.Context, f visitor) (more bool, err error) {
	if g.lookups++; g.lookups < pause {
		return true, nil
	}
	if more, err := g.visit(ctx, f); !more {
		return false, err
	}
	g.remember()
	clear(g.list)
	g.list, g.lookups = g.list[:0], 0
	rlock(g.own, g.ofSystem)
	return true, nil
}

// grantKey identifies a grant: a role of the system differs from the same role with additions of a logical cluster.
type grantKey struct {
	role *role
	adds bool
	ref  rbacv1.RoleRef // if the role does not exist
}

// fewGrants is the maximum number of grants that are searched linearly.
const fewGrants = 8

// add adds the role that a binding of a logical cluster refers to, unless it is there. Cluster roles that the
// logical cluster does not have are the system's.
func (g *grants) add(c *cluster, b *binding, subject subjectKey) {
	added := grant{binding: b, subject: subject, role: c.resolve(g.ofSystem, b.ref, b.namespace)}
	// Aggregation of a system role is done in the system; here the logical cluster adds its own roles.
	if r := added.role; r != nil && len(r.aggregates) > 0 && len(c.labelled.all) > 0 && c.roles[objectKey{name: b.ref.Name}] != r {
		added.added, added.version = c.labelled.all, c.version
	}
	if g.first(&added) {
		g.list = append(g.list, added)
	}
}

// remember adds the roles of list to seen.
func (g *grants) remember() {
	if g.seen != nil {
		return
	}
	g.seen = make(map[grantKey]struct{}, 2*len(g.list))
	for i := range g.list {
		g.seen[g.list[i].key()] = struct{}{}
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
	g.remember()
	if _, known := g.seen[key]; known {
		return false
	}
	// Only some roles that do not exist are recorded, because they cost a tenant nothing.
	if added.role != nil || len(g.seen) < pause {
		g.seen[key] = struct{}{}
	}
	return true
}

func (g *grant) key() grantKey {
	if g.role == nil {
		return grantKey{ref: g.binding.ref}
	}
	return grantKey{role: g.role, adds: g.added != nil}
}

// visit releases the locks, and calls f for each rule until it returns false or ctx ends.
func (g *grants) visit(ctx context.Context, f visitor) (more bool, err error) {
	runlock(g.own, g.ofSystem)
	w := &g.walk
	if err := w.step(ctx, g.lookups*lookUp); err != nil {
		return false, err
	}
	for i := range g.list {
		found := &g.list[i]
		if found.role == nil {
			if !f(found.binding, found.subject, nil) {
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
			if !added.in(found.version) || !found.role.selects(added) {
				continue
			}
			if more, err := w.rules(ctx, found, added, f); !more {
				return false, err
			}
		}
	}
	return true, nil
}

// walk counts the values of a visit.
type walk struct {
	cluster *cluster
	visited int
	// check is the count at which ctx is checked next.
	check     int
	exclusive bool
}

func (w *walk) rules(ctx context.Context, g *grant, r *role, f visitor) (more bool, err error) {
	for i := range r.rules {
		if err := w.step(ctx, values(&r.rules[i])); err != nil {
			return false, err
		}
		if !f(g.binding, g.subject, &r.rules[i]) {
			return false, nil
		}
	}
	return true, nil
}

// values returns the number of values of a rule that are compared.
func values(rule *rbacv1.PolicyRule) int {
	return 1 + len(rule.Verbs) + len(rule.APIGroups) + len(rule.Resources) + len(rule.ResourceNames) + len(rule.NonResourceURLs)
}

// step counts values before they are visited, and waits for other visits if there are many. It fails if ctx ends.
func (w *walk) step(ctx context.Context, values int) error {
	w.visited += values
	if w.visited < w.check {
		return nil
	}
	w.check = w.visited + checkEvery
	if w.visited >= manyValues && !w.exclusive && w.cluster != nil {
		select {
		case w.cluster.busy <- struct{}{}:
			w.exclusive = true
		case <-ctx.Done():
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("the request ended before all rules of the user were checked, which have more than %d values: %w", w.visited, err)
	}
	return nil
}

// leave allows the next visit of many rules.
func (w *walk) leave() {
	if w.exclusive {
		<-w.cluster.busy
	}
}

func (r *role) selects(other *role) bool {
	return slices.ContainsFunc(r.aggregates, func(selector labels.Selector) bool { return selector.Matches(other.labels) })
}

// resolve returns the role that a binding in a namespace refers to, or nil.
func (c *cluster) resolve(ofSystem *cluster, ref rbacv1.RoleRef, namespace string) *role {
	switch ref.Kind {
	case "Role":
		if namespace != "" {
			return c.roles[objectKey{namespace, ref.Name}]
		}
	case "ClusterRole":
		key := objectKey{name: ref.Name}
		if r := c.roles[key]; r != nil || ofSystem == nil {
			return r
		}
		return ofSystem.roles[key]
	}
	return nil
}

func notFound(ref rbacv1.RoleRef) error {
	switch ref.Kind {
	case "Role", "ClusterRole":
		return apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: strings.ToLower(ref.Kind)}, ref.Name)
	default:
		return fmt.Errorf("unsupported role reference kind: %q", ref.Kind)
	}
}

// rulesIn implements Authorizer.RulesIn.
func (i *Index) rulesIn(ctx context.Context, name, system logicalcluster.Name, ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	own, ofSystem := i.pair(name, system)
	var missing error
	var rules collected
	found := newGrants(own, ofSystem)
	defer found.release()
	found.add(cmp.Or(own, &cluster{}), &binding{objectKey: objectKey{namespace: namespace}, ref: ref}, subjectKey{})
	_, err := found.visit(ctx, func(_ *binding, _ subjectKey, rule *rbacv1.PolicyRule) bool {
		if rule == nil {
			missing = notFound(ref)
		}
		return rule != nil && rules.add(rule)
	})
	if err := cmp.Or(err, missing); err != nil {
		return nil, err
	}
	if rules.truncated {
		resource := map[bool]string{true: "roles", false: "clusterroles"}[ref.Kind == "Role"]
		return nil, apierrors.NewForbidden(rbacv1.Resource(resource), ref.Name, errManyRules)
	}
	return rules.list, nil
}

const (
	// maxRules and maxRulesBytes limit the rules that are collected for a user or role, because the number of
	// rules is not limited. Decisions do not collect rules.
	//
	//reference:limit request | rules in the response of a rules review, or compared for a write of a role | `incomplete`; 403
	maxRules = 10_000
	//reference:limit request | size of the rules in the response of a rules review, or compared for a write of a role | `incomplete`; 403
	maxRulesBytes = 4 << 20
)

var errManyRules = fmt.Errorf("more than %d rules, or more than %d MiB: further rules are omitted", maxRules, maxRulesBytes>>20)

type collected struct {
	list  []rbacv1.PolicyRule
	bytes int
	// truncated is true if rules were omitted.
	truncated bool
}

// add adds a rule, and returns false if a limit is reached.
func (c *collected) add(rule *rbacv1.PolicyRule) bool {
	size := sizeOf(rule)
	if len(c.list) == maxRules || c.bytes+size > maxRulesBytes {
		c.truncated = true
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
