// Package partitionset creates the Partitions of PartitionSets: one for each combination of label values of the matching
// shards. The Partitions are owned by the set and updated with the shards.
package partitionset

import (
	"context"
	"errors"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	topologyv1alpha1 "github.com/kcp-dev/sdk/apis/topology/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

// Name is the name of the controller.
const Name = "partitionset"

// Config configures the controller. Sets and Partitions contain the objects of all logical clusters of the shard. Shards are the
// registered shards.
type Config struct {
	// Local reaches the shard itself as system:masters.
	Local      *client.Factory
	Sets       *client.Informer[*topologyv1alpha1.PartitionSet]
	Partitions *client.Informer[*topologyv1alpha1.Partition]
	Shards     *client.Informer[*corev1alpha1.Shard]
}

// NewPartitionSetController returns the controller. Its keys are PartitionSets, including deleted ones.
func NewPartitionSetController(config Config) *reconcile.Controller[client.Key] {
	r := &partitionSetReconciler{
		set: config.Sets.Lister().Get,
		partitions: func(cluster logicalcluster.Name) []*topologyv1alpha1.Partition {
			return config.Partitions.Lister().Cluster(cluster).List(nil)
		},
		shards: func() []*corev1alpha1.Shard { return config.Shards.Lister().Cluster(core.RootCluster).List(nil) },
		commit: func(ctx context.Context, old, updated *topologyv1alpha1.PartitionSet) error {
			_, err := reconcile.Commit(ctx, kinds.PartitionSets.In(config.Local.Cluster(logicalcluster.From(old).Path())), old, updated)
			return err
		},
		in: func(cluster logicalcluster.Name) partitions {
			return kinds.Partitions.In(config.Local.Cluster(cluster.Path()))
		},
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name, Reconcile: r.reconcile,
		Sources: []reconcile.Source[client.Key]{
			reconcile.Keys(config.Sets),
			reconcile.FromInformer(config.Partitions, func(p *topologyv1alpha1.Partition) []client.Key {
				if name, _, ok := setOf(p); ok {
					return []client.Key{{Cluster: logicalcluster.From(p), Name: name}}
				}
				return nil
			}),
			reconcile.FromChanges(config.Shards, func(old, shard *corev1alpha1.Shard) bool {
				return !equality.Semantic.DeepEqual(old.Labels, shard.Labels)
			}, func() []client.Key { return reconcile.KeysOf(config.Sets.Lister().List(nil)...) }),
		},
	})
}

type partitions interface {
	Create(ctx context.Context, p *topologyv1alpha1.Partition, opts metav1.CreateOptions) (*topologyv1alpha1.Partition, error)
	Update(ctx context.Context, p *topologyv1alpha1.Partition, opts metav1.UpdateOptions) (*topologyv1alpha1.Partition, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

type partitionSetReconciler struct {
	set        func(key client.Key) (*topologyv1alpha1.PartitionSet, error)
	partitions func(cluster logicalcluster.Name) []*topologyv1alpha1.Partition
	shards     func() []*corev1alpha1.Shard
	commit     func(ctx context.Context, old, updated *topologyv1alpha1.PartitionSet) error
	in         func(cluster logicalcluster.Name) partitions
}

func (r *partitionSetReconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	set, err := r.set(key)
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, err
	}
	var wanted map[string]*topologyv1alpha1.Partition
	deleted := err != nil || set.DeletionTimestamp != nil
	if !deleted {
		var invalid error
		if wanted, invalid = partitionsOf(set, r.shards()); invalid != nil {
			return reconcile.Result{}, reconcile.IgnoreNotFound(r.commit(ctx, set, withStatus(set, 0, invalid, nil)))
		}
	}
	taken, err := r.align(ctx, key, wanted)
	if deleted || err != nil {
		return reconcile.Result{}, err
	}
	result := reconcile.Result{Backoff: taken != nil} // conflicting Partitions may be deleted
	return result, reconcile.IgnoreNotFound(r.commit(ctx, set, withStatus(set, len(wanted), nil, taken)))
}

// align creates, updates and deletes the Partitions of a set. taken lists names that other Partitions use.
func (r *partitionSetReconciler) align(ctx context.Context, key client.Key, wanted map[string]*topologyv1alpha1.Partition) (taken, err error) {
	in := r.in(key.Cluster)
	have := map[string]*topologyv1alpha1.Partition{}
	for _, p := range r.partitions(key.Cluster) {
		have[p.Name] = p
	}
	for name, p := range have {
		owner, uid, owned := setOf(p)
		want := wanted[name]
		switch {
		case !owned || owner != key.Name:
			if want != nil {
				taken = errors.Join(taken, takenError(name))
			}
		case want == nil || want.OwnerReferences[0].UID != uid:
			err = errors.Join(err, reconcile.IgnoreNotFound(in.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})))
		case !equality.Semantic.DeepEqual(want.Spec, p.Spec):
			updated := p.DeepCopy()
			updated.Spec = want.Spec
			_, failed := in.Update(ctx, updated, metav1.UpdateOptions{})
			err = errors.Join(err, reconcile.IgnoreNotFound(failed))
		}
	}
	for name, want := range wanted {
		if have[name] != nil {
			continue
		}
		if _, failed := in.Create(ctx, want, metav1.CreateOptions{}); failed != nil && !apierrors.IsAlreadyExists(failed) {
			err = errors.Join(err, fmt.Errorf("creating the Partition %s: %w", name, failed))
		}
	}
	return taken, err
}
