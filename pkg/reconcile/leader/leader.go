// Package leader elects the replica of a server that runs its controllers.
//
// It is a separate package because the leader election of client-go links the clients of all kinds.
package leader

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection" // registers the metrics of leader election
	"k8s.io/klog/v2"
)

// Election elects one leader among the replicas of a server.
type Election struct {
	// Lock is the object that the replicas compete for.
	Lock resourcelock.Interface
	// Lease is the time after which an unresponsive leader loses the lease, in whole seconds; the default is 15 s. A leader
	// gives up after two thirds of it without a renewal. The retry and renewal period is an eighth.
	Lease time.Duration
}

const defaultLease = 15 * time.Second

// Lead calls run whenever this replica is the leader, until ctx is done or run returns an error. The context of run is
// canceled when the replica loses the lease. Another replica becomes leader only after run has returned and the lease
// has been released. However, if run takes longer than the rest of the lease, the lease expires before. The rest is at
// least a fifth of the lease.
func (e Election) Lead(ctx context.Context, run func(ctx context.Context) error) error {
	for {
		if err := e.leadOnce(ctx, run); err != nil || ctx.Err() != nil {
			return err
		}
		klog.FromContext(ctx).Info("Lost the lease, waiting to become leader again", "lock", e.Lock.Describe())
	}
}

func (e Election) leadOnce(ctx context.Context, run func(ctx context.Context) error) error {
	// The election must outlive ctx until run has returned, because the lease is renewed until then.
	election, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	result := make(chan error, 1)
	// The first of its calls decides whether run is called.
	var decided sync.Once
	begun := false
	end := func() bool {
		decided.Do(func() {})
		return begun
	}
	defer context.AfterFunc(ctx, func() {
		if !end() {
			leave()
		}
	})()
	lease := cmp.Or(e.Lease, defaultLease)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: e.Lock, LeaseDuration: lease, RenewDeadline: lease * 2 / 3, RetryPeriod: lease / 8,
		// ReleaseOnCancel would release the lease before run has returned.
		Name: e.Lock.Describe(),
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				decided.Do(func() { begun = true })
				if !begun {
					return
				}
				leading, stop := context.WithCancel(leading)
				defer stop()
				defer context.AfterFunc(ctx, stop)()
				result <- run(leading)
				leave()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("electing a leader: %w", err)
	}
	elector.Run(election)
	if end() {
		err = <-result
	}
	if elector.IsLeader() {
		e.release(context.WithoutCancel(ctx), lease)
	}
	return err
}

// release releases the lease if this replica still owns it. If this fails, the other replicas wait until it expires.
func (e Election) release(ctx context.Context, lease time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, lease/3)
	defer cancel()
	for {
		record, _, err := e.Lock.Get(ctx)
		if err == nil && record.HolderIdentity == e.Lock.Identity() {
			now := metav1.Now()
			err = e.Lock.Update(ctx, resourcelock.LeaderElectionRecord{
				// The duration must be positive.
				LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now,
			})
		}
		if apierrors.IsConflict(err) {
			continue // a canceled renewal has been processed after all
		}
		if err != nil {
			klog.FromContext(ctx).Info("Failed to release the lease, which will expire", "lock", e.Lock.Describe(), "err", err)
		}
		return
	}
}
