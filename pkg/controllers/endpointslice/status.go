package endpointslice

import (
	"net/url"
	"slices"
	"strings"

	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	topologyv1alpha1 "github.com/kcp-dev/sdk/apis/topology/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

type state struct {
	export    *apisv1alpha2.APIExport     // nil if it does not exist
	cached    bool                        // whether the referenced cached resource exists
	partition *topologyv1alpha1.Partition // nil if it does not exist
	shards    []*corev1alpha1.Shard
	consumed  func(shard string) bool // whether the export has bindings on a shard
}

func (k Kind[T]) advance(slice T, s state) T {
	slice, _ = slice.DeepCopyObject().(T)
	its := k.Of(slice)
	selector, valid := selectorOf(slice, its.Partition, s.partition)
	if problem := k.Invalid(slice, s.export); problem == nil {
		conditions.MarkTrue(slice, apisv1alpha2.APIExportValid)
	} else {
		valid = false
		conditions.MarkFalse(slice, apisv1alpha2.APIExportValid, problem.reason, conditionsv1alpha1.ConditionSeverityError, "%s", problem.message)
	}
	switch {
	case its.Cached == "":
	case s.cached:
		conditions.MarkTrue(slice, cachev1alpha1.CachedResourceValid)
	default:
		valid = false
		conditions.MarkFalse(slice, cachev1alpha1.CachedResourceValid, cachev1alpha1.CachedResourceNotFoundReason, conditionsv1alpha1.ConditionSeverityError,
			"The cached resource %s of the slice does not exist: create it, or delete the slice", its.Cached)
	}
	if !valid {
		*its.ShardSelector = ""
		k.SetURLs(slice, nil)
		return slice
	}
	*its.ShardSelector = selector.String()
	k.SetURLs(slice, k.endpoints(slice, selector, s))
	return slice
}

// waitingForReplicas is the reason while the exports of other shards have not been observed completely.
const waitingForReplicas = "WaitingForReplicas"

// waitingFor sets the condition of a slice with an unobserved export. An existing condition does not change.
func waitingFor[T Slice](slice T, why error) T {
	if known := conditions.Get(slice, apisv1alpha2.APIExportValid); known != nil && known.Reason != waitingForReplicas {
		return slice
	}
	slice, _ = slice.DeepCopyObject().(T)
	conditions.MarkUnknown(slice, apisv1alpha2.APIExportValid, waitingForReplicas, "Waiting for the state of other shards: %v", why)
	return slice
}

// selectorOf returns the selector of the partition and sets the condition of the slice.
func selectorOf(slice Slice, name string, partition *topologyv1alpha1.Partition) (selector labels.Selector, valid bool) {
	invalid := func(format string, args ...any) (labels.Selector, bool) {
		conditions.MarkFalse(slice, apisv1alpha1.PartitionValid, apisv1alpha1.PartitionInvalidReferenceReason, conditionsv1alpha1.ConditionSeverityError, format, args...)
		return nil, false
	}
	selector = labels.Everything()
	switch {
	case name == "":
	case partition == nil:
		return invalid("The Partition %s does not exist: create it, or remove it from spec.partition", name)
	case partition.Spec.Selector != nil:
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(partition.Spec.Selector); err != nil {
			return invalid("The selector of the Partition %s is invalid: %v", name, err)
		}
	}
	conditions.MarkTrue(slice, apisv1alpha1.PartitionValid)
	return selector, true
}

// endpoints returns the endpoints of the shards with consumers that match the selector, or that already have an endpoint.
func (k Kind[T]) endpoints(slice T, selector labels.Selector, s state) []string {
	var all []string
	before := k.URLs(slice)
	shards := slices.SortedFunc(slices.Values(s.shards), func(a, b *corev1alpha1.Shard) int { return strings.Compare(a.Name, b.Name) })
	for _, shard := range shards {
		endpoint, ok := endpointOf(shard, k.Path(slice, s.export))
		if ok && !slices.Contains(all, endpoint) && s.consumed(shard.Name) && (slices.Contains(before, endpoint) || selector.Matches(labels.Set(shard.Labels))) {
			all = append(all, endpoint)
		}
	}
	return all
}

// endpointOf returns the URL of a virtual workspace on a shard; false if the shard has no valid URL.
func endpointOf(shard *corev1alpha1.Shard, path []string) (string, bool) {
	base, err := url.Parse(shard.Spec.VirtualWorkspaceURL)
	if err != nil || base.Host == "" {
		return "", false
	}
	return base.JoinPath(append([]string{"services"}, path...)...).String(), true
}
