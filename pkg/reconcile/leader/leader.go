// Package leader elects the replica of a server that runs its controllers.
//
// It is a package of its own since the election of client-go links the clients of
// all kinds, which controllers and their tests do without.
package leader

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection" // who leads is a metric
	"k8s.io/klog/v2"
)

// Election is the right to work for all replicas of a server, which one of them
// has at a time.
type Election struct {
	// Lock is what the replicas compete for.
	Lock resourcelock.Interface
	// Lease is how long a leader that is not heard of keeps the right; 15 s if
	// 0, and whole seconds. It gives up by itself after two thirds of that, and
	// tries again or renews each eighth.
	Lease time.Duration
}

const defaultLease = 15 * time.Second

// Lead calls run whenever this replica leads, until ctx is done or run fails.
// The context of run ends when the replica leads no more; another one leads only
// after run has returned, unless that takes longer than the rest of the lease,
// which is a fifth of it at least. A replica that stops, or that could not renew
// its lease in time, gives the right away as soon as run has returned.
func (e Election) Lead(ctx context.Context, run func(ctx context.Context) error) error {
	for {
		if err := e.leadOnce(ctx, run); err != nil || ctx.Err() != nil {
			return err
		}
		klog.FromContext(ctx).Info("Leads no more, and waits for its turn", "lock", e.Lock.Describe())
	}
}

// term is one attempt to lead.
type term struct {
	mu sync.Mutex
	// begun and over report whether run was called, and that it will not be.
	begun, over bool
	result      chan error
}

// begin reports whether run is to be called.
func (t *term) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun = !t.over
	return t.begun
}

// end reports whether run was called.
func (t *term) end() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	return t.begun
}

func (e Election) leadOnce(ctx context.Context, run func(ctx context.Context) error) error {
	// The election outlives ctx, until run has returned: the lease is renewed
	// meanwhile.
	election, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	t := &term{result: make(chan error, 1)}
	defer context.AfterFunc(ctx, func() {
		if !t.end() {
			leave() // nothing has begun
		}
	})()
	lease := e.Lease
	if lease == 0 {
		lease = defaultLease
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: e.Lock, LeaseDuration: lease, RenewDeadline: lease * 2 / 3, RetryPeriod: lease / 8,
		// ReleaseOnCancel would release the lease before run has returned.
		Name: e.Lock.Describe(),
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				if !t.begin() {
					return
				}
				leading, stop := context.WithCancel(leading)
				defer stop()
				defer context.AfterFunc(ctx, stop)()
				t.result <- run(leading)
				leave()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("electing a leader: %w", err)
	}
	elector.Run(election)
	if t.end() {
		err = <-t.result
	}
	if elector.IsLeader() {
		e.release(context.WithoutCancel(ctx), lease)
	}
	return err
}

// release gives the right away, if this replica still has it. Where that fails,
// the others wait for the end of the lease.
func (e Election) release(ctx context.Context, lease time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, lease/3)
	defer cancel()
	for {
		record, _, err := e.Lock.Get(ctx)
		if err == nil && record.HolderIdentity == e.Lock.Identity() {
			now := metav1.Now()
			err = e.Lock.Update(ctx, resourcelock.LeaderElectionRecord{
				// A second, since a lease has to last for some time.
				LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now,
			})
		}
		if apierrors.IsConflict(err) {
			continue // a renewal that was given up has arrived all the same
		}
		if err != nil {
			klog.FromContext(ctx).Info("Cannot give the lease away: it ends by itself", "lock", e.Lock.Describe(), "err", err)
		}
		return
	}
}
