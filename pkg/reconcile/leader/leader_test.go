package leader_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/shardplane/shardplane/pkg/reconcile/leader"
	"github.com/shardplane/shardplane/test/bubble"
)

// lease is the duration of leases in these tests, with a fake clock.
const lease = 15 * time.Second

// clientset returns a client that updates leases with optimistic concurrency, as a server does. Otherwise, two replicas
// could get the same lease.
func clientset() *fake.Clientset {
	c := fake.NewClientset()
	c.PrependReactor("update", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		lease := action.(clienttesting.UpdateAction).GetObject().DeepCopyObject().(*coordinationv1.Lease) //nolint:forcetypeassert // it updates leases
		stored, err := c.Tracker().Get(action.GetResource(), lease.Namespace, lease.Name)
		if err != nil {
			return true, nil, err
		}
		was := stored.(*coordinationv1.Lease).ResourceVersion //nolint:forcetypeassert // it tracks leases
		if was != lease.ResourceVersion {
			return true, nil, apierrors.NewConflict(coordinationv1.Resource("leases"), lease.Name, errors.New("the lease has changed"))
		}
		lease.ResourceVersion = was + "i"
		return true, lease, c.Tracker().Update(action.GetResource(), lease, lease.Namespace)
	})
	return c
}

func election(c *fake.Clientset, id string) leader.Election {
	return leader.Election{Lease: lease, Lock: &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: "default", Name: "controllers"}, Client: c.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: id},
	}}
}

// TestLead: one replica leads at a time, and a stopped leader releases its lease.
func TestLead(t *testing.T) { bubble.Test(t, takeOver) }

func takeOver(t *testing.T) {
	const replicas = 3
	c := clientset()
	var leading atomic.Int32
	led := make(chan int, replicas)
	var running sync.WaitGroup
	cancels := map[int]context.CancelFunc{}
	for n := range replicas {
		ctx, cancel := context.WithCancel(t.Context())
		cancels[n] = cancel
		running.Go(func() {
			assert.NoError(t, election(c, fmt.Sprint(n)).Lead(ctx, func(ctx context.Context) error {
				if leading.Add(1) != 1 {
					t.Error("two replicas are leaders")
				}
				led <- n
				<-ctx.Done()
				leading.Add(-1)
				return nil
			}))
		})
	}
	seen := map[int]bool{}
	for range replicas {
		n := <-led
		require.False(t, seen[n])
		seen[n] = true
		cancels[n]()
	}
	running.Wait()
}

// TestLeadIsLost: a leader that cannot renew its lease stops, and leads again later.
func TestLeadIsLost(t *testing.T) { bubble.Test(t, isLost) }

func isLost(t *testing.T) {
	c := clientset()
	var down atomic.Bool
	c.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		if down.Load() {
			return true, nil, errors.New("down")
		}
		return false, nil, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	terms := 0
	require.NoError(t, election(c, "one").Lead(ctx, func(term context.Context) error {
		if terms++; terms == 2 {
			cancel()
		}
		down.Store(terms == 1)
		<-term.Done()
		down.Store(false)
		return nil
	}))
	require.Equal(t, 2, terms)
}

// TestLeaderEndsWorkBeforeRelease: a leader that cannot renew its lease in time keeps it until its work has ended, and then releases it.
func TestLeaderEndsWorkBeforeRelease(t *testing.T) { bubble.Test(t, endsFirst) }

func endsFirst(t *testing.T) {
	c := clientset()
	var late atomic.Bool
	c.PrependReactor("update", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		update, ok := action.(clienttesting.UpdateAction)
		if !ok || !late.Load() || *holder(update.GetObject()) != "one" {
			return false, nil, nil
		}
		return true, nil, errors.New("renewals are late")
	})
	ctx, cancel := context.WithCancel(t.Context())
	began := make(chan struct{})
	var over atomic.Bool
	var running sync.WaitGroup
	running.Go(func() {
		assert.NoError(t, election(c, "one").Lead(ctx, func(term context.Context) error {
			close(began)
			late.Store(true)
			<-term.Done()
			<-time.After(lease / 5) // simulates slow work
			leases, err := c.CoordinationV1().Leases("default").List(t.Context(), metav1.ListOptions{})
			if err != nil || *holder(&leases.Items[0]) != "one" {
				t.Errorf("the lease was released before the work has ended: %v, %v", leases.Items, err)
			}
			over.Store(true)
			return nil
		}))
	})
	<-began
	running.Go(func() {
		assert.NoError(t, election(c, "two").Lead(ctx, func(context.Context) error {
			if !over.Load() {
				t.Error("another replica became leader while the first one was working")
			}
			cancel()
			return nil
		}))
	})
	running.Wait()
	require.True(t, over.Load())
}

func holder(obj runtime.Object) *string {
	l, ok := obj.(*coordinationv1.Lease)
	if !ok || l.Spec.HolderIdentity == nil {
		return new("")
	}
	return l.Spec.HolderIdentity
}

// TestLeadAfterCrash: the lease of an unresponsive leader expires.
func TestLeadAfterCrash(t *testing.T) { bubble.Test(t, afterCrash) }

func afterCrash(t *testing.T) {
	c := clientset()
	now := metav1.NowMicro()
	_, err := c.CoordinationV1().Leases("default").Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "controllers"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("crashed"), LeaseDurationSeconds: new(int32(lease.Seconds())), AcquireTime: &now, RenewTime: &now},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	led := false
	require.NoError(t, election(c, "next").Lead(ctx, func(context.Context) error {
		led = true
		cancel()
		return nil
	}))
	require.True(t, led)
	require.Greater(t, time.Since(now.Time), lease*9/10, "the lease must not be acquired before it has expired")
}

// TestLeadFails: errors are returned, and a replica that never leads can be stopped.
func TestLeadFails(t *testing.T) { bubble.Test(t, fails) }

func fails(t *testing.T) {
	c := clientset()
	failure := errors.New("broken")
	require.ErrorIs(t, election(c, "one").Lead(t.Context(), func(context.Context) error { return failure }), failure)

	leading := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		_ = election(c, "two").Lead(ctx, func(ctx context.Context) error {
			close(leading)
			<-ctx.Done()
			return nil
		})
	})
	<-leading
	never, stop := context.WithTimeout(t.Context(), lease)
	defer stop()
	require.NoError(t, election(c, "three").Lead(never, func(context.Context) error { return failure }))
	cancel()
	running.Wait()
}
