package shard

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile/leader"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	// leaseName is the name of the Lease in tenancy.AdminCluster whose holder runs the controllers.
	leaseName = "shard-controllers"
	// leasePoll is the interval of attempts to create the namespace of the Lease. They fail until the shard serves.
	leasePoll = 50 * time.Millisecond
)

// lead calls run while this replica is the leader. With an embedded etcd there is only one replica.
func (s *installation) lead(ctx context.Context, run func(ctx context.Context) error) error {
	if !s.elects() {
		return run(ctx)
	}
	leases, err := s.leases()
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("electing a leader: %w", err)
	}
	if !s.createLeaseNamespace(ctx) {
		return nil
	}
	return leader.Election{Lock: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: leaseName},
		Client:     leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())},
	}}.Lead(ctx, run)
}

// createLeaseNamespace creates the namespace of the Lease and returns false if ctx ends. The controller that creates this
// namespace findRemote needs the Lease itself.
func (s *installation) createLeaseNamespace(ctx context.Context) bool {
	scope := s.sources.Local.Cluster(tenancy.AdminCluster.Path())
	return wait.PollUntilContextCancel(ctx, leasePoll, true, func(ctx context.Context) (bool, error) {
		_, err := kinds.Namespaces.In(scope).Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceDefault}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			klog.FromContext(ctx).V(2).Info("Failed to create the namespace of the lease, retrying", "err", err)
			return false, nil
		}
		return true, nil
	}) == nil
}

func (s *installation) elects() bool { return len(s.options.Etcd.Servers) > 0 && s.options.LeaderElect }

func (s *installation) leases() (coordinationv1client.CoordinationV1Interface, error) {
	scope := s.sources.Local.Cluster(tenancy.AdminCluster.Path())
	leases, err := coordinationv1client.NewForConfigAndClient(scope.Config(), scope.HTTPClient())
	if err != nil {
		return nil, fmt.Errorf("client for leases: %w", err)
	}
	return leases, nil
}
