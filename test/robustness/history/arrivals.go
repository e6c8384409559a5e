package history

import (
	"cmp"
	"math"
	"slices"
)

// arrivals contains, for each server, observed resource versions in ascending order, with the time
// when a client first observed them or later ones.
type arrivals map[string][]arrival

type arrival struct {
	rv uint64
	at int64
}

func newArrivals(h *History) arrivals {
	a := arrivals{}
	for _, op := range h.Ops {
		if op.Outcome == OK && op.Result.RV != 0 {
			a[op.Domain.Server] = append(a[op.Domain.Server], arrival{op.Result.RV, op.End})
		}
	}
	for _, c := range h.Claims {
		if c.Version != 0 && c.End != 0 {
			a[c.Domain.Server] = append(a[c.Domain.Server], arrival{c.Version, c.End})
		}
	}
	for _, all := range a {
		slices.SortFunc(all, func(x, y arrival) int { return cmp.Compare(x.rv, y.rv) })
		for n := len(all) - 2; n >= 0; n-- {
			all[n].at = min(all[n].at, all[n+1].at)
		}
	}
	return a
}

// passed returns when a client first observed a resource version after rv.
func (a arrivals) passed(server string, rv uint64) int64 {
	all := a[server]
	n, _ := slices.BinarySearchFunc(all, rv, func(x arrival, rv uint64) int {
		if x.rv <= rv {
			return -1
		}
		return 1
	})
	if n == len(all) {
		return math.MaxInt64
	}
	return all[n].at
}
