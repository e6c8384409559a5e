package garbagecollector

import (
	"fmt"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	background = metav1.DeletePropagationBackground
	foreground = metav1.DeletePropagationForeground
	orphan     = metav1.DeletePropagationOrphan
)

// scenario is a guarantee of Kubernetes. The result of do must not depend on the order of events.
type scenario struct {
	name      string
	do        func(m *model)
	remaining []string
	also      func(t *testing.T, m *model)
}

func references(t *testing.T, m *model, item Item) []string {
	t.Helper()
	var names []string
	for _, r := range m.stored[item].references {
		names = append(names, r.Name)
	}
	return names
}

func wrongUID(r metav1.OwnerReference) metav1.OwnerReference {
	r.UID = "uid-of-another"
	return r
}

func orphans(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("d%d", i))
	}
	return names
}

var scenarios = []scenario{
	{name: "no reference", do: func(m *model) { m.set(at("ConfigMap", "a"), thing("a")) }, remaining: []string{"a"}},
	{name: "background, a chain of three kinds", do: func(m *model) {
		m.set(at("Cluster", "a"), thing("a"))
		m.set(at("ConfigMap", "b"), thing("b", ref("Cluster", "a")))
		m.set(at("Bound", "d"), thing("d", ref("ConfigMap", "b")))
		m.set(at("Secret", "e"), thing("e", ref("Bound", "d")))
		m.set(at("Secret", "other"), thing("other"))
		m.delete(at("Cluster", "a"), background)
	}, remaining: []string{"other"}},
	{name: "absent owner, in the first and in a later version", do: func(m *model) {
		m.set(at("ConfigMap", "a"), thing("a", ref("Secret", "never")))
		m.set(at("ConfigMap", "b"), thing("b"))
		m.rest()
		b := m.stored[at("ConfigMap", "b")]
		b.references = []metav1.OwnerReference{ref("Secret", "never")}
		m.set(at("ConfigMap", "b"), b)
	}},
	{name: "wrong UID", do: func(m *model) {
		m.set(at("Secret", "a"), thing("a"))
		m.set(at("ConfigMap", "b"), thing("b", wrongUID(ref("Secret", "a"))))
		m.set(at("ConfigMap", "good"), thing("good", ref("Secret", "a")))
	}, remaining: []string{"a", "good"}},
	{name: "recreated with another UID", do: func(m *model) {
		m.set(at("Secret", "a"), thing("a"))
		m.set(at("ConfigMap", "b"), thing("b", ref("Secret", "a")))
		m.delete(at("Secret", "a"), background)
		m.set(at("Secret", "a"), object{uid: "uid-new"})
	}, remaining: []string{"a"}},
	{name: "wrong kind with an existing UID", do: func(m *model) {
		m.set(at("Secret", "a"), thing("a"))
		m.set(at("ConfigMap", "b"), thing("b", ref("ConfigMap", "a")))
		m.set(at("ConfigMap", "good"), thing("good", ref("Secret", "a")))
	}, remaining: []string{"a", "good"}},
	{name: "existing, dangling and duplicate owners", do: func(m *model) {
		m.set(at("Secret", "a"), thing("a"))
		m.set(at("ConfigMap", "b"), thing("b", ref("Secret", "never"), ref("Secret", "a"), wrongUID(ref("Secret", "a")), ref("Secret", "never")))
	}, remaining: []string{"a", "b"}, also: func(t *testing.T, m *model) {
		require.Equal(t, []string{"a"}, references(t, m, at("ConfigMap", "b")))
	}},
	{name: "foreground, blocking and other dependents", do: func(m *model) {
		m.set(at("Secret", "a"), thing("a"))
		b := thing("b", blocking(ref("Secret", "a")))
		b.finalizers = []string{"example.com/mine"}
		m.set(at("ConfigMap", "b"), b)
		m.set(at("ConfigMap", "d"), thing("d", ref("Secret", "a")))
		m.delete(at("Secret", "a"), foreground)
	}, remaining: []string{"a", "b"}, also: func(t *testing.T, m *model) {
		require.True(t, m.stored[at("ConfigMap", "b")].deleting)
		b := m.stored[at("ConfigMap", "b")]
		b.finalizers = nil
		m.set(at("ConfigMap", "b"), b)
		m.rest()
		require.Empty(t, m.names())
	}},
	{name: "foreground, finalizer of a dependent that does not block", do: func(m *model) {
		m.set(at("Secret", "a"), thing("a"))
		b := thing("b", ref("Secret", "a"))
		b.finalizers = []string{"example.com/mine"}
		m.set(at("ConfigMap", "b"), b)
		m.delete(at("Secret", "a"), foreground)
	}, remaining: []string{"b"}},
	{name: "foreground, chain of blocking dependents", do: func(m *model) {
		m.set(at("Cluster", "a"), thing("a"))
		m.set(at("ConfigMap", "b"), thing("b", blocking(ref("Cluster", "a"))))
		m.set(at("Bound", "d"), thing("d", blocking(ref("ConfigMap", "b"))))
		e := thing("e", blocking(ref("Bound", "d")))
		e.finalizers = []string{"example.com/mine"}
		m.set(at("Secret", "e"), e)
		m.delete(at("Cluster", "a"), foreground)
	}, remaining: []string{"a", "b", "d", "e"}, also: func(t *testing.T, m *model) {
		for _, item := range []Item{at("Cluster", "a"), at("ConfigMap", "b"), at("Bound", "d")} {
			require.True(t, m.stored[item].foreground, item)
		}
		e := m.stored[at("Secret", "e")]
		e.finalizers = nil
		m.set(at("Secret", "e"), e)
		m.rest()
		require.Empty(t, m.names())
	}},
	{name: "foreground, existing second owner", do: func(m *model) {
		m.set(at("Secret", "a"), thing("a"))
		m.set(at("Secret", "second"), thing("second"))
		m.set(at("ConfigMap", "b"), thing("b", blocking(ref("Secret", "a")), ref("Secret", "second")))
		m.delete(at("Secret", "a"), foreground)
	}, remaining: []string{"b", "second"}, also: func(t *testing.T, m *model) {
		require.Equal(t, []string{"second"}, references(t, m, at("ConfigMap", "b")))
	}},
	{name: "foreground, cycle", do: func(m *model) {
		m.set(at("Secret", "a"), thing("a", blocking(ref("ConfigMap", "b"))))
		m.set(at("ConfigMap", "b"), thing("b", blocking(ref("Secret", "a"))))
		m.delete(at("Secret", "a"), foreground)
	}},
	{name: "cycle that is not deleted", do: func(m *model) {
		m.set(at("Secret", "a"), thing("a", ref("ConfigMap", "b")))
		m.set(at("ConfigMap", "b"), thing("b", ref("Secret", "a")))
	}, remaining: []string{"a", "b"}},
	{name: "orphan", do: func(m *model) {
		m.set(at("Secret", "a"), thing("a"))
		m.set(at("ConfigMap", "b"), thing("b", blocking(ref("Secret", "a"))))
		m.set(at("ConfigMap", "d"), thing("d", ref("ConfigMap", "b")))
		m.delete(at("Secret", "a"), orphan)
	}, remaining: []string{"b", "d"}, also: func(t *testing.T, m *model) {
		require.Empty(t, references(t, m, at("ConfigMap", "b")))
		require.Equal(t, []string{"b"}, references(t, m, at("ConfigMap", "d")))
	}},
	{name: "orphan, many dependents", do: func(m *model) {
		m.set(at("Secret", "a"), thing("a"))
		for _, name := range orphans(32) {
			m.set(at("ConfigMap", name), thing(name, ref("Secret", "a")))
		}
		m.delete(at("Secret", "a"), orphan)
	}, remaining: orphans(32), also: func(t *testing.T, m *model) { require.Zero(t, m.c.graph.size()) }},
	{name: "orphan in a chain below a background deletion", do: func(m *model) {
		m.set(at("Secret", "a"), thing("a"))
		b := thing("b", ref("Secret", "a"))
		b.finalizers = []string{metav1.FinalizerOrphanDependents}
		m.set(at("ConfigMap", "b"), b)
		m.set(at("ConfigMap", "d"), thing("d", ref("ConfigMap", "b")))
		m.rest()
		m.delete(at("Secret", "a"), background)
	}, remaining: []string{"d"}},
	{name: "unserved owner", do: func(m *model) {
		m.unserved["/example.com/bounds/"] = true
		m.set(at("ConfigMap", "b"), thing("b", ref("Bound", "never"), ref("Secret", "never")))
		m.set(at("ConfigMap", "d"), thing("d", metav1.OwnerReference{APIVersion: "a/b/c", Kind: "None", Name: "x", UID: "y"}))
	}, remaining: []string{"b", "d"}, also: func(t *testing.T, m *model) {
		m.redefine("/example.com/bounds/", true)
		m.rest()
		require.Equal(t, []string{"d"}, m.names())
	}},
	{name: "unserved object", do: func(m *model) {
		m.unserved["/example.com/bounds/"] = true
		m.set(at("Bound", "b"), thing("b", ref("Secret", "never")))
	}, remaining: []string{"b"}, also: func(t *testing.T, m *model) {
		m.redefine("/example.com/bounds/", true)
		m.rest()
		require.Empty(t, m.names())
	}},
	{name: "an owner in another namespace", do: func(m *model) {
		m.set(in("c", "elsewhere", "Secret", "a"), thing("a"))
		m.rest()
		m.set(at("ConfigMap", "b"), thing("b", ref("Secret", "a")))
		m.set(in("c", "elsewhere", "ConfigMap", "good"), thing("good", ref("Secret", "a")))
	}, remaining: []string{"a", "good"}, also: func(t *testing.T, m *model) {
		require.Equal(t, []string{"/core/configmaps/c/n/b: a"}, m.events)
	}},
	{name: "a namespaced owner of a cluster-scoped object", do: func(m *model) {
		m.set(at("Cluster", "b"), thing("b", ref("Secret", "a")))
	}, remaining: []string{"b"}, also: func(t *testing.T, m *model) {
		require.Equal(t, []string{"/example.com/clusters/c/b: a"}, m.events)
	}},
	{name: "a cluster-scoped owner", do: func(m *model) {
		m.set(at("Cluster", "a"), thing("a"))
		m.set(in("c", "one", "ConfigMap", "b"), thing("b", ref("Cluster", "a")))
		m.set(in("c", "two", "ConfigMap", "b"), thing("b", ref("Cluster", "a")))
	}, remaining: []string{"a", "b", "b"}},
	{name: "two logical clusters with the same names and UIDs", do: func(m *model) {
		for _, cluster := range []string{"c", "other"} {
			m.set(in(logicalcluster.Name(cluster), "n", "Secret", "a"), thing("a"))
			m.set(in(logicalcluster.Name(cluster), "n", "ConfigMap", "b"), thing("b", blocking(ref("Secret", "a"))))
		}
		m.set(in("third", "n", "ConfigMap", "d"), thing("d", ref("Secret", "a")))
		m.delete(at("Secret", "a"), foreground)
	}, remaining: []string{"a", "b"}, also: func(t *testing.T, m *model) {
		require.Equal(t, types.UID("uid-a"), m.stored[in("other", "n", "Secret", "a")].uid)
	}},
	{name: "object that is being deleted", do: func(m *model) {
		b := thing("b", ref("Secret", "never"), ref("Secret", "never2"))
		b.finalizers, b.deleting = []string{"example.com/mine"}, true
		m.set(at("ConfigMap", "b"), b)
	}, remaining: []string{"b"}, also: func(t *testing.T, m *model) {
		require.Len(t, references(t, m, at("ConfigMap", "b")), 2)
	}},
	{name: "LogicalCluster as dependent and as owner", do: func(m *model) {
		m.set(at("LogicalCluster", "cluster"), thing("cluster", ref("Cluster", "never")))
		m.c.graph.todo.items = append(m.c.graph.todo.items, at("LogicalCluster", "cluster"))
		m.set(at("ConfigMap", "b"), thing("b", ref("LogicalCluster", "cluster")))
	}, remaining: []string{"b", "cluster"}},
	{name: "many dependents", do: func(m *model) {
		m.set(at("Secret", "a"), thing("a"))
		for i := range 48 {
			name := fmt.Sprintf("d%d", i)
			m.set(at("ConfigMap", name), thing(name, blocking(ref("Secret", "a"))))
		}
		m.delete(at("Secret", "a"), foreground)
	}},
}

