package frontproxy

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

const (
	// maxWaiting and maxWaitingPerUser bound how many requests at a time are of users
	// who have not entered the logical cluster yet; ownWaiting each user may have
	// however many others have.
	maxWaiting        = 4096
	maxWaitingPerUser = 256
	ownWaiting        = 8

	// newFor is how long after its birth a logical cluster is new.
	newFor = 10 * time.Second

	// maxStretch is how many times --index-timeout users who are denied wait at most, and
	// stretchTime for how long all do after one had to wait longer.
	maxStretch  = 8
	stretchTime = 10 * time.Minute
)

// resolver looks logical clusters up and bridges the moment between the
// creation of a workspace and the index learning of it: a request for an
// unknown logical cluster waits for a bounded time.
//
// The wait must not tell anybody what exists. It is the same for every unknown
// path, whoever asks and whatever part of the path exists, and an answer of a
// shard that the user has no access to what does exist is held back for the
// same time (see forwarder.modify). A request takes its place before it is known
// whether it is for something that exists, so that one that finds none is refused
// at once in both cases.
type resolver struct {
	index *workspaceindex.Index
	delay delay
	// ready is for how long those wait who may enter a new workspace.
	ready  time.Duration
	places *ledger.Ledger
	// indexWaits counts how waits end.
	indexWaits *prometheus.CounterVec
}

// delay is how long those wait who may not enter. It is longer for a while after a
// shard has denied somebody later than that: what does not exist is refused after
// the same time.
type delay struct {
	least time.Duration

	mu    sync.Mutex
	now   time.Duration
	until time.Time // when it is the least again
}

// get returns how long they wait now.
func (d *delay) get() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !time.Now().Before(d.until) {
		d.now = d.least
	}
	return d.now
}

// cover makes the wait as long as a denial took: in few steps, so that it does not
// say how long, and not without bound.
func (d *delay) cover(took time.Duration) {
	if took <= d.least {
		return
	}
	d.get()
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.now < took && d.now < maxStretch*d.least {
		d.now *= 2
	}
	d.until = time.Now().Add(stretchTime)
}

func newResolver(index *workspaceindex.Index, timeout, ready time.Duration, indexWaits *prometheus.CounterVec) *resolver {
	return &resolver{index: index, indexWaits: indexWaits, delay: delay{least: timeout, now: timeout}, ready: ready, places: ledger.New(ledger.Bounds{Total: maxWaiting, User: maxWaitingPerUser, Own: ownWaiting})}
}

// resolve waits until the index knows the path of a request that arrived then. Who expects
// the workspace waits until it should be ready, all others no longer than those who are denied.
func (r *resolver) resolve(ctx context.Context, path string, arrived time.Time, who user.Info) (workspaceindex.Target, workspaceindex.Outcome) {
	target, outcome := r.index.Lookup(path)
	if final(outcome) {
		return target, outcome
	}
	timer := time.NewTimer(time.Until(arrived.Add(r.delay.get())))
	defer timer.Stop()
	for over := false; ; {
		target, outcome, ended := r.next(ctx, path, timer.C, over)
		if left := time.Until(arrived.Add(r.ready)); ended == waitRefused && !over && left > 0 && expects(ctx, who, target, outcome) {
			over = true
			timer.Reset(left)
			continue
		}
		if ended != "" {
			r.indexWaits.WithLabelValues(ended).Inc()
			return target, outcome
		}
	}
}

// How waits end, in metrics.
const waitFound, waitRefused, waitGone = "found", "refused", "gone"

// next looks a path up, and waits until that may have changed; ended says how the wait has, if it has.
// expected says that the path is one of a workspace that there was.
func (r *resolver) next(ctx context.Context, path string, late <-chan time.Time, expected bool) (target workspaceindex.Target, outcome workspaceindex.Outcome, ended string) {
	changed, done := r.index.Changed(path)
	defer done()
	target, outcome = r.index.Lookup(path)
	switch {
	case final(outcome):
		return target, outcome, waitFound
	case expected && outcome == workspaceindex.Unknown: // it has gone meanwhile
		return target, outcome, waitRefused
	}
	select {
	case <-changed:
		return target, outcome, ""
	case <-late:
		return target, outcome, waitRefused
	case <-ctx.Done():
		return target, outcome, waitGone
	}
}

// expects reports whether a user may know of a workspace that has no logical cluster yet, as
// its owner and administrators may.
func expects(ctx context.Context, who user.Info, target workspaceindex.Target, outcome workspaceindex.Outcome) bool {
	if outcome != workspaceindex.Pending {
		return false
	}
	return identity.MemberOf(ctx, who, user.SystemPrivilegedGroup, request.GroupAdmin) ||
		slices.ContainsFunc(identity.In("", who), func(i user.Info) bool {
			return target.Owner != 0 && workspaceindex.OwnerNamed(i.GetName()) == target.Owner
		})
}

// isNew reports whether a logical cluster that was found is not for users yet, or servers
// may not know yet that it is.
func isNew(target workspaceindex.Target) bool {
	return !tenancy.HasContent(target.Phase) || time.Since(time.Unix(target.Created, 0)) < newFor
}

// hold keeps a denied request that arrived then, as long as one for something
// unknown would be.
func (r *resolver) hold(ctx context.Context, arrived time.Time) {
	r.delay.cover(time.Since(arrived))
	timer := time.NewTimer(time.Until(arrived.Add(r.delay.get())))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// enter takes a place among those who may have to wait, if there is one.
func (r *resolver) enter(who identity.Flow) (release func(), ok bool) {
	holder := ledger.Holder{User: who}
	if r.places.Take(holder, 1) != nil {
		r.indexWaits.WithLabelValues("crowded").Inc()
		return nil, false
	}
	return sync.OnceFunc(func() { r.places.Give(holder, 1) }), true
}

// final reports whether there is nothing to wait for.
func final(outcome workspaceindex.Outcome) bool {
	return outcome != workspaceindex.Unknown && outcome != workspaceindex.Pending
}

// known reports whether an outcome is of a logical cluster.
func known(outcome workspaceindex.Outcome) bool {
	return outcome == workspaceindex.Found || outcome == workspaceindex.Unavailable
}
