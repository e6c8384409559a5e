package ring

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func newMetrics(r *Ring) *metrics {
	labels := prometheus.Labels{"ring": r.config.Name}
	return &metrics{
		ring:     r,
		members:  prometheus.NewDesc("shardplane_ring_members", "Members in the newest table that this member has read.", nil, labels),
		share:    prometheus.NewDesc("shardplane_ring_share", "Fraction of all hashes that this member may work on.", nil, labels),
		ranges:   prometheus.NewDesc("shardplane_ring_ranges", "Ranges of hashes that this member may work on.", nil, labels),
		epoch:    prometheus.NewDesc("shardplane_ring_epoch", "Epoch of the newest table that this member has read.", nil, labels),
		isolated: prometheus.NewDesc("shardplane_ring_isolated", "1 if this member cannot renew its Lease.", nil, labels),
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
}

func (m *metrics) overran(works int) { m.overrun.Add(float64(works)) }

// update updates the metrics after a step, with the lock held. before is the table before the step.
func (m *metrics) update(now time.Duration, before *table) {
	machine := m.ring.machine
	if t := machine.table.table; t != before {
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
		working[id] = working[id] || !o.state.ended() && !m.quiet(now, o)
	}
	idle := 0
	for _, a := range m.table.slots {
		if !working[a.owner] {
			idle++
		}
	}
	return float64(idle) / slotCount
}

func (m *metrics) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.members, m.share, m.ranges, m.epoch, m.isolated} {
		descriptions <- d
	}
	for _, c := range m.counted() {
		c.Describe(descriptions)
	}
}

func (m *metrics) counted() []prometheus.Collector {
	return []prometheus.Collector{m.moves, m.seconds, m.unowned, m.overrun}
}

func (m *metrics) Collect(collected chan<- prometheus.Metric) {
	s := m.ring.Status()
	isolated := 0.0
	if s.Isolated {
		isolated = 1
	}
	owned := m.ring.current().owned
	for desc, value := range map[*prometheus.Desc]float64{
		m.members: float64(len(s.Members)), m.share: float64(owned.len()) / slotCount, m.ranges: float64(owned.runs()), m.epoch: float64(s.Epoch), m.isolated: isolated,
	} {
		collected <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	for _, c := range m.counted() {
		c.Collect(collected)
	}
}
