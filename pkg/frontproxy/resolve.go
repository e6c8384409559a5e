package frontproxy

import (
	"context"
	"sync"
	"time"

	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

const (
	// maxWaiting and maxWaitingPerUser bound how many requests wait at a time.
	maxWaiting        = 1024
	maxWaitingPerUser = 64
)

// resolver looks logical clusters up and bridges the moment between the
// creation of a workspace and the index learning of it: a request for an
// unknown logical cluster waits for a bounded time.
//
// The wait must not tell anybody what exists. It is the same for every unknown
// path, whoever asks and whatever part of the path exists, and an answer of a
// shard that the user has no access to what does exist is held back for the
// same time (see forwarder.modify). A request that finds too many waiting
// is answered at once, in both cases.
type resolver struct {
	index   *workspaceindex.Index
	timeout time.Duration

	mu      sync.Mutex
	waiting int
	users   map[string]int
}

func newResolver(index *workspaceindex.Index, timeout time.Duration) *resolver {
	return &resolver{index: index, timeout: timeout, users: map[string]int{}}
}

// resolve looks path up; deadline is when the request's timeout ends.
func (r *resolver) resolve(ctx context.Context, path, user string, deadline time.Time) (workspaceindex.Target, workspaceindex.Outcome) {
	target, outcome := r.index.Lookup(path)
	if known(outcome) {
		return target, outcome
	}
	release, ok := r.enter(user)
	if !ok {
		indexWaits.WithLabelValues("crowded").Inc()
		return target, outcome
	}
	defer release()
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
func (r *resolver) hold(ctx context.Context, user string, deadline time.Time) {
	release, ok := r.enter(user)
	if !ok {
		return
	}
	defer release()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// enter takes a place among those who wait, if there is one.
func (r *resolver) enter(user string) (release func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting >= maxWaiting || r.users[user] >= maxWaitingPerUser {
		return nil, false
	}
	r.waiting++
	r.users[user]++
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.waiting--
		r.users[user]--
		if r.users[user] == 0 {
			delete(r.users, user)
		}
	}, true
}

func known(outcome workspaceindex.Outcome) bool {
	return outcome == workspaceindex.Found || outcome == workspaceindex.Unavailable
}
