package garbagecollector

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// crash starts a new collector with a complete feed.
func (m *model) crash() {
	m.At = 0
	clear(m.unseen)
	clear(m.queue)
	clear(m.seen)
	m.c = newCollector(nil)
	m.c.backend = m
	read := newGraph()
	for item, o := range m.stored {
		m.seen[item] = o
		read.changed(item, object{}, o)
	}
	m.c.graph.replace(read)
}

// mustBeGarbage fails the test if an owner of the object exists and does not wait for it, or may exist.
func (m *model) mustBeGarbage(item Item, o object) {
	m.t.Helper()
	for _, r := range o.references {
		_, err := schema.ParseGroupVersion(r.APIVersion)
		require.NoError(m.t, err, "%s was deleted although a reference is invalid", item)
		kind, served := worldKinds[r.Kind]
		served = served && !m.unserved[kind.Prefix]
		require.True(m.t, served || m.removed[r.UID], "%s was deleted although it may be owned by %s %s", item, r.Kind, r.Name)
		namespace := ""
		if kind.Namespaced {
			namespace = item.key().Namespace
			require.NotEmpty(m.t, namespace, "%s was deleted although it is cluster-scoped and its owner is not", item)
		}
		owner := m.stored[in(item.LogicalCluster(), namespace, r.Kind, r.Name)]
		require.False(m.t, owner.uid == r.UID && !owner.waits(), "%s was deleted although it is owned by %s %s", item, r.Kind, r.Name)
	}
}

// TestEveryCrash: the collector crashes before or after each write, or the write fails, in many orders of events. A new collector
// achieves the same result.
func TestEveryCrash(t *testing.T) {
	crashes := 0
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			for at, crashed := 1, true; crashed; at++ {
				crashed = false
				for seed := range uint64(8) {
					m := newModel(t, seed)
					m.At, m.Lost, m.continues = at, seed%2 == 1, seed%4 > 1
					s.play(t, m, fmt.Sprintf("seed %d, write %d, done: %t, the collector continues: %t", seed, at, m.Lost, m.continues))
					if m.At == 0 {
						crashed = true
						crashes++
					}
				}
			}
		})
	}
	require.Greater(t, crashes, 16*len(scenarios))
}

func (m *model) interrupt() {
	if m.writing != nil {
		m.writing()
	}
}

// TestChangeOfLeader: a second collector starts and makes progress before each write of the first one, which does not
// notice. The late write fails or is still valid: the result is the same, and owned objects are not deleted.
func TestChangeOfLeader(t *testing.T) {
	changes, late := 0, 0
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			for at, changed := 1, true; changed; at++ {
				changed = false
				for seed := range uint64(8) {
					m := newModel(t, seed)
					writes := 0
					m.writing = func() {
						if writes++; writes != at {
							return
						}
						changed = true
						changes++
						m.crash()
						before := m.version
						for range m.random.IntN(20) {
							m.step()
						}
						if m.version != before {
							late++
						}
					}
					s.play(t, m, fmt.Sprintf("seed %d, write %d", seed, at))
				}
			}
		})
	}
	require.Greater(t, changes, 8*len(scenarios))
	require.Greater(t, late, len(scenarios), "the other collector must write first in enough cases")
}

// TestUnreadable: an owner that cannot be read, or is of an unknown kind, is not considered absent, and failed operations
// are retried.
func TestUnreadable(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			for seed := range uint64(50) {
				m := newModel(t, seed)
				m.unreadable = true
				s.play(t, m, fmt.Sprint("seed ", seed))
			}
		})
	}
}
