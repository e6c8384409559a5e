// Package partitionset makes the Partitions of PartitionSets: one for each combination
// of the values that the matching shards have for the set's dimensions. They are owned by
// the set, change with the shards, and go with it.
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

// Config is what the controller needs. Sets and Partitions are those of all logical
// clusters of the shard, Shards those that are registered in root.
type Config struct {
	// Local reaches the shard itself as system:masters.
	Local      *client.Factory
	Sets       *client.Informer[*topologyv1alpha1.PartitionSet]
	Partitions *client.Informer[*topologyv1alpha1.Partition]
	Shards     *client.Informer[*corev1alpha1.Shard]
}

// New returns the controller. Its keys are sets, those that are gone among them.
func New(config Config) *reconcile.Controller[client.Key] {
	r := &reconciler{
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
		Name:      Name,
		Reconcile: r.reconcile,
		Sources: []reconcile.Source[client.Key]{
			reconcile.Keys(config.Sets),
			reconcile.FromInformer(config.Partitions, func(p *topologyv1alpha1.Partition) []client.Key {
				if name, _, ok := setOf(p); ok {
					return []client.Key{{Cluster: logicalcluster.From(p), Name: name}}
				}
				return nil
			}),
			shardChanges(config),
		},
	})
}

// shardChanges has all sets looked at when a shard comes, goes, or gets other labels.
func shardChanges(config Config) reconcile.Source[client.Key] {
	return func(_ context.Context, queue reconcile.Queue[client.Key]) (func(), error) {
		all := func() {
			for _, set := range config.Sets.Lister().List(nil) {
				queue.Add(client.KeyOf(set))
			}
		}
		return config.Shards.AddEventHandler(client.Handler[*corev1alpha1.Shard]{
			OnAdd: func(*corev1alpha1.Shard, bool) { all() },
			OnUpdate: func(old, obj *corev1alpha1.Shard) {
				if !equality.Semantic.DeepEqual(old.Labels, obj.Labels) {
					all()
				}
			},
			OnDelete: func(*corev1alpha1.Shard, bool) { all() },
		}).Remove, nil
	}
}

// partitions are the Partitions of a logical cluster.
type partitions interface {
	Create(ctx context.Context, p *topologyv1alpha1.Partition, opts metav1.CreateOptions) (*topologyv1alpha1.Partition, error)
	Update(ctx context.Context, p *topologyv1alpha1.Partition, opts metav1.UpdateOptions) (*topologyv1alpha1.Partition, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

type reconciler struct {
	set        func(key client.Key) (*topologyv1alpha1.PartitionSet, error)
	partitions func(cluster logicalcluster.Name) []*topologyv1alpha1.Partition
	shards     func() []*corev1alpha1.Shard
	commit     func(ctx context.Context, old, updated *topologyv1alpha1.PartitionSet) error
	in         func(cluster logicalcluster.Name) partitions
}

func (r *reconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	set, err := r.set(key)
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, err
	}
	var wanted map[string]*topologyv1alpha1.Partition
	gone := err != nil || set.DeletionTimestamp != nil
	if !gone {
		var invalid error
		if wanted, invalid = partitionsOf(set, r.shards()); invalid != nil {
			return reconcile.Result{}, ignoreNotFound(r.commit(ctx, set, tell(set, 0, invalid, nil)))
		}
	}
	taken, err := r.align(ctx, key, wanted)
	if gone || err != nil {
		return reconcile.Result{}, err
	}
	result := reconcile.Result{Backoff: taken != nil} // what is in the way may go
	return result, ignoreNotFound(r.commit(ctx, set, tell(set, len(wanted), nil, taken)))
}

// align makes the partitions of a set those that are wanted. It returns which names are
// in use by others.
func (r *reconciler) align(ctx context.Context, key client.Key, wanted map[string]*topologyv1alpha1.Partition) (taken, err error) {
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
			err = errors.Join(err, ignoreNotFound(in.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})))
		case !equality.Semantic.DeepEqual(want.Spec, p.Spec):
			updated := p.DeepCopy()
			updated.Spec = want.Spec
			_, failed := in.Update(ctx, updated, metav1.UpdateOptions{})
			err = errors.Join(err, ignoreNotFound(failed))
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

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
