package ring

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardplane/shardplane/pkg/client"
)

// Status is the state of the ring as observed by a member.
type Status struct {
	// ID identifies the member. It changes if the member must join again.
	ID string
	// Epoch is the epoch of the newest table; 0 if there is none.
	Epoch int64
	// Coordinator is the member that wrote the table.
	Coordinator string
	// Members are the members in the table.
	Members []Member
	// Moves are the ranges that move between members.
	Moves []Move
	// Isolated is set if the member could not renew its Lease in time.
	Isolated bool
	// Draining is set if the member is leaving.
	Draining bool
	// Waits describes what the ring is waiting for; empty if it is balanced.
	Waits string
	// LastError is the error of the last failed request.
	LastError error
}

// Member is a member of the ring.
type Member struct {
	ID     string
	Weight int
	// State is empty, draining, left, expelled, or missing if the Lease was deleted.
	State string
	// Share is the owned part of all hashes, 0 to 1.
	Share float64
}

// Move is a range that moves.
type Move struct {
	Range client.Range
	// From releases the range when its work there has ended. To is empty if no member can take it.
	From, To string
	// Epoch is the epoch of the first table with the move.
	Epoch int64
}

// Status returns the state of the ring as observed by this member.
func (r *Ring) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.machine
	s := Status{
		ID: m.id, Epoch: m.epoch(), Draining: m.draining, LastError: m.lastErr,
		Isolated: m.phase == taking && m.valid && r.now() >= m.until(),
	}
	if t := m.table.table; t != nil {
		s.Coordinator = t.coordinator
		for _, id := range t.members {
			p := t.part(id)
			member := Member{ID: id, State: string(m.stateOf(id)), Share: float64(p.owned.or(p.outgoing).len()) / slotCount}
			if o := m.seen[id]; o != nil {
				member.Weight = o.weight
			}
			s.Members = append(s.Members, member)
		}
		s.Moves = t.moves()
	}
	s.Waits = m.waits(s)
	return s
}

func (t *table) moves() []Move {
	var moves []Move
	for slot, a := range t.slots {
		first := uint64(slot) << 56
		last := first | (1<<56 - 1)
		switch {
		case !a.moving():
		case slot > 0 && a == t.slots[slot-1]:
			moves[len(moves)-1].Range.Last = last
		default:
			moves = append(moves, Move{client.Range{First: first, Last: last}, a.owner, a.to, a.since})
		}
	}
	return moves
}

func (m *machine) waits(s Status) string {
	from, loading := map[string]bool{}, map[string]bool{}
	for _, move := range s.Moves {
		from[move.From] = true
		if o := m.seen[move.To]; move.To == m.id && m.own.loaded < move.Epoch || o != nil && o.loaded < move.Epoch {
			loading[move.To] = true
		}
	}
	switch {
	case m.phase == finished:
		return "this member is not running"
	case m.phase == stopping:
		return "this member was expelled, and will join again when its work has ended"
	case s.Isolated:
		return fmt.Sprintf("this member cannot renew its Lease: %v", m.lastErr)
	case !m.valid:
		return "this member has not written its Lease yet"
	case m.table.table == nil:
		return fmt.Sprintf("no table exists: the first one is written after %s, when no member can still use an older one", m.LeaseDuration)
	case len(loading) > 0:
		return "ranges are moving to " + strings.Join(slices.Sorted(maps.Keys(loading)), ", ") + ", where they must be loaded first"
	case len(from) > 0:
		return "ranges are moving from " + strings.Join(slices.Sorted(maps.Keys(from)), ", ") + ", which must end their work first"
	case !m.named():
		return "this member is not in the table yet"
	default:
		return ""
	}
}

