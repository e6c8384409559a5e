package garbagecollector

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
)

// TestParked compares the parked items with a set.
func TestParked(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 7))
		var p parked
		want := map[Item]bool{}
		for range 200 {
			cluster := logicalcluster.Name(fmt.Sprint("c", r.IntN(3)))
			item := Item(fmt.Sprintf("/core/configmaps/%s/n/%d", cluster, r.IntN(4)))
			switch r.IntN(5) {
			case 0:
				in := slices.Sorted(maps.Keys(want))
				in = slices.DeleteFunc(in, func(item Item) bool { return item.LogicalCluster() != cluster })
				require.ElementsMatch(t, in, p.take(cluster))
				maps.DeleteFunc(want, func(item Item, _ bool) bool { return item.LogicalCluster() == cluster })
			case 1:
				p.Forget(item)
				delete(want, item)
			default:
				p.add(item)
				want[item] = true
			}
			require.Equal(t, len(want), p.Len())
		}
	}
}
