package shard_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/shardplane/shardplane/test/harness"
)

// places asks a replica whether its shard places for others.
func (r *replica) places(ctx context.Context) error {
	c, err := kubernetes.NewForConfig(r.config)
	if err != nil {
		return err
	}
	return c.RESTClient().Get().AbsPath("/placement").Do(ctx).Error()
}

// TestTheLeaderPlaces: a replica says of its leader whether that places for other shards, and
// not of itself.
func TestTheLeaderPlaces(t *testing.T) {
	r := startReplica(t, harness.Etcd(t, transport.TLSInfo{}))
	r.await("the leader places", r.places)

	// A replica of the previous version takes over.
	leases := r.cluster("system:admin").CoordinationV1().Leases("default")
	ours := r.leader()
	former, _, _ := strings.Cut(ours, "_places")
	require.NotEqual(t, ours, former)
	r.await("the lease is taken", func(ctx context.Context) error {
		lease, err := leases.Get(ctx, "shard-controllers", metav1.GetOptions{})
		if err != nil {
			return err
		}
		seconds := int32(60)
		lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &former, &seconds
		lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		return err
	})
	require.True(t, apierrors.IsNotFound(r.places(t.Context())), "it does not place")
}
