package rbac

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
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
	// pause is after how many look-ups of subjects and roles a visit gives way to who
	// waits for the lock, such as the informer that the index follows.
	pause = 256
	// lookUp is how many values a look-up counts, which takes about as long.
	lookUp = 16
)

// maxFailures is how many of the roles that do not exist answers name.
const maxFailures = 10

// visitor is called with each rule of a user and the binding and subject that
// it comes from, or with the error of a binding whose role does not exist. It
// returns false to end the visit.
type visitor func(b *binding, subject subjectKey, rule *rbacv1.PolicyRule, err error) bool

// visit calls f for the rules that the identities have in a namespace of a
// logical cluster: those of its own bindings, then those of the system's. An
// empty namespace means none: bindings in namespaces do not count. It reports
// whether f has seen all, and fails when ctx ends first.
//
// Of several bindings of the same role only the first counts. No lock is held while
// f is called: roles and bindings that the index has do not change. A visit of many
// bindings gives way to writers in between, sees those of each subject as they were
// when it came to it, and roles as they are.
func (i *Index) visit(ctx context.Context, name, system logicalcluster.Name, identities []user.Info, namespace string, f visitor) (more bool, err error) {
	own, ofSystem := i.pair(name, system)
	found := newGrants(own, ofSystem)
	defer found.release()
	for _, u := range identities {
		if more, err := found.ofUser(ctx, own, u.GetName(), u.GetGroups(), namespace, f); !more {
			return false, err
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
		if more, err := found.ofUser(ctx, ofSystem, username, u.GetGroups(), "", f); !more {
			return false, err
		}
	}
	return found.visit(ctx, f)
}

// pair returns a logical cluster and that of the system, nil where the index has
// nothing of them.
func (i *Index) pair(name, system logicalcluster.Name) (own, ofSystem *cluster) {
	own = i.get(name)
	if ofSystem = own; name != system {
		ofSystem = i.get(system)
	}
	return own, ofSystem
}

// rlock locks what there is of two logical clusters, which may be the same, for
// reading.
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
	// role is nil where there is none.
	role *role
	// added are cluster roles as of a version, of which role has the rules of those
	// that it aggregates, besides its own.
	added   []*role
	version uint64
}

// grants are those of one user, each role once, that have not been visited yet. They
// are looked up with the locks of two logical clusters.
type grants struct {
	own, ofSystem *cluster

	list []grant
	// seen has the roles of list, and of those before, once they are many.
	seen map[grantKey]struct{}
	// lookUps is how many there were since the locks were taken.
	lookUps int
	// missing is how many roles did not exist.
	missing int
	walk    walk
}

var pool = sync.Pool{New: func() any { return &grants{} }}

// newGrants returns grants without any, with the locks, for one visit, which ends
// without: each request makes some, which are to be released.
func newGrants(own, ofSystem *cluster) *grants {
	g := pool.Get().(*grants)
	g.own, g.ofSystem = own, ofSystem
	g.walk = walk{cluster: own, check: checkEvery}
	rlock(own, ofSystem)
	return g
}

func (g *grants) release() {
	g.walk.leave()
	if g.seen == nil { // the memory of many is not kept
		clear(g.list)
		*g = grants{list: g.list[:0]}
		pool.Put(g)
	}
}

// ofUser looks up what a user name and groups have by the bindings of a logical
// cluster, which may be nil, and visits in between. It returns without the locks
// where there is no more to do.
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

// lookedUp counts a look-up. After many it gives the locks away, visits, and takes
// them again if there is more to do.
func (g *grants) lookedUp(ctx context.Context, f visitor) (more bool, err error) {
	if g.lookUps++; g.lookUps < pause {
		return true, nil
	}
	if more, err := g.visit(ctx, f); !more {
		return false, err
	}
	g.remember()
	clear(g.list)
	g.list, g.lookUps = g.list[:0], 0
	rlock(g.own, g.ofSystem)
	return true, nil
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

// add adds the role that a binding of a logical cluster refers to, unless it is there.
// Cluster roles that it does not have are the system's.
func (g *grants) add(c *cluster, b *binding, subject subjectKey) {
	added := grant{binding: b, subject: subject, role: c.resolve(g.ofSystem, b.ref, b.namespace)}
	// A role of the system's is aggregated there; here it has what this logical
	// cluster adds.
	if r := added.role; r != nil && len(r.aggregates) > 0 && len(c.labelled.all) > 0 && c.roles[objectKey{name: b.ref.Name}] != r {
		added.added, added.version = c.labelled.all, c.version
	}
	if g.first(&added) {
		g.list = append(g.list, added)
	}
}

// remember has seen have the roles of list.
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
	// Of roles that do not exist, which cost a tenant nothing, few are named.
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

// visit gives the locks away, and calls f for each rule, until it returns false or ctx
// ends.
func (g *grants) visit(ctx context.Context, f visitor) (more bool, err error) {
	runlock(g.own, g.ofSystem)
	w := &g.walk
	if err := w.step(ctx, g.lookUps*lookUp); err != nil {
		return false, err
	}
	for i := range g.list {
		found := &g.list[i]
		if found.role == nil {
			err := errNotFound
			if g.missing++; g.missing <= maxFailures {
				err = notFound(found.binding.ref)
			}
			if !f(found.binding, found.subject, nil, err) {
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

// selects reports whether r aggregates another role.
func (r *role) selects(other *role) bool {
	for _, selector := range r.aggregates {
		if selector.Matches(other.labels) {
			return true
		}
	}
	return false
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

// errNotFound is the error of further ones: no answer names them.
var errNotFound = errors.New("a role that is bound does not exist")

// notFound is the error of a binding whose role does not exist.
func notFound(ref rbacv1.RoleRef) error {
	switch ref.Kind {
	case "Role", "ClusterRole":
		return apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: strings.ToLower(ref.Kind)}, ref.Name)
	default:
		return fmt.Errorf("unsupported role reference kind: %q", ref.Kind)
	}
}

// rulesIn returns the rules of the role that a binding in a namespace of a
// logical cluster refers to.
func (i *Index) rulesIn(ctx context.Context, name, system logicalcluster.Name, ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	own, ofSystem := i.pair(name, system)
	c := own
	if c == nil {
		c = &cluster{}
	}
	var missing error
	var rules collected
	found := newGrants(own, ofSystem)
	defer found.release()
	found.add(c, &binding{objectKey: objectKey{namespace: namespace}, ref: ref}, subjectKey{})
	_, err := found.visit(ctx, func(_ *binding, _ subjectKey, rule *rbacv1.PolicyRule, err error) bool {
		missing = err
		return err == nil && rules.add(rule)
	})
	if err := cmp.Or(err, missing); err != nil {
		return nil, err
	}
	if rules.left {
		resource := map[bool]string{true: "roles", false: "clusterroles"}[ref.Kind == "Role"]
		return nil, apierrors.NewForbidden(rbacv1.Resource(resource), ref.Name, errManyRules)
	}
	return rules.list, nil
}
