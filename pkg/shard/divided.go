package shard

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/ring"
	"github.com/shardplane/shardplane/pkg/lifecycle"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	// ringName is the name of the ring over which the replicas of a shard divide controllers.
	// Its Leases are beside that of the leader.
	ringName = "shard-replicas"
	// ringRetry is how long a replica waits that was refused by the others.
	ringRetry = 5 * time.Second
)

// divide runs the controllers that the replicas of the shard divide. An embedded etcd has one
// replica only, which has all.
func (s *Server) divide(ctx context.Context, controllers func(by reconcile.Divider) (*lifecycle.Group, error)) error {
	if !s.elects() {
		group, err := controllers(nil)
		if err != nil {
			return err
		}
		return group.Run(ctx)
	}
	if !s.makeLeaseNamespace(ctx) {
		return nil
	}
	for {
		err := s.divideOnce(ctx, controllers)
		if ctx.Err() != nil || errors.Is(err, ring.ErrOverrun) {
			return err
		}
		klog.FromContext(ctx).Error(err, "Cannot take part in dividing controllers among the replicas, trying again", "ring", ringName)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(ringRetry):
		}
	}
}

// divideOnce takes part until ctx ends, or the others refuse this replica.
func (s *Server) divideOnce(ctx context.Context, controllers func(by reconcile.Divider) (*lifecycle.Group, error)) error {
	replicas, err := ring.New(ring.Config{
		Name: ringName, ID: "replica", Key: client.ByCluster,
		Leases: s.sources.Local.Cluster(tenancy.AdminCluster.Path()), Namespace: metav1.NamespaceDefault,
		Metrics: s.metrics,
	})
	if err != nil {
		return err
	}
	group, err := controllers(replicas)
	if err != nil {
		return err
	}
	return replicas.Run(ctx, group.Run)
}
