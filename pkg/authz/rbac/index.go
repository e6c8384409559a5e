package rbac

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kcp-dev/logicalcluster/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
)

// Informers of all logical clusters. Shards replicate cluster roles and their bindings.
type Informers struct {
	Roles               *client.Informer[*rbacv1.Role]
	RoleBindings        *client.Informer[*rbacv1.RoleBinding]
	ClusterRoles        *replicas.Dual[*rbacv1.ClusterRole]
	ClusterRoleBindings *replicas.Dual[*rbacv1.ClusterRoleBinding]
}

// HasSynced reports whether the objects of this shard have been read.
func (i Informers) HasSynced() bool {
	return i.Roles.HasSynced() && i.RoleBindings.HasSynced() && i.ClusterRoles.HasSynced() && i.ClusterRoleBindings.HasSynced()
}

// Index indexes the roles and bindings of all logical clusters by subject. It is safe for concurrent use.
type Index struct {
	// writing serializes writers.
	writing sync.Mutex
	// mu guards the map briefly. Each logical cluster has its own lock, so that a large one does not delay others.
	mu       sync.RWMutex
	clusters map[logicalcluster.Name]*cluster

	fresh freshness
}

// NewIndex returns an empty index.
func NewIndex() *Index { return &Index{clusters: map[logicalcluster.Name]*cluster{}} }

// cluster contains the roles and bindings of one logical cluster.
type cluster struct {
	// Readers hold mu for a few lookups at a time; see pause.
	mu sync.RWMutex
	// version is incremented by each change.
	version uint64
	// roles are keyed by namespace and name; cluster roles have no namespace.
	roles map[objectKey]*role
	// labelled are the cluster roles with labels, which can be aggregated.
	labelled list[*role]
	// bindings are keyed by name, and subjects by subject.
	bindings small[objectKey, *binding]
	subjects small[subjectKey, list[*binding]]
	// busy is a semaphore for visits of many rules; see manyValues.
	busy chan struct{}
}

type objectKey struct{ namespace, name string }

// subjectKey is a subject in a namespace, or in all namespaces if namespace is empty.
type subjectKey struct {
	kind      subjectKind
	name      string
	namespace string
}

type subjectKind uint8

const (
	kindUser subjectKind = iota
	kindGroup
)

// role is an immutable role or cluster role.
type role struct {
	listed

	rules  []rbacv1.PolicyRule
	labels labels.Set
	// aggregates select the cluster roles that the role aggregates.
	aggregates []labels.Selector
}

// binding is an immutable binding with distinct subjects.
type binding struct {
	listed
	objectKey
	ref      rbacv1.RoleRef
	subjects []subjectKey
}

// get returns the content of a logical cluster, or nil.
func (i *Index) get(name logicalcluster.Name) *cluster {
	i.mu.RLock()
	defer i.mu.RUnlock()
	return i.clusters[name]
}

