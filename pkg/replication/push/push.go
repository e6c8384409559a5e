package push

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replication"
)

const (
	// pushTries limits immediate retries after conflicts.
	pushTries = 3
	// coalescing delays the next write of a replica, to combine further changes.
	coalescing = 50 * time.Millisecond
)

func (s *session) reconcile(ctx context.Context, key client.Key) (err error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	why, end := s.ledger.begin(key)
	defer func() {
		end()
		if err != nil { // the result of the write is unknown
			s.ledger.markDirty(key, max(why, dirtyWrite))
		}
	}()
	local, err := s.wanted(ctx, key)
	if err != nil {
		return err
	}
	if err := s.push(ctx, key, local, why); err != nil {
		return err
	}
	s.config.metrics.objects.WithLabelValues(s.config.CacheName, s.name()).Set(float64(s.expected.Len()))
	done := s.ledger.done(key)
	if done.initial {
		s.initial.Add(-1)
		s.config.metrics.pending.WithLabelValues(s.config.CacheName, s.name()).Dec()
	}
	if !done.since.IsZero() {
		s.config.metrics.lag.WithLabelValues(s.config.CacheName, s.counted(), untilAcknowledged).Observe(time.Since(done.since).Seconds())
	}
	signal(s.acknowledgements)
	return nil
}

// wanted returns the object that must have a replica, or nil.
func (s *session) wanted(ctx context.Context, key client.Key) (*unstructured.Unstructured, error) {
	if s.unconfirmed() {
		return nil, errSourceIncomplete
	}
	local, err := replication.GetObject(ctx, s.config.Local, s.resource, key)
	switch {
	case err != nil:
		return nil, err
	case s.unconfirmed(): // the response may come from other data
		return nil, errSourceIncomplete
	case local == nil && s.source != nil:
		return nil, s.confirmDeleted(ctx)
	case local != nil && !s.resource.Selects(local):
		return nil, nil //nolint:nilnil // it must have no replica
	}
	return local, nil
}

// push writes the replica of an object if it is not the expected one. local is nil if there must be no replica. The
// replica is only read before if another client may have written it.
func (s *session) push(ctx context.Context, key client.Key, local *unstructured.Unstructured, why dirtyReason) error {
	hash, at, has := s.expected.Get(key.String())
	if why != clean {
		return s.readAndPush(ctx, key, local, why)
	}
	var want *unstructured.Unstructured
	if local != nil {
		want = s.resource.Desired(local)
		wanted, err := replication.HashReplica(key.String(), want.Object)
		if err != nil || has && hash == wanted {
			return err
		}
	}
	todo, obj := replication.ActionDelete, replicaAt(key, at)
	switch {
	case !has && local == nil:
		return nil
	case !has:
		todo, obj = replication.ActionCreate, want
	case at == 0:
		return s.readAndPush(ctx, key, local, why)
	case local != nil:
		todo, obj = replication.ActionUpdate, replication.Following(want, obj)
	}
	err := s.do(ctx, key, local, todo, obj)
	if apierrors.IsConflict(err) {
		return s.readAndPush(ctx, key, local, why)
	}
	return err
}

// replicaAt returns the metadata of a replica that was written at a resource version.
func replicaAt(key client.Key, version uint64) *unstructured.Unstructured {
	replica := &unstructured.Unstructured{Object: map[string]any{}}
	replica.SetName(key.Name)
	replica.SetResourceVersion(fmt.Sprint(version))
	return replica
}

// readAndPush is push based on the current replica.
func (s *session) readAndPush(ctx context.Context, key client.Key, local *unstructured.Unstructured, why dirtyReason) error {
	for try := range pushTries {
		replica, err := replication.GetObject(ctx, s.config.replicas(), s.resource, key)
		if err != nil {
			return err
		}
		todo, obj := replication.Decide(s.resource, local, replica)
		if problem := todo.Problem(); try == 0 && why == dirtyDigest && problem != "" {
			s.config.metrics.repairs.WithLabelValues(s.config.CacheName, s.counted(), string(problem)).Inc()
			klog.FromContext(ctx).Info("Repairing a replica that differs by its digest", "key", key.String(), "problem", problem)
		}
		if todo == replication.ActionNone {
			s.expect(ctx, key, local, replica)
			return nil
		}
		if err := s.do(ctx, key, local, todo, obj); !apierrors.IsConflict(err) {
			return err
		}
	}
	return apierrors.NewConflict(s.resource.GroupResource(), key.String(), errors.New("other clients keep changing the replica"))
}

// do writes a replica and records the result.
func (s *session) do(ctx context.Context, key client.Key, local *unstructured.Unstructured, todo replication.Action, obj *unstructured.Unstructured) error {
	written, err := s.apply(ctx, key, todo, obj)
	if err != nil {
		return err
	}
	s.recent.Set(key, time.Now(), coalescing)
	s.expect(ctx, key, local, written)
	klog.FromContext(ctx).V(3).Info("Replicated", "action", todo, "key", key.String())
	return nil
}

// expect records the replica of an object after a write, or none if one of them is nil.
func (s *session) expect(ctx context.Context, key client.Key, local, replica *unstructured.Unstructured) {
	text := key.String()
	if local == nil || replica == nil {
		s.expected.Remove(text)
		return
	}
	hash, err := replication.HashReplica(text, s.resource.Desired(local).Object)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to hash a replica")
		return
	}
	version, err := strconv.ParseUint(replica.GetResourceVersion(), 10, 64)
	if err != nil {
		version = 0 // unknown
	}
	s.expected.Set(text, hash, version)
}

// work replicates the pending keys and then changes.
func (s *session) work(ctx context.Context) error {
	controller := reconcile.New(reconcile.Config[client.Key]{
		Name: Name + "-" + s.config.CacheName + "-" + s.counted(),
		Reconcile: func(ctx context.Context, key client.Key) (reconcile.Result, error) {
			written, _ := s.recent.Get(key)
			at, _ := written.(time.Time) // zero unless it was written recently
			if wait := coalescing - time.Since(at); wait > 0 {
				return reconcile.Result{RequeueAfter: wait}, nil
			}
			return reconcile.Result{}, s.reconcile(ctx, key)
		},
		Sources: []reconcile.Source[client.Key]{s.feed},
		Workers: maxWrites,
	})
	if err := controller.Run(ctx); err != nil {
		return err
	}
	return context.Cause(ctx)
}
