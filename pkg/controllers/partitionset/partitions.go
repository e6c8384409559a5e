package partitionset

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	topologyv1alpha1 "github.com/kcp-dev/sdk/apis/topology/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// partitionsOf returns the partitions of a set, by name: one for each combination of the
// values that the matching shards have for its dimensions. Shards without a value for one
// of them are in none. The error says what is wrong with the selector.
func partitionsOf(set *topologyv1alpha1.PartitionSet, shards []*corev1alpha1.Shard) (map[string]*topologyv1alpha1.Partition, error) {
	selector := labels.Everything()
	if set.Spec.ShardSelector != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(set.Spec.ShardSelector); err != nil {
			return nil, err
		}
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
			ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{ownerOf(set)}},
			Spec:       topologyv1alpha1.PartitionSpec{Selector: restricted(set.Spec.ShardSelector, dimensions, values)},
		}
	}
	return all, nil
}

// valuesOf returns what a shard has for the dimensions; complete if it has all of them.
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

// restricted returns a selector that has the values for the dimensions, too.
func restricted(selector *metav1.LabelSelector, dimensions, values []string) *metav1.LabelSelector {
	with := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	if selector != nil {
		maps.Copy(with.MatchLabels, selector.MatchLabels)
		with.MatchExpressions = selector.DeepCopy().MatchExpressions
	}
	for i, dimension := range dimensions {
		with.MatchLabels[dimension] = values[i]
	}
	if len(with.MatchLabels) == 0 {
		with.MatchLabels = nil
	}
	return with
}

// notInNames is what values of labels may have, and names of objects not.
var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// nameOf returns the name of the partition of a set with values: one that tells them,
// followed by a hash where it cannot tell them apart from others.
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

// ownerOf returns the reference of partitions to their set.
func ownerOf(set *topologyv1alpha1.PartitionSet) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: topologyv1alpha1.SchemeGroupVersion.String(), Kind: "PartitionSet", Name: set.Name, UID: set.UID,
	}
}

// setOf returns name and UID of the set of a partition; false if it is of none.
func setOf(partition *topologyv1alpha1.Partition) (name string, uid types.UID, ok bool) {
	for _, owner := range partition.OwnerReferences {
		if owner.Kind == "PartitionSet" && strings.HasPrefix(owner.APIVersion, topologyv1alpha1.SchemeGroupVersion.Group+"/") {
			return owner.Name, owner.UID, true
		}
	}
	return "", "", false
}

// tell returns a set that says how many partitions it has, and what is wrong: invalid with
// its selector, failed with some of the partitions.
func tell(set *topologyv1alpha1.PartitionSet, count int, invalid, failed error) *topologyv1alpha1.PartitionSet {
	set = set.DeepCopy()
	if invalid != nil {
		conditions.MarkFalse(set, topologyv1alpha1.PartitionSetValid, topologyv1alpha1.PartitionSetInvalidSelectorReason, conditionsv1alpha1.ConditionSeverityError,
			"spec.shardSelector is not valid, correct it: %v", invalid)
		conditions.MarkFalse(set, topologyv1alpha1.PartitionsReady, topologyv1alpha1.ErrorGeneratingPartitionsReason, conditionsv1alpha1.ConditionSeverityError,
			"The condition %s says why there are no other partitions", topologyv1alpha1.PartitionSetValid)
		return set // it has those that it had
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

// takenError says that the name of a partition is in use.
func takenError(name string) error {
	return fmt.Errorf("the Partition %s exists and is not of this set: delete it, or rename the set", name)
}
