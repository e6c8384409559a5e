// Package partitionset creates the Partitions of PartitionSets: one for each combination of label values of the matching
// shards. The Partitions are owned by the set and updated with the shards.
package partitionset

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	topologyv1alpha1 "github.com/kcp-dev/sdk/apis/topology/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/request"
)

// Name is the name of the controller.
const Name = "partitionset"

// NewPartitionSetController returns the controller. Its keys are PartitionSets, including deleted ones. sets and existing contain the
// objects of all logical clusters of the shard; shards are the registered shards.
func NewPartitionSetController(local *client.Factory, sets *client.Informer[*topologyv1alpha1.PartitionSet], existing *client.Informer[*topologyv1alpha1.Partition], shards *client.Informer[*corev1alpha1.Shard]) *reconcile.Controller[client.Key] {
	r := &partitionSetReconciler{
		set: sets.Lister().Get,
		partitions: func(cluster logicalcluster.Name) []*topologyv1alpha1.Partition {
			return existing.Lister().Cluster(cluster).List(nil)
		},
		shards: func() []*corev1alpha1.Shard { return shards.Lister().Cluster(core.RootCluster).List(nil) },
		commit: reconcile.Committer(local, kinds.PartitionSets),
		in: func(cluster logicalcluster.Name) partitions {
			return kinds.Partitions.In(local.Cluster(cluster.Path()))
		},
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name, Reconcile: r.reconcile,
		Sources: []reconcile.Source[client.Key]{
			reconcile.Keys(sets),
			reconcile.FromInformer(existing, func(p *topologyv1alpha1.Partition) []client.Key {
				if name, _, ok := setOf(p); ok {
					return []client.Key{{Cluster: logicalcluster.From(p), Name: name}}
				}
				return nil
			}),
			reconcile.FromChanges(shards, func(old, shard *corev1alpha1.Shard) bool {
				return !equality.Semantic.DeepEqual(old.Labels, shard.Labels)
			}, func() []client.Key { return reconcile.KeysOf(sets.Lister().List(nil)...) }),
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
	commit     func(ctx context.Context, old, updated *topologyv1alpha1.PartitionSet) (*topologyv1alpha1.PartitionSet, error)
	in         func(cluster logicalcluster.Name) partitions
}

func (r *partitionSetReconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	set, err := r.set(key)
	var wanted map[string]*topologyv1alpha1.Partition
	deleted := err != nil || set.DeletionTimestamp != nil
	if !deleted {
		var invalid error
		if wanted, invalid = partitionsOf(set, r.shards()); invalid != nil {
			_, err := r.commit(ctx, set, withStatus(set, 0, invalid, nil))
			return reconcile.Result{}, reconcile.IgnoreNotFound(err)
		}
	}
	taken, err := r.align(ctx, key, wanted)
	if deleted || err != nil {
		return reconcile.Result{}, err
	}
	_, err = r.commit(ctx, set, withStatus(set, len(wanted), nil, taken))
	return reconcile.Result{Backoff: taken != nil}, reconcile.IgnoreNotFound(err) // conflicting Partitions may be deleted
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
				taken = errors.Join(taken, fmt.Errorf("the Partition %s exists and does not belong to this set: delete it, or rename the set", name))
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

// partitionsOf returns the desired Partitions of a set by name. Shards without a value for one of the dimensions are
// ignored. It returns an error if the selector is invalid.
func partitionsOf(set *topologyv1alpha1.PartitionSet, shards []*corev1alpha1.Shard) (map[string]*topologyv1alpha1.Partition, error) {
	selector := labels.Everything()
	if set.Spec.ShardSelector != nil {
		var err error
		if selector, err = request.LabelSelector(set.Spec.ShardSelector); err != nil {
			return nil, err
		}
	}
	owner := metav1.OwnerReference{
		APIVersion: topologyv1alpha1.SchemeGroupVersion.String(), Kind: "PartitionSet", Name: set.Name, UID: set.UID,
	}
	dimensions := slices.Compact(slices.Sorted(slices.Values(set.Spec.Dimensions)))
	all := map[string]*topologyv1alpha1.Partition{}
	for _, shard := range shards {
		values, complete := valuesOf(shard, dimensions)
		if !complete || !selector.Matches(labels.Set(shard.Labels)) {
			continue
		}
		name := nameOf(set.Name, values)
		all[name] = &topologyv1alpha1.Partition{
			ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{owner}},
			Spec:       topologyv1alpha1.PartitionSpec{Selector: restricted(set.Spec.ShardSelector, dimensions, values)},
		}
	}
	return all, nil
}

// valuesOf returns the values of a shard for the dimensions; complete is false if one is missing.
func valuesOf(shard *corev1alpha1.Shard, dimensions []string) (values []string, complete bool) {
	for _, dimension := range dimensions {
		value, has := shard.Labels[dimension]
		if !has {
			return nil, false
		}
		values = append(values, value)
	}
	return values, true
}

func restricted(selector *metav1.LabelSelector, dimensions, values []string) *metav1.LabelSelector {
	with := cmp.Or(selector, &metav1.LabelSelector{}).DeepCopy()
	for i, dimension := range dimensions {
		metav1.AddLabelToSelector(with, dimension, values[i])
	}
	return with
}

// notInNames matches characters of label values that names of objects must not contain.
var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// nameOf returns a readable name for a Partition, with a hash suffix if the name would not be unique.
func nameOf(set string, values []string) string {
	name, plain := set, true
	for _, value := range values {
		part := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(value), "-"), "-")
		plain = plain && part == value && part != "" && !strings.Contains(part, "-")
		if part != "" {
			name += "-" + part
		}
	}
	if plain && len(name) <= validation.DNS1123SubdomainMaxLength {
		return name
	}
	hash := sha256.Sum256([]byte(strings.Join(values, "\n")))
	suffix := "-" + hex.EncodeToString(hash[:4])
	if most := validation.DNS1123SubdomainMaxLength - len(suffix); len(name) > most {
		name = strings.TrimRight(name[:most], "-.")
	}
	return name + suffix
}

