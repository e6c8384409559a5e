package versions

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/customresource/customresourcetest"
)

func stateOf(i int, version string) stateKey {
	return stateKey{uid: types.UID(fmt.Sprint("uid-", i)), resourceVersion: version}
}

// What all memories hold together is bounded, whoever remembers how much; one
// that is used a lot leaves the others what they use.
func TestMemoryBudget(t *testing.T) {
	const limit = 64 << 10
	b := newBudget(limit)
	var many []*memory[int]
	for range 40 {
		many = append(many, newMemory[int](b))
	}
	large, small := many[0], many[1:]
	var workers sync.WaitGroup
	for part := range 4 {
		workers.Go(func() {
			for i := range 5000 {
				large.remember(stateOf(part*5000+i, "1"), i, 100)
			}
		})
	}
	for _, m := range small {
		workers.Go(func() { m.remember(stateOf(0, "1"), 7, 1000) })
	}
	workers.Wait()
	for i := range 5000 {
		large.remember(stateOf(i, "2"), i, 100)
	}
	held := int64(0)
	for _, m := range many {
		held += m.held()
	}
	require.LessOrEqual(t, held, int64(limit))
	require.Equal(t, int64(limit)-held, b.left)
	require.Greater(t, large.held(), int64(1000))
	for _, m := range small {
		value, ok := m.recall(stateOf(0, "1"))
		require.True(t, ok, "the small ones keep what they have")
		require.Equal(t, 7, value)
	}
	large.remember(stateOf(1, "3"), 1, limit)
	_, ok := large.recall(stateOf(1, "3"))
	require.False(t, ok, "what would drive out too much is not remembered")

	for _, m := range many {
		m.close()
		m.remember(stateOf(1, "4"), 1, 10)
	}
	require.Equal(t, int64(limit), b.left)
	require.Empty(t, b.memories)
}

// A memory holds one state of each object, and nothing once it is of no use.
func TestMemoryForgets(t *testing.T) {
	b := newBudget(1 << 10)
	m := newMemory[string](b)
	m.remember(stateOf(1, "1"), "first", 10)
	m.remember(stateOf(1, "2"), "second", 20)
	_, ok := m.recall(stateOf(1, "1"))
	require.False(t, ok)
	value, ok := m.recall(stateOf(1, "2"))
	require.True(t, ok)
	require.Equal(t, "second", value)
	require.Equal(t, int64(20), m.held())
	m.remember(stateKey{uid: "uid"}, "without a version", 10)
	require.Equal(t, int64(20), m.held())
	claimed := stateOf(1, "2")
	claimed.claims = "label=value"
	_, ok = m.recall(claimed)
	require.False(t, ok, "claims change what is shown without a new version")

	m.evictIdle()
	m.evictIdle()
	_, ok = m.recall(stateOf(1, "2"))
	require.True(t, ok)
	m.evictIdle()
	m.evictIdle()
	_, ok = m.recall(stateOf(1, "2"))
	require.True(t, ok, "it was of use in between")
	for range 3 {
		m.evictIdle()
	}
	_, ok = m.recall(stateOf(1, "2"))
	require.False(t, ok)
	require.Equal(t, int64(1<<10), b.left)
}

// The estimate of what objects take is not far from what they do.
func TestBytesOf(t *testing.T) {
	for name, spec := range map[string]func(i int) any{
		"text":   func(i int) any { return strings.Repeat(fmt.Sprint(i%10), 4096) },
		"fields": func(i int) any { return manyFields(i) },
		"items":  func(i int) any { return []any{manyFields(i), int64(i), manyFields(i), true} },
	} {
		t.Run(name, func(t *testing.T) {
			const n = 2000
			before := customresourcetest.HeapInUse()
			all := make([]*unstructured.Unstructured, 0, n)
			estimate := int64(0)
			for i := range n {
				u := customresourcetest.Widget(fmt.Sprint("w", i), map[string]any{"of": spec(i)})
				all = append(all, u)
				estimate += bytesOf(u.Object)
			}
			taken := customresourcetest.HeapInUse() - before
			runtime.KeepAlive(all)
			require.Greater(t, estimate, taken/2)
			require.Less(t, estimate, taken*2)
		})
	}
}

func manyFields(i int) map[string]any {
	m := map[string]any{}
	for j := range 20 {
		m[fmt.Sprint("field", j)] = fmt.Sprint("value", i, j)
	}
	return m
}
