package fairness

import "time"

// What a logical cluster gets depends on whether there is contention. Alone it may
// use what the server has. Next to others it gets few seats and is throttled
// between its requests when it asks for more than that: a server whose cores never idle
// answers everybody late, since nothing in it, neither Go's scheduler nor the
// kernel's, knows whose request should run first.

const (
	// contentionWindow is for how long a logical cluster that has sent a request
	// contends with others.
	contentionWindow = 10 * time.Second
	// maxThrottle bounds throttling: a request that takes longer waits for the disk
	// or for a webhook rather than for a core.
	maxThrottle = 10 * time.Millisecond
)

// activity knows the last two logical clusters that have sent requests, which
// is enough to know whether there are others than a given one.
type activity struct {
	last, other struct {
		cluster string
		at      time.Time
	}
}

func (a *activity) saw(cluster string, now time.Time) {
	if a.last.cluster != cluster {
		a.other, a.last.cluster = a.last, cluster
	}
	a.last.at = now
}

// othersThan reports whether another logical cluster has sent a request lately.
func (a *activity) othersThan(cluster string, now time.Time) bool {
	other := a.last.at
	if a.last.cluster == cluster {
		other = a.other.at
	}
	return now.Sub(other) < contentionWindow
}

// seatsOf returns how many seats a flow may take now.
func (q *Queue) seatsOf(f *flow) int {
	if q.limits.AloneSeats > q.limits.FlowSeats && !q.active.othersThan(f.key.Cluster, q.clock.Now()) {
		return q.limits.AloneSeats
	}
	return q.limits.FlowSeats
}

// throttle holds a flow up in which requests wait, after one that took that many
// seconds. The caller holds the lock and updates the flow.
func (q *Queue) throttle(f *flow, took float64) {
	if q.limits.ThrottleFactor <= 0 || !f.wants() {
		return
	}
	now := q.clock.Now()
	if !q.active.othersThan(f.key.Cluster, now) {
		return
	}
	until := now.Add(min(time.Duration(took*q.limits.ThrottleFactor*float64(time.Second)), maxThrottle))
	if !until.After(now) || !until.After(f.throttledUntil) {
		return
	}
	throttled := !f.throttledUntil.IsZero()
	f.throttledUntil = until
	if !throttled {
		q.clock.AfterFunc(until.Sub(now), func() { q.unthrottle(f) })
	}
}

// unthrottle ends what throttle began, unless it has become longer.
func (q *Queue) unthrottle(f *flow) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if left := f.throttledUntil.Sub(q.clock.Now()); left > 0 {
		q.clock.AfterFunc(left, func() { q.unthrottle(f) })
		return
	}
	f.throttledUntil = time.Time{}
	q.update(f)
	q.dispatch()
}
