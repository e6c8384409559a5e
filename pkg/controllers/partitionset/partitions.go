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

// partitionsOf returns the desired Partitions of a set by name. Shards without a value for one of the dimensions are
// ignored. It returns an error if the selector is invalid.
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

func ownerOf(set *topologyv1alpha1.PartitionSet) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: topologyv1alpha1.SchemeGroupVersion.String(), Kind: "PartitionSet", Name: set.Name, UID: set.UID,
	}
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

func takenError(name string) error {
	return fmt.Errorf("the Partition %s exists and does not belong to this set: delete it, or rename the set", name)
}