// ServeHTTP serves the status of the ring as text. It is usually mounted at /debug/ring.
func (r *Ring) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s := r.Status()
	owned, coming := r.Ranges()
	var page bytes.Buffer
	table := tabwriter.NewWriter(&page, 0, 0, 2, ' ', 0)
	line := func(cells string, values ...any) { fmt.Fprintf(table, cells+"\n", values...) }
	line("ring\t%s", r.config.Name)
	line("this member\t%s", s.ID)
	line("epoch\t%d, written by %s", s.Epoch, cmp.Or(s.Coordinator, "none"))
	line("waits\t%s", cmp.Or(s.Waits, "none"))
	if s.LastError != nil {
		line("last error\t%v", s.LastError)
	}
	line("works on\t%s", cmp.Or(owned.String(), "none"))
	line("loads\t%s", cmp.Or(coming.String(), "none"))
	line("\nMEMBER\tWEIGHT\tSHARE\tSTATE")
	for _, m := range s.Members {
		line("%s\t%d\t%.1f %%\t%s", m.ID, m.Weight, 100*m.Share, m.State)
	}
	if len(s.Moves) > 0 {
		line("\nFROM\tTO\tSINCE EPOCH\tRANGE")
	}
	for _, m := range s.Moves {
		line("%s\t%s\t%d\t%016x to %016x", m.From, cmp.Or(m.To, "none"), m.Epoch, m.Range.First, m.Range.Last)
	}
	_ = table.Flush()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write(page.Bytes()) // the client may have disconnected
}

func newMetrics(r *Ring) *metrics {
	labels := prometheus.Labels{"ring": r.config.Name}
	m := &metrics{
		ring: r,
		moves: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "shardplane_ring_moves_total", Help: "Slots, of 256, that moved to this member from live members.", ConstLabels: labels,
		}),
		unowned: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "shardplane_ring_unowned_seconds_total", ConstLabels: labels,
			Help: "Time without a worker, in seconds times the fraction of all hashes, as measured by the coordinator.",
		}),
		overrun: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "shardplane_ring_overrun_total", Help: "Work of this member that did not end in time.", ConstLabels: labels,
		}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "shardplane_ring_move_seconds", Help: "Time from the start of a move of a slot to this member, as observed by it, to its completion.",
			ConstLabels: labels, Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
	}
	m.all = []prometheus.Collector{
		m.moves, m.unowned, m.overrun, m.seconds,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "shardplane_ring_members", Help: "Members in the newest table that this member has read.", ConstLabels: labels,
		}, func() float64 { return float64(len(r.Status().Members)) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "shardplane_ring_share", Help: "Fraction of all hashes that this member may work on.", ConstLabels: labels,
		}, func() float64 { return float64(r.current().owned.len()) / slotCount }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "shardplane_ring_ranges", Help: "Ranges of hashes that this member may work on.", ConstLabels: labels,
		}, func() float64 { return float64(r.current().owned.runs()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "shardplane_ring_epoch", Help: "Epoch of the newest table that this member has read.", ConstLabels: labels,
		}, func() float64 { return float64(r.Status().Epoch) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "shardplane_ring_isolated", Help: "1 if this member cannot renew its Lease.", ConstLabels: labels,
		}, func() float64 {
			if r.Status().Isolated {
				return 1
			}
			return 0
		}),
	}
	return m
}

// update updates the metrics after a step, with the lock held.
func (m *metrics) update(now time.Duration) {
	machine := m.ring.machine
	if t := machine.table.table; t != m.table {
		m.table = t
		for slot := range slotCount {
			since := &m.comingSince[slot]
			switch coming := machine.mine.incoming.has(slot); {
			case coming && *since == 0:
				*since = now
			case !coming && *since > 0:
				if machine.mine.owned.has(slot) {
					m.moves.Inc()
					m.seconds.Observe((now - *since).Seconds())
				}
				*since = 0
			}
		}
	}
	if machine.phase == taking && machine.table.table != nil && machine.coordinates(now) && now < machine.until() {
		m.unowned.Add(machine.idleShare(now) * (now - m.updated).Seconds())
	}
	m.updated = now
}

// idleShare returns the part of all hashes without a live owner, as observed by the coordinator.
func (m *machine) idleShare(now time.Duration) float64 {
	working := map[string]bool{m.id: true}
	for id, o := range m.seen {
		working[id] = working[id] || !o.state.ended() && !m.isExpired(now, o)
	}
	idle := 0
	for _, a := range m.table.slots {
		if !working[a.owner] {
			idle++
		}
	}
	return float64(idle) / slotCount
}
