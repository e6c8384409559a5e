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

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile/leader"
	"github.com/shardplane/shardplane/pkg/tenancy"
)

const (
	// leaseName is the name of the Lease in tenancy.AdminCluster whose holder
	// runs the controllers.
	leaseName = "shard-controllers"
	// leasePoll is how often the shard tries to make the namespace of the lease,
	// which it cannot before it serves.
	leasePoll = 50 * time.Millisecond
)

// lead calls run while this replica of the shard leads. An embedded etcd has one
// replica only.
func (s *Server) lead(ctx context.Context, run func(ctx context.Context) error) error {
	if len(s.options.Etcd.Servers) == 0 || !s.options.LeaderElect {
		return run(ctx)
	}
	scope := s.sources.Local.Cluster(tenancy.AdminCluster.Path())
	leases, err := coordinationv1client.NewForConfigAndClient(scope.Config(), scope.HTTPClient())
	if err != nil {
		return fmt.Errorf("client for leases: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("electing a leader: %w", err)
	}
	// The controller that makes this namespace everywhere else waits for the lease.
	err = wait.PollUntilContextCancel(ctx, leasePoll, true, func(ctx context.Context) (bool, error) {
		_, err := client.Namespaces.In(scope).Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceDefault}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			klog.FromContext(ctx).V(2).Info("Cannot make the namespace of the lease, trying again", "err", err)
			return false, nil
		}
		return true, nil
	})
	if err != nil {
		return nil //nolint:nilerr // stopped while it waited, which is no failure
	}
	return leader.Election{Lock: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: leaseName},
		Client:     leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())},
	}}.Lead(ctx, run)
}
