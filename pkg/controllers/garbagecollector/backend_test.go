package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/test/crash"
)

// model is an in-memory backend. The collector observes the changes of each resource with a different delay.
type model struct {
	// The collector crashes, or continues after a write that fails temporarily.
	crash.Process
	continues bool

	t       *testing.T
	random  *rand.Rand
	c       *collector
	version int

	stored, seen map[Item]object
	unseen       map[string][]change
	unserved     map[string]bool
	removed      map[types.UID]bool
	events       []string
	queue        map[Item]bool

	// unreadable makes some reads fail.
	unreadable bool
	// writing is called before a write; it may be nil.
	writing func()
}

var errTimeout = errors.New("etcd request timed out")

func (m *model) failing() error {
	if m.unreadable && m.random.IntN(3) == 0 {
		return errTimeout
	}
	return nil
}

type change struct {
	item          Item
	before, after object
}

var worldKinds = map[string]storage.Kind{
	"ConfigMap":      {Namespaced: true, Prefix: "/core/configmaps/"},
	"Secret":         {Namespaced: true, Prefix: "/core/secrets/"},
	"Cluster":        {Prefix: "/example.com/clusters/"},
	"LogicalCluster": {Prefix: "/core.kcp.io/logicalclusters/"},
	"Bound":          {Namespaced: true, Prefix: "/example.com/bounds/", Identity: "abc"},
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), stored: map[Item]object{}, seen: map[Item]object{},
		unseen: map[string][]change{}, unserved: map[string]bool{}, removed: map[types.UID]bool{}, queue: map[Item]bool{},
	}
	m.c = newCollector(nil)
	m.c.backend = m
	return m
}

func (m *model) KindOf(_ context.Context, _ logicalcluster.Name, kind schema.GroupVersionKind) (storage.Kind, bool, error) {
	k, ok := worldKinds[kind.Kind]
	return k, ok && !m.unserved[k.Prefix], m.failing()
}

func (m *model) Served(_ context.Context, _ logicalcluster.Name, prefix, _ string) (storage.Kind, bool, error) {
	return storage.Kind{Prefix: prefix}, !m.unserved[prefix], m.failing()
}

func (m *model) get(_ context.Context, item Item) (object, error) {
	if err := m.failing(); err != nil {
		return object{}, err
	}
	if m.random.IntN(2) == 0 {
		return m.stored[item], nil
	}
	return m.seen[item], nil
}

func (m *model) read(_ context.Context, item Item) (object, error) {
	if err := m.failing(); err != nil {
		return object{}, err
	}
	return m.stored[item], nil
}

func (m *model) catchUp(context.Context, Item, object) error {
	if err := m.failing(); err != nil {
		return err
	}
	for prefix := range m.unseen {
		for m.deliver(prefix) {
		}
	}
	return nil
}

func (m *model) inOtherNamespace(_ context.Context, at Item, uid types.UID) bool {
	for item, o := range m.seen {
		if o.uid == uid && item.prefix() == at.prefix() && item.LogicalCluster() == at.LogicalCluster() && item.key().Name == at.key().Name {
			return true
		}
	}
	return false
}

func (m *model) report(_ context.Context, _ storage.Kind, item Item, _ object, r metav1.OwnerReference) {
	// A repeated Event already exists.
	if event := fmt.Sprintf("%s: %s", item, r.Name); !slices.Contains(m.events, event) {
		m.events = append(m.events, event)
	}
}

// deliver makes the next change of a resource visible.
func (m *model) deliver(prefix string) bool {
	if len(m.unseen[prefix]) == 0 {
		return false
	}
	next := m.unseen[prefix][0]
	m.unseen[prefix] = m.unseen[prefix][1:]
	if next.after.uid == "" {
		delete(m.seen, next.item)
	} else {
		m.seen[next.item] = next.after
	}
	m.c.graph.changed(next.item, next.before, next.after)
	return true
}

func (m *model) set(item Item, o object) {
	before := m.stored[item]
	if o.uid == "" || o.deleting && len(o.finalizers) == 0 {
		o = object{}
		delete(m.stored, item)
		m.removed[before.uid] = true
	} else {
		m.version++
		o.version = strconv.Itoa(m.version)
		o.orphaning = slices.Contains(o.finalizers, metav1.FinalizerOrphanDependents)
		o.foreground = slices.Contains(o.finalizers, metav1.FinalizerDeleteDependents)
		m.stored[item] = o
	}
	m.unseen[item.prefix()] = append(m.unseen[item.prefix()], change{item, before, o})
}

