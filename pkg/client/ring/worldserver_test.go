package ring

import (
	"maps"
	"slices"
	"strconv"
)

func (w *world) serve(r *request) answer {
	switch r.verb {
	case readTable:
		if w.table.table == nil {
			return answer{outcome: notFound}
		}
		return answer{table: w.table}
	case writeTable:
		if w.table.version != r.replaced.version {
			return answer{outcome: conflict}
		}
		if w.table.table != nil && r.table.epoch != w.table.epoch+1 {
			w.failf("table %d follows table %d", r.table.epoch, w.table.epoch)
		}
		if w.table.table == nil {
			w.made = w.now
		}
		w.given(w.table, r.table)
		w.table = stored{table: r.table, version: w.version()}
		w.tell(change{table: w.table})
		return answer{table: w.table}
	case listAll:
		return answer{leases: slices.Collect(maps.Values(w.leases))}
	default:
		return w.serveMember(r)
	}
}

func (w *world) serveMember(r *request) answer {
	there, found := w.leases[r.lease.id]
	switch r.verb {
	case createOwn, replace:
		if found {
			return answer{outcome: exists}
		}
	case readOwn:
		if !found {
			return answer{outcome: notFound}
		}
		return answer{lease: there}
	default:
		if !found {
			return answer{outcome: notFound}
		}
		if there.version != r.lease.version {
			return answer{outcome: conflict}
		}
	}
	l := r.lease
	l.version = w.version()
	if r.verb == deleteOwn || r.verb == deleteOther {
		w.remove(l.id)
	} else {
		w.leases[l.id] = l
		w.tell(change{lease: l})
	}
	return answer{lease: l}
}

func (w *world) remove(id string) {
	delete(w.leases, id)
	w.tell(change{lease: lease{id: id}, deleted: true})
}

func (w *world) backUp() backup { return backup{w.now, w.revision, maps.Clone(w.leases), w.table} }

// restore sets the server back, versions included.
func (w *world) restore(b backup) {
	w.revision, w.leases, w.table = b.revision, maps.Clone(b.leases), b.table
	w.tell(change{all: b.leases})
	w.doubtful, w.data.setBack = w.now+aware, true
}

func (w *world) version() string {
	w.revision++
	return strconv.Itoa(w.revision)
}

func (w *world) tell(c change) {
	w.log = append(w.log, c)
	upTo := len(w.log)
	for _, n := range w.nodes {
		if !n.dead {
			w.after(w.upTo(w.delay), func() { n.when(func() { n.watch(upTo) }) })
		}
	}
}
