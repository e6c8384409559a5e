// Package heartbeat reports the liveness and load of this shard to the root shard by renewing a Lease in root.
package heartbeat

import (
	"context"
	"fmt"
	"time"

	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/tenancy/shardload"
)

// Name is the name of the controller.
const Name = "heartbeat"

const (
	// rootWait is the delay before checking again whether root is initialized.
	rootWait = time.Second
	// firstRetry and maxBackoff bound the backoff if the root shard does not respond.
	firstRetry, maxBackoff = 100 * time.Millisecond, 5 * time.Second
	// timeout limits a request: after the interval, the next heartbeat is due.
	timeout = shardload.Interval
)

// Config configures the controller.
type Config struct {
	ShardName string
	// Root is the logical cluster root on the root shard.
	Root client.Scope
	// Own contains the Shard of this shard as stored on the root shard.
	Own *client.Informer[*corev1alpha1.Shard]
	// Load returns the load of the shard, or nil if it is unknown.
	Load func() *shardload.Load
	// Done is called with the result of each heartbeat, unless root is being initialized; it may be nil.
	Done func(err error)
}

type leases interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*coordinationv1.Lease, error)
	Create(ctx context.Context, lease *coordinationv1.Lease, options metav1.CreateOptions) (*coordinationv1.Lease, error)
	Update(ctx context.Context, lease *coordinationv1.Lease, options metav1.UpdateOptions) (*coordinationv1.Lease, error)
}

// NewHeartbeatController returns the controller.
func NewHeartbeatController(config Config) *reconcile.Controller[string] {
	own := config.Own.Lister()
	h := &heartbeat{
		Config: config, now: time.Now,
		leases: kinds.Leases.InNamespace(config.Root, shardload.LeaseNamespace),
		owner: func() []metav1.OwnerReference {
			shard, err := own.Get(client.Key{Cluster: core.RootCluster, Name: config.ShardName})
			if err != nil {
				return nil
			}
			return []metav1.OwnerReference{{APIVersion: corev1alpha1.SchemeGroupVersion.String(), Kind: "Shard", Name: shard.Name, UID: shard.UID}}
		},
	}
	return reconcile.New(reconcile.Config[string]{
		Name: Name, Reconcile: h.reconcile, Workers: 1, MinBackoff: firstRetry, MaxBackoff: maxBackoff, Timeout: timeout,
		Sources: []reconcile.Source[string]{reconcile.Once(config.ShardName)},
	})
}

// heartbeat renews one Lease. Its methods must not be called concurrently.
type heartbeat struct {
	Config

	leases leases
	now    func() time.Time
	owner  func() []metav1.OwnerReference // the Shard
	last   *coordinationv1.Lease          // as written last; nil if it must be read
}

func (h *heartbeat) reconcile(ctx context.Context, _ string) (reconcile.Result, error) {
	err := h.renew(ctx)
	if h.Done != nil && !apierrors.IsNotFound(err) {
		h.Done(err)
	}
	if err != nil {
		h.last = nil // it may have been written concurrently
	}
	if apierrors.IsNotFound(err) {
		// The namespaces of root are created after root.
		klog.FromContext(ctx).V(2).Info("The namespace for heartbeats does not exist in root yet", "err", err)
		return reconcile.Result{RequeueAfter: rootWait}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("renewing the heartbeat of shard %s in root: %w", h.ShardName, err)
	}
	return reconcile.Result{RequeueAfter: shardload.Interval}, nil
}

func (h *heartbeat) renew(ctx context.Context) error {
	name := shardload.LeaseName(h.ShardName)
	if h.last == nil {
		found, err := h.leases.Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			h.last = found
		} else if !apierrors.IsNotFound(err) {
			return err
		}
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if h.last != nil {
		lease = h.last.DeepCopy()
	}
	metav1.SetMetaDataLabel(&lease.ObjectMeta, shardload.LeaseLabel, h.ShardName)
	lease.OwnerReferences = h.owner()
	lease.Spec.HolderIdentity = new(h.ShardName)
	lease.Spec.LeaseDurationSeconds = new(int32(shardload.Missed * shardload.Interval / time.Second))
	lease.Spec.RenewTime = &metav1.MicroTime{Time: h.now()}
	err := shardload.SetOnLease(lease, h.Load())
	switch {
	case err != nil:
	case h.last == nil:
		h.last, err = h.leases.Create(ctx, lease, metav1.CreateOptions{})
	default:
		h.last, err = h.leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	return err
}
