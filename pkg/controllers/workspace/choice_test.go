package workspace

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

// placing places n logical clusters with random names on shards with constant load, and returns the number of each shard.
func placing(t *testing.T, n int, counting *claims, shards ...*corev1alpha1.Shard) map[string]int {
	t.Helper()
	now := time.Now()
	got := map[string]int{}
	for i := range n {
		chosen, p := chooseShard(&tenancyv1alpha1.Workspace{}, logicalcluster.Name(fmt.Sprintf("cluster-%d", i)), shards, func(shard *corev1alpha1.Shard) shardObservation {
			return shardObservation{claims: counting.of(shard.Name, now)}
		})
		require.Nil(t, p)
		counting.add(chosen.Name, now)
		got[chosen.Name]++
	}
	return got
}

// TestLessUsedShardIsPreferred: of two shards, the less used one gets all until both are even; of several, each gets some.
func TestLessUsedShardIsPreferred(t *testing.T) {
	require.Equal(t, map[string]int{"b": 100}, placing(t, 100, &claims{}, shard("a", workspaces(500, 0)), shard("b", workspaces(400, 0))))
	even := placing(t, 300, &claims{}, shard("a", workspaces(500, 0)), shard("b", workspaces(400, 0)))
	require.InDelta(t, 100, even["a"], 1, "claims must count as load")
	require.InDelta(t, 200, even["b"], 1)

	several := []*corev1alpha1.Shard{shard("a", workspaces(9000, 0)), shard("b", workspaces(6000, 0)), shard("c", workspaces(3000, 0)), shard("d", workspaces(0, 0))}
	got := placing(t, 3000, &claims{}, several...)
	require.Zero(t, got["a"], "the most used shard must never be chosen")
	require.Greater(t, got["c"], got["b"])
	require.Greater(t, got["d"], got["c"])
	require.Equal(t, got, placing(t, 3000, &claims{}, several[3], several[1], several[0], several[2]), "the order of shards must not matter")

	limited := placing(t, 100, &claims{}, shard("a", workspaces(60, 100)), shard("b", workspaces(500, 10000)))
	require.Equal(t, map[string]int{"b": 100}, limited, "shares of the limits must be compared")
	fat := withLoad(shardload.Load{Storage: shardload.Amount{Used: 4 << 30, Limit: 8 << 30}})
	require.Equal(t, map[string]int{"b": 100}, placing(t, 100, &claims{}, shard("a", fat), shard("b", workspaces(500, 10000))), "shares of the storage must be compared")
	unknown := placing(t, 1000, &claims{}, shard("a", workspaces(500, 0)), shard("b"))
	require.InDelta(t, 500, unknown["a"], 100, "shards with an unknown load must be chosen equally")
}

// TestHomesStayOnTwoShards: the hash of the user selects two shards for a home, and only their load decides between them.
func TestHomesStayOnTwoShards(t *testing.T) {
	const alice = logicalcluster.Name("v1u4alow0iv9")
	names := []string{"a", "b", "c", "d", "e"}
	got := map[string]bool{}
	for _, most := range names {
		for _, least := range names {
			var shards []*corev1alpha1.Shard
			for _, name := range names {
				used := int64(500)
				switch name {
				case least:
					used = 0
				case most:
					used = 1000
				}
				shards = append(shards, shard(name, workspaces(used, 0)))
			}
			chosen, p := chooseShard(&tenancyv1alpha1.Workspace{}, alice, shards, nothing)
			require.Nil(t, p)
			got[chosen.Name] = true
		}
	}
	require.Len(t, got, 2)
	ranked := slices.SortedFunc(slices.Values(names), func(a, b string) int { return cmp.Compare(rankOf(alice, b), rankOf(alice, a)) })
	require.True(t, got[ranked[0]] && got[ranked[1]], "%v", got)
}

// TestFullByClaims: a shard is not claimed more often than its reported capacity allows.
func TestFullByClaims(t *testing.T) {
	got := placing(t, 30, &claims{}, shard("a", workspaces(0, 10)), shard("b", workspaces(0, 0)), shard("c", workspaces(5, 10)))
	require.LessOrEqual(t, got["a"], 10)
	require.LessOrEqual(t, got["c"], 5)
	now := time.Now()
	full := &claims{}
	for range 10 {
		full.add("a", now)
	}
	_, p := chooseShard(&tenancyv1alpha1.Workspace{}, "x", []*corev1alpha1.Shard{shard("a", workspaces(0, 10))}, func(s *corev1alpha1.Shard) shardObservation { return shardObservation{claims: full.of(s.Name, now)} })
	require.NotNil(t, p)
}

// TestClaims: claims are valid until the shard reports as many logical clusters, or until they expire.
func TestClaims(t *testing.T) {
	now := time.Now()
	r := &workspaceReconciler{now: func() time.Time { return now }, silent: func(string) bool { return false }}
	count := func() int64 { return r.observed(shard("a")).claims }
	reports := func(before, after int64) {
		r.dropClaims(shard("a", workspaces(before, 0)), shard("a", workspaces(after, 0)))
	}
	for range 3 {
		r.claims.add("a", now)
	}
	require.EqualValues(t, 3, count())
	require.Zero(t, r.observed(shard("b")).claims)
	reports(3, 4)
	require.EqualValues(t, 2, count(), "two claims must stay pending")
	reports(4, 2)
	require.EqualValues(t, 2, count(), "a decreased count must not drop claims")
	reports(2, 9)
	require.Zero(t, count())
	reports(9, 10)
	r.claims.add("a", now)
	require.EqualValues(t, 1, count(), "reports before a claim must not drop it")

	now = now.Add(claimTTL - 1)
	r.claims.add("a", now)
	require.EqualValues(t, 2, count())
	now = now.Add(1)
	require.EqualValues(t, 1, count(), "each claim must expire after claimTTL")
	now = now.Add(claimTTL)
	require.Zero(t, count())
	reports(0, 1)
	require.Empty(t, r.claims.by)
}