func setOf(partition *topologyv1alpha1.Partition) (name string, uid types.UID, ok bool) {
	for _, owner := range partition.OwnerReferences {
		if owner.Kind == "PartitionSet" && strings.HasPrefix(owner.APIVersion, topologyv1alpha1.SchemeGroupVersion.Group+"/") {
			return owner.Name, owner.UID, true
		}
	}
	return "", "", false
}

// withStatus updates the status of a set; invalid is an error of its selector, and failed of some of its Partitions.
func withStatus(set *topologyv1alpha1.PartitionSet, count int, invalid, failed error) *topologyv1alpha1.PartitionSet {
	set = set.DeepCopy()
	if invalid != nil {
		conditions.MarkFalse(set, topologyv1alpha1.PartitionSetValid, topologyv1alpha1.PartitionSetInvalidSelectorReason, conditionsv1alpha1.ConditionSeverityError,
			"spec.shardSelector is invalid: %v", invalid)
		conditions.MarkFalse(set, topologyv1alpha1.PartitionsReady, topologyv1alpha1.ErrorGeneratingPartitionsReason, conditionsv1alpha1.ConditionSeverityError,
			"See the condition %s", topologyv1alpha1.PartitionSetValid)
		return set // existing Partitions stay
	}
	conditions.MarkTrue(set, topologyv1alpha1.PartitionSetValid)
	set.Status.Count = uint(max(count, 0)) //nolint:gosec // never negative
	if failed != nil {
		conditions.MarkFalse(set, topologyv1alpha1.PartitionsReady, topologyv1alpha1.ErrorGeneratingPartitionsReason, conditionsv1alpha1.ConditionSeverityError, "%v", failed)
	} else {
		conditions.MarkTrue(set, topologyv1alpha1.PartitionsReady)
	}
	return set
}