// change calls f to change the content of a logical cluster, and removes it from the index if it is empty.
func (i *Index) change(name logicalcluster.Name, f func(c *cluster)) {
	i.writing.Lock()
	defer i.writing.Unlock()
	c := i.get(name)
	known := c != nil
	if !known {
		c = &cluster{busy: make(chan struct{}, 1)}
	}
	c.mu.Lock()
	c.version++
	f(c)
	empty := len(c.roles) == 0 && c.bindings.len() == 0
	c.mu.Unlock()
	if known != empty {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if empty {
		delete(i.clusters, name)
	} else {
		i.clusters[name] = c
	}
}

func (i *Index) setRole(obj metav1.Object, r *role) {
	i.change(logicalcluster.From(obj), func(c *cluster) {
		if c.roles == nil {
			c.roles = map[objectKey]*role{}
		}
		c.unlabel(keyOf(obj))
		c.roles[keyOf(obj)] = r
		if len(r.labels) > 0 {
			c.labelled.add(r)
		}
	})
}

func (i *Index) removeRole(obj metav1.Object) {
	i.change(logicalcluster.From(obj), func(c *cluster) {
		c.unlabel(keyOf(obj))
		delete(c.roles, keyOf(obj))
	})
}

// unlabel removes a replaced or deleted role from the roles with labels.
func (c *cluster) unlabel(key objectKey) {
	if old := c.roles[key]; old != nil && len(old.labels) > 0 {
		old.removed.Store(c.version)
		c.labelled.removed(c.version)
	}
}

func (i *Index) setBinding(obj metav1.Object, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
	b := &binding{objectKey: keyOf(obj), ref: ref, subjects: make([]subjectKey, 0, len(subjects))}
	known := make(map[subjectKey]struct{}, len(subjects))
	for _, subject := range subjects {
		key, ok := subjectOf(subject, obj.GetNamespace())
		if _, again := known[key]; ok && !again {
			known[key] = struct{}{}
			b.subjects = append(b.subjects, key)
		}
	}
	i.change(logicalcluster.From(obj), func(c *cluster) {
		c.unbind(b.objectKey)
		c.bindings.set(b.objectKey, b)
		for _, subject := range b.subjects {
			of := c.subjects.get(subject)
			of.add(b)
			c.subjects.set(subject, of)
		}
	})
}

func (i *Index) removeBinding(obj metav1.Object) {
	i.change(logicalcluster.From(obj), func(c *cluster) { c.unbind(keyOf(obj)) })
}

// unbind removes a binding from all of its subjects.
func (c *cluster) unbind(key objectKey) {
	old := c.bindings.get(key)
	if old == nil {
		return
	}
	c.bindings.remove(key)
	old.removed.Store(c.version)
	for _, subject := range old.subjects {
		of := c.subjects.get(subject)
		if of.removed(c.version); len(of.all) == 0 {
			c.subjects.remove(subject)
		} else {
			c.subjects.set(subject, of)
		}
	}
}

func subjectOf(subject rbacv1.Subject, namespace string) (subjectKey, bool) {
	switch subject.Kind {
	case rbacv1.UserKind:
		return subjectKey{kindUser, subject.Name, namespace}, true
	case rbacv1.GroupKind:
		return subjectKey{kindGroup, subject.Name, namespace}, true
	case rbacv1.ServiceAccountKind:
		of := cmp.Or(subject.Namespace, namespace)
		return subjectKey{kindUser, serviceaccount.MakeUsername(of, subject.Name), namespace}, of != ""
	default:
		return subjectKey{}, false
	}
}

func keyOf(obj metav1.Object) objectKey { return objectKey{obj.GetNamespace(), obj.GetName()} }

// Follow updates the index from the informers of this shard. It must be called once, before they run.
func (i *Index) Follow(informers Informers) {
	follow(informers.Roles, &i.fresh, resourceRoles,
		func(obj *rbacv1.Role) { i.setRole(obj, &role{rules: distinct(obj.Rules)}) }, i.removeRole)
	follow(informers.ClusterRoles.Own(), &i.fresh, resourceClusterRoles, i.setClusterRole, i.removeRole)
	follow(informers.RoleBindings, &i.fresh, resourceRoleBindings,
		func(obj *rbacv1.RoleBinding) { i.setBinding(obj, obj.RoleRef, obj.Subjects) }, i.removeBinding)
	follow(informers.ClusterRoleBindings.Own(), &i.fresh, resourceClusterRoleBindings, i.setClusterRoleBinding, i.removeBinding)
}

func follow[T client.Object](
	informer *client.Informer[T], fresh *freshness, resource resourceIndex, set func(T), remove func(metav1.Object),
) {
	saw := func(obj T) {
		if version, err := strconv.ParseUint(obj.GetResourceVersion(), 10, 64); err == nil {
			fresh.saw(resource, version)
		}
	}
	informer.AddEventHandler(client.Handler[T]{
		OnAdd:    func(obj T, _ bool) { set(obj); saw(obj) },
		OnUpdate: func(_, obj T) { set(obj); saw(obj) },
		OnDelete: func(last T, _ bool) { remove(last); saw(last) },
	})
}

// distinct removes duplicate rules, because each decision checks all rules of a role.
func distinct(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	if len(rules) < 2 { //nolint:mnd // a single rule has no duplicates
		return rules
	}
	known := make(map[string]struct{}, len(rules))
	unique := make([]rbacv1.PolicyRule, 0, len(rules))
	var text strings.Builder
	for _, rule := range rules {
		text.Reset()
		for _, values := range [][]string{rule.Verbs, rule.APIGroups, rule.Resources, rule.ResourceNames, rule.NonResourceURLs} {
			for _, value := range values {
				text.WriteString(strconv.Quote(value))
			}
			text.WriteByte(';')
		}
		key := text.String()
		if _, again := known[key]; !again {
			known[key] = struct{}{}
			unique = append(unique, rule)
		}
	}
	if len(unique) == len(rules) {
		return rules
	}
	return slices.Clip(unique)
}

func (i *Index) setClusterRole(obj *rbacv1.ClusterRole) {
	r := &role{rules: distinct(obj.Rules), labels: obj.Labels}
	if aggregation := obj.AggregationRule; aggregation != nil {
		for n := range aggregation.ClusterRoleSelectors {
			selector, err := request.LabelSelector(&aggregation.ClusterRoleSelectors[n])
			if err == nil && !selector.Empty() {
				r.aggregates = append(r.aggregates, selector)
			}
		}
	}
	i.setRole(obj, r)
}

func (i *Index) setClusterRoleBinding(obj *rbacv1.ClusterRoleBinding) {
	i.setBinding(obj, obj.RoleRef, obj.Subjects)
}

// listed is embedded by the elements of a list.
type listed struct {
	// removed is the first version of the logical cluster without the element; 0 if it exists.
	removed atomic.Uint64
}

// in reports whether the element existed at a version.
func (l *listed) in(version uint64) bool {
	removed := l.removed.Load()
	return removed == 0 || removed > version
}

// list can be read without the lock that writers hold. Readers take the slice with the lock held and skip
// elements that did not exist at their version. Elements are appended and never moved, so that changes are
// cheap. The slice is replaced when half of its elements have been removed.
type list[E interface{ in(version uint64) bool }] struct {
	all   []E
	stale int
}

func (l *list[E]) add(e E) { l.all = append(l.all, e) }

// removed counts a removed element. version is the latest version.
func (l *list[E]) removed(version uint64) {
	l.stale++
	if 2*l.stale < len(l.all) { //nolint:mnd // half
		return
	}
	remaining := make([]E, 0, len(l.all)-l.stale)
	for _, e := range l.all {
		if e.in(version) {
			remaining = append(remaining, e)
		}
	}
	l.all, l.stale = remaining, 0
}

// fewEntries is the maximum number of entries in the slice.
const fewEntries = 4

// small is a map for logical clusters with few entries. Up to fewEntries are in a slice, because a Go map
// takes up to seven hundred bytes for the first entry. The zero value is ready to use.
type small[K comparable, V any] struct {
	few  []entry[K, V]
	many map[K]V
}

type entry[K comparable, V any] struct {
	key   K
	value V
}

func (s *small[K, V]) len() int { return len(s.few) + len(s.many) }

// find returns the index in few, or -1.
func (s *small[K, V]) find(key K) int {
	for i := range s.few {
		if s.few[i].key == key {
			return i
		}
	}
	return -1
}

// get returns the zero value if there is no entry.
func (s *small[K, V]) get(key K) (value V) {
	if s.many != nil {
		return s.many[key]
	}
	if at := s.find(key); at >= 0 {
		value = s.few[at].value
	}
	return value
}

func (s *small[K, V]) set(key K, value V) {
	at := s.find(key)
	switch {
	case s.many != nil:
		s.many[key] = value
	case at >= 0:
		s.few[at].value = value
	case len(s.few) < fewEntries:
		s.few = append(s.few, entry[K, V]{key, value})
	default:
		s.many = make(map[K]V, fewEntries+1)
		for _, e := range s.few {
			s.many[e.key] = e.value
		}
		s.many[key], s.few = value, nil
	}
}

func (s *small[K, V]) remove(key K) {
	delete(s.many, key)
	if at := s.find(key); at >= 0 {
		last := len(s.few) - 1
		s.few[at] = s.few[last]
		s.few[last] = entry[K, V]{}
		s.few = s.few[:last]
	}
}
