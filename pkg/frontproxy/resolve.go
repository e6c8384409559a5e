package frontproxy

import (
	"context"
	"sync"
	"time"

	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/budget"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

const (
	// maxWaiting and maxWaitingPerUser bound how many requests at a time are of users
	// who have not entered the logical cluster yet; ownWaiting each user may have
	// however many others have.
	maxWaiting        = 4096
	maxWaitingPerUser = 256
	ownWaiting        = 8
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
	index   *workspaceindex.Index
	timeout time.Duration
	places  *budget.Budget[identity.Payer]
}

func newResolver(index *workspaceindex.Index, timeout time.Duration) *resolver {
	return &resolver{index: index, timeout: timeout, places: budget.New[identity.Payer](budget.Limits{Total: maxWaiting, Each: maxWaitingPerUser, Own: ownWaiting})}
}

// resolve waits until the index knows path, but not longer than deadline.
func (r *resolver) resolve(ctx context.Context, path string, deadline time.Time) (workspaceindex.Target, workspaceindex.Outcome) {
	target, outcome := r.index.Lookup(path)
	if known(outcome) {
		return target, outcome
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for {
		changed := r.index.Changed()
		if target, outcome = r.index.Lookup(path); known(outcome) {
			indexWaits.WithLabelValues("found").Inc()
			return target, outcome
		}
		select {
		case <-changed:
		case <-timer.C:
			indexWaits.WithLabelValues("refused").Inc()
			return target, outcome
		case <-ctx.Done():
			indexWaits.WithLabelValues("gone").Inc()
			return target, outcome
		}
	}
}

// hold waits until deadline, as a request for something unknown would.
func hold(ctx context.Context, deadline time.Time) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// enter takes a place among those who may have to wait, if there is one.
func (r *resolver) enter(who identity.Payer) (release func(), ok bool) {
	if !r.places.Take(who, 1) {
		indexWaits.WithLabelValues("crowded").Inc()
		return nil, false
	}
	return sync.OnceFunc(func() { r.places.Give(who, 1) }), true
}

func known(outcome workspaceindex.Outcome) bool {
	return outcome == workspaceindex.Found || outcome == workspaceindex.Unavailable
}