var (
	errNotFound = apierrors.NewNotFound(schema.GroupResource{}, "")
	errConflict = apierrors.NewConflict(schema.GroupResource{}, "", nil)
)

// change makes a write that requires the version o of an object.
func (m *model) change(item Item, o object, write func(is object)) error {
	m.interrupt()
	is := m.stored[item]
	switch {
	case is.uid == "":
		return errNotFound
	case o.uid != is.uid, o.version != is.version:
		return errConflict
	}
	return m.Write(func() { write(is) })
}

func (m *model) remove(_ context.Context, _ storage.Kind, item Item, o object, policy metav1.DeletionPropagation) error {
	return m.change(item, o, func(is object) {
		m.mustBeGarbage(item, is)
		m.delete(item, policy)
	})
}

// delete simulates an API server.
func (m *model) delete(item Item, policy metav1.DeletionPropagation) {
	is := m.stored[item]
	require.NotEmpty(m.t, is.uid, item)
	is.finalizers = slices.DeleteFunc(slices.Clone(is.finalizers), func(name string) bool {
		return name == metav1.FinalizerOrphanDependents || name == metav1.FinalizerDeleteDependents
	})
	switch policy {
	case metav1.DeletePropagationForeground:
		is.finalizers = append(is.finalizers, metav1.FinalizerDeleteDependents)
	case metav1.DeletePropagationOrphan:
		is.finalizers = append(is.finalizers, metav1.FinalizerOrphanDependents)
	case metav1.DeletePropagationBackground:
	}
	is.deleting = true
	m.set(item, is)
}

func (m *model) patch(_ context.Context, _ storage.Kind, item Item, o object, p patch) error {
	return m.change(item, o, func(is object) {
		if p.references != nil {
			is.references = p.references
		}
		if p.finalizers != nil {
			is.finalizers = p.finalizers
		}
		m.set(item, is)
	})
}

func (m *model) step() bool {
	var can []func()
	for _, prefix := range slices.Sorted(maps.Keys(m.unseen)) {
		if len(m.unseen[prefix]) > 0 {
			can = append(can, func() { m.deliver(prefix) })
		}
	}
	todo := m.c.graph.take()
	for _, item := range todo.items {
		m.queue[item] = true
	}
	for _, o := range todo.owners {
		for _, d := range m.c.graph.dependentsOf(o) {
			m.queue[d.item] = true
		}
	}
	for _, item := range slices.Sorted(maps.Keys(m.queue)) {
		can = append(can, func() {
			delete(m.queue, item)
			_, err := m.c.collect(m.t.Context(), item)
			switch {
			case errors.Is(err, crash.Err) && m.continues:
				m.At, m.queue[item] = 0, true
			case errors.Is(err, crash.Err):
				m.crash()
			case err != nil:
				require.True(m.t, apierrors.IsConflict(err) || errors.Is(err, errTimeout), "%v", err)
				m.queue[item] = true
			}
		})
	}
	if len(can) == 0 {
		return false
	}
	can[m.random.IntN(len(can))]()
	return true
}

// rest runs the collector until it is idle.
func (m *model) rest() {
	for range 10000 {
		if !m.step() {
			return
		}
	}
	m.t.Fatal("the collector does not become idle")
}

func (m *model) names() []string {
	var names []string
	for item := range m.stored {
		names = append(names, item.key().Name)
	}
	slices.Sort(names)
	return names
}

func (m *model) redefine(prefix string, served bool) {
	m.unserved[prefix] = !served
	for _, item := range m.c.parked.take("c") {
		m.queue[item] = true
	}
}

func at(kind, name string) Item { return in("c", "n", kind, name) }

func in(cluster logicalcluster.Name, namespace, kind, name string) Item {
	k := worldKinds[kind]
	key := k.Prefix
	if k.Identity != "" {
		key += ":" + k.Identity + "/"
	}
	key += string(cluster) + "/"
	if k.Namespaced {
		key += namespace + "/"
	}
	return Item(key + name)
}

// thing returns an object with a UID that is derived from its name.
func thing(name string, references ...metav1.OwnerReference) object {
	return object{uid: types.UID("uid-" + name), references: references}
}

func ref(kind, name string) metav1.OwnerReference {
	version := "v1"
	if kind != "ConfigMap" && kind != "Secret" {
		version = "example.com/v1"
	}
	return metav1.OwnerReference{APIVersion: version, Kind: kind, Name: name, UID: types.UID("uid-" + name)}
}

func blocking(r metav1.OwnerReference) metav1.OwnerReference {
	r.BlockOwnerDeletion = new(bool)
	*r.BlockOwnerDeletion = true
	return r
}
