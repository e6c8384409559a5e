package push

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/replication"
)

// pushTries limits immediate retries after conflicts.
const pushTries = 3

func (s *session) reconcile(ctx context.Context, key client.Key) (err error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	why := s.dirtyKeys.take(key)
	defer func() {
		if err != nil { // the result of the write is unknown
			s.dirtyKeys.add(key, max(why, dirtyWrite))
		}
	}()
	s.ledger.begin(key)
	defer s.expected.begin(key)()
	local, err := s.wanted(ctx, key)
	if err != nil {
		return err
	}
	if err := s.push(ctx, key, local, why); err != nil {
		return err
	}
	s.config.metrics.objects.WithLabelValues(s.config.CacheName, s.name()).Set(float64(s.expected.Len()))
	s.progress.done(key)
	if since, waited := s.ledger.done(key); waited {
		s.config.metrics.lag.WithLabelValues(s.config.CacheName, s.counted(), untilAcknowledged).Observe(time.Since(since).Seconds())
	}
	s.acknowledged()
	return nil
}

// wanted returns the object that must have a replica, or nil.
func (s *session) wanted(ctx context.Context, key client.Key) (*unstructured.Unstructured, error) {
	if s.unsure() {
		return nil, errUnsure
	}
	local, err := replication.GetObject(ctx, s.config.Local, s.resource, key)
	switch {
	case err != nil:
		return nil, err
	case s.unsure(): // the response may come from other data
		return nil, errUnsure
	case local == nil && s.trust != nil:
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
		if problem := replication.ProblemOf(s.resource, local, replica); try == 0 && why == dirtyDigest && problem != "" {
			s.config.metrics.repairs.WithLabelValues(s.config.CacheName, s.counted(), string(problem)).Inc()
			klog.FromContext(ctx).Info("Repairing a replica that differs by its digest", "key", key.String(), "problem", problem)
		}
		todo, obj := replication.Decide(s.resource, local, replica)
		if todo == replication.ActionNone {
			s.expected.expect(ctx, s.resource, key, local, replica)
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
	s.expected.expect(ctx, s.resource, key, local, written)
	klog.FromContext(ctx).V(3).Info("Replicated", "action", todo, "key", key.String())
	return nil
}

// work replicates changes after the initial synchronization.
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
