package ring

import (
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
)

func (w *world) serve(r *request) response {
	switch r.verb {
	case readTable:
		if w.table.table == nil {
			return response{outcome: notFound}
		}
		return response{table: w.table}
	case writeTable:
		if w.table.version != r.replaced.version {
			return response{outcome: conflict}
		}
		if w.table.table != nil && r.table.epoch != w.table.epoch+1 {
			w.failf("table %d must not follow table %d", r.table.epoch, w.table.epoch)
		}
		uid := w.table.uid
		if w.table.table == nil {
			w.made, uid = w.now, types.UID(w.version())
		}
		w.checkMoves(w.table, r.table)
		w.table = stored{r.table, uid, w.version()}
		w.publish(change{table: w.table})
		return response{table: w.table}
	case listAll:
		return response{leases: slices.Collect(maps.Values(w.leases))}
	default:
		return w.serveMember(r)
	}
}

func (w *world) serveMember(r *request) response {
	there, found := w.leases[r.lease.id]
	switch r.verb {
	case createOwn, replace:
		if found {
			return response{outcome: conflict}
		}
	case readOwn:
		if !found {
			return response{outcome: notFound}
		}
		return response{lease: there}
	default:
		if !found {
			return response{outcome: notFound}
		}
		if there.version != r.lease.version {
			return response{outcome: conflict}
		}
	}
	l := r.lease
	l.version = w.version()
	if r.verb == deleteOwn || r.verb == deleteOther {
		w.remove(l.id)
	} else {
		w.leases[l.id] = l
		w.publish(change{lease: l})
	}
	return response{lease: l}
}

func (w *world) remove(id string) {
	delete(w.leases, id)
	w.publish(change{lease: lease{id: id}, deleted: true})
}

func (w *world) backUp() backup { return backup{w.now, w.revision, maps.Clone(w.leases), w.table} }

// restore restores the server from an older backup, including the versions.
func (w *world) restore(b backup) {
	w.revision, w.leases, w.table = b.revision, maps.Clone(b.leases), b.table
	w.publish(change{all: b.leases})
	w.tolerantUntil, w.data.restored = w.now+aware, true
}

func (w *world) version() string {
	w.revision++
	return strconv.Itoa(w.revision)
}

func (w *world) publish(c change) {
	w.log = append(w.log, c)
	upTo := len(w.log)
	for _, n := range w.nodes {
		if !n.dead {
			w.after(w.upTo(w.delay), func() { n.when(func() { n.watch(upTo) }) })
		}
	}
}
