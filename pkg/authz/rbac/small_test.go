package rbac

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSmall(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 9))
		var s small[int, int]
		want := map[int]int{}
		for step := range 300 {
			key := r.IntN(1 + step/20)
			if r.IntN(2) == 0 {
				s.remove(key)
				delete(want, key)
			} else {
				s.set(key, step)
				want[key] = step
			}
			require.Equal(t, len(want), s.len())
			for key := range 1 + step/20 {
				require.Equal(t, want[key], s.get(key))
			}
		}
	}
}