// play runs a scenario, and checks the result.
func (s *scenario) play(t *testing.T, m *model, where string) {
	t.Helper()
	s.do(m)
	m.rest()
	require.ElementsMatch(t, s.remaining, m.names(), where)
	if s.also != nil {
		s.also(t, m)
	}
	require.Equal(t, countReferences(m), m.c.graph.size(), "the graph must contain the stored references, "+where)
}

// TestScenarios runs each scenario in many orders of events.
func TestScenarios(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			for seed := range uint64(200) {
				s.play(t, newModel(t, seed), fmt.Sprint("seed ", seed))
			}
		})
	}
}

// TestDeletedKinds: instances of a deleted definition are deleted, and their dependents, although the kind is not served
// any more. Other dependents are retained until it is served again.
func TestDeletedKinds(t *testing.T) {
	for seed := range uint64(200) {
		m := newModel(t, seed)
		m.unserved["/example.com/clusters/"] = true
		m.set(at("Bound", "b"), thing("b"))
		for _, name := range orphans(18) {
			m.set(at("ConfigMap", name), thing(name, ref("Bound", "b")))
		}
		m.set(at("ConfigMap", "other"), thing("other", ref("Bound", "b"), ref("Cluster", "never")))
		m.rest()
		m.delete(at("Bound", "b"), background)
		m.unserved["/example.com/bounds/"] = true
		m.rest()
		require.Equal(t, []string{"other"}, m.names(), "seed %d", seed)
		m.set(at("ConfigMap", "late"), thing("late", ref("Bound", "gone")))
		m.rest()
		require.Equal(t, []string{"late", "other"}, m.names(), "seed %d", seed)

		// The kind is served again, with another object of that name.
		m.set(at("Bound", "b"), object{uid: "uid-new"})
		m.redefine("/example.com/bounds/", true)
		m.rest()
		require.Equal(t, []string{"b", "other"}, m.names(), "seed %d", seed)
		m.redefine("/example.com/clusters/", true)
		m.rest()
		require.Equal(t, []string{"b"}, m.names(), "seed %d", seed)
		require.Empty(t, m.c.graph.deleted)
	}
}

// countReferences returns the number of stored references to distinct UIDs.
func countReferences(m *model) int {
	n := 0
	for item, o := range m.stored {
		if !unowned(item) {
			n += len(uidsOf(o))
		}
	}
	return n
}

// TestLanes: slow logical clusters share a part of the workers.
func TestLanes(t *testing.T) {
	l := newLanes()
	for _, cluster := range []logicalcluster.Name{"a", "b", "c", "d", "e"} {
		done, err := l.acquire(cluster)
		require.NoError(t, err)
		done(apierrors.NewTimeoutError("", 0))
	}
	for range slowWorkers {
		_, err := l.acquire("a")
		require.NoError(t, err)
	}
	_, err := l.acquire("b")
	require.ErrorIs(t, err, errBusy)
	_, err = l.acquire("quick")
	require.NoError(t, err)
}
