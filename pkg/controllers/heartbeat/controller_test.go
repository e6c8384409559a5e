package heartbeat

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

type store struct {
	lease    *coordinationv1.Lease
	version  int
	requests []string
	fail     error
}

func (s *store) Get(_ context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	s.requests = append(s.requests, "get")
	if s.lease == nil {
		return &coordinationv1.Lease{}, apierrors.NewNotFound(coordinationv1.Resource("leases"), name)
	}
	return s.lease.DeepCopy(), s.fail
}

func (s *store) Create(_ context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	return s.write("create", lease)
}

func (s *store) Update(_ context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if s.lease == nil || s.lease.ResourceVersion != lease.ResourceVersion {
		s.requests = append(s.requests, "conflict")
		return nil, apierrors.NewConflict(coordinationv1.Resource("leases"), lease.Name, errors.New("changed"))
	}
	return s.write("update", lease)
}

func (s *store) write(what string, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.requests = append(s.requests, what)
	if s.fail != nil {
		return nil, s.fail
	}
	s.version++
	s.lease = lease.DeepCopy()
	s.lease.ResourceVersion = strconv.Itoa(s.version)
	return s.lease.DeepCopy(), nil
}

// TestHeartbeat: a heartbeat is one request with the load. After a failure or a conflict, the Lease is read first.
func TestHeartbeat(t *testing.T) {
	s := &store{}
	now := time.Unix(100, 0)
	var load *shardload.Load
	owner := []metav1.OwnerReference{{Kind: "Shard", Name: "a", UID: "u"}}
	h := &heartbeat{Config: Config{ShardName: "a", Load: func() *shardload.Load { return load }}, leases: s, now: func() time.Time { return now }, owner: func() []metav1.OwnerReference { return owner }}
	var results []error
	h.Done = func(err error) { results = append(results, err) }
	renew := func(want ...string) error {
		t.Helper()
		s.requests = nil
		now = now.Add(time.Second)
		results = nil
		result, err := h.reconcile(t.Context(), "a")
		require.Equal(t, want, s.requests)
		require.Len(t, results, 1)
		require.Equal(t, err == nil, results[0] == nil)
		if err == nil {
			require.Equal(t, reconcile.Result{RequeueAfter: shardload.Interval}, result)
			require.Equal(t, now, s.lease.Spec.RenewTime.Time)
			require.Equal(t, owner, s.lease.OwnerReferences)
			require.Equal(t, "a", s.lease.Labels[shardload.LeaseLabel])
			require.Equal(t, "shard-a", s.lease.Name)
		}
		return err
	}
	s.fail = apierrors.NewNotFound(corev1.Resource("namespaces"), "kube-system")
	result, err := h.reconcile(t.Context(), "a")
	require.NoError(t, err, "a missing namespace in root must not be an error")
	require.Empty(t, results)
	require.Equal(t, reconcile.Result{RequeueAfter: rootWait}, result)
	s.fail = nil
	require.NoError(t, renew("get", "create"))
	_, known := shardload.OfLease(s.lease)
	require.False(t, known, "a heartbeat must not contain an unknown load")
	load = &shardload.Load{Workspaces: shardload.Amount{Used: 5}}
	require.NoError(t, renew("update"))
	reported, _ := shardload.OfLease(s.lease)
	require.Equal(t, *load, reported)

	s.fail = errors.New("connection refused")
	require.ErrorIs(t, renew("update"), s.fail)
	require.ErrorIs(t, renew("get"), s.fail)
	s.fail = nil
	require.NoError(t, renew("get", "update"))
	s.lease.ResourceVersion = "other"
	require.True(t, apierrors.IsConflict(renew("conflict")))
	require.NoError(t, renew("get", "update"))
	s.lease = nil
	require.Error(t, renew("conflict"))
	owner = nil
	require.NoError(t, renew("get", "create"))
}
