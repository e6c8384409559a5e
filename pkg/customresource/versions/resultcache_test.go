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

	"github.com/shardplane/shardplane/test/customresourcetest"
	"github.com/shardplane/shardplane/test/heap"
)

func stateOf(i int, version string) stateKey {
	return stateKey{uid: types.UID(fmt.Sprint("uid-", i)), resourceVersion: version}
}

// All caches together stay within the budget; a busy one does not displace the others.
func TestMemoryBudget(t *testing.T) {
	const limit = 64 << 10
	b := newBudget(limit)
	var many []*resultCache[int]
	for range 40 {
		many = append(many, newResultCache[int](b))
	}
	large, small := many[0], many[1:]
	var workers sync.WaitGroup
	for part := range 4 {
		workers.Go(func() {
			for i := range 5000 {
				large.put(stateOf(part*5000+i, "1"), i, 100)
			}
		})
	}
	for _, m := range small {
		workers.Go(func() { m.put(stateOf(0, "1"), 7, 1000) })
	}
	workers.Wait()
	for i := range 5000 {
		large.put(stateOf(i, "2"), i, 100)
	}
	held := int64(0)
	for _, m := range many {
		held += m.size()
	}
	require.LessOrEqual(t, held, int64(limit))
	require.Equal(t, int64(limit)-held, b.available)
	require.Greater(t, large.size(), int64(1000))
	for _, m := range small {
		value, ok := m.get(stateOf(0, "1"))
		require.True(t, ok, "small caches must keep their entries")
		require.Equal(t, 7, value)
	}
	large.put(stateOf(1, "3"), 1, limit)
	_, ok := large.get(stateOf(1, "3"))
	require.False(t, ok, "a result as large as the limit must not be cached")

	for _, m := range many {
		m.close()
		m.put(stateOf(1, "4"), 1, 10)
	}
	require.Equal(t, int64(limit), b.available)
	require.Empty(t, b.caches)
}

// A cache contains one state of each object, and is emptied when it is idle.
func TestResultCacheIsEmptied(t *testing.T) {
	b := newBudget(1 << 10)
	m := newResultCache[string](b)
	m.put(stateOf(1, "1"), "first", 10)
	m.put(stateOf(1, "2"), "second", 20)
	_, ok := m.get(stateOf(1, "1"))
	require.False(t, ok)
	value, ok := m.get(stateOf(1, "2"))
	require.True(t, ok)
	require.Equal(t, "second", value)
	require.Equal(t, int64(20), m.size())
	m.put(stateKey{uid: "uid"}, "without a version", 10)
	require.Equal(t, int64(20), m.size())
	claimed := stateOf(1, "2")
	claimed.claims = "label=value"
	_, ok = m.get(claimed)
	require.False(t, ok, "a result with other claims must not be returned")

	m.evictIdle()
	m.evictIdle()
	_, ok = m.get(stateOf(1, "2"))
	require.True(t, ok)
	m.evictIdle()
	m.evictIdle()
	_, ok = m.get(stateOf(1, "2"))
	require.True(t, ok, "an entry with hits must be kept")
	for range 3 {
		m.evictIdle()
	}
	_, ok = m.get(stateOf(1, "2"))
	require.False(t, ok)
	require.Equal(t, int64(1<<10), b.available)
}

// The estimated memory of objects is realistic.
func TestBytesOf(t *testing.T) {
	heap.Skip(t)
	for name, spec := range map[string]func(i int) any{
		"text":   func(i int) any { return strings.Repeat(fmt.Sprint(i%10), 4096) },
		"fields": func(i int) any { return manyFields(i) },
		"items":  func(i int) any { return []any{manyFields(i), int64(i), manyFields(i), true} },
	} {
		t.Run(name, func(t *testing.T) {
			const n = 2000
			before := heap.InUse()
			all := make([]*unstructured.Unstructured, 0, n)
			estimate := int64(0)
			for i := range n {
				u := customresourcetest.Widget(fmt.Sprint("w", i), map[string]any{"of": spec(i)})
				all = append(all, u)
				estimate += bytesOf(u.Object)
			}
			taken := heap.InUse() - before
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
