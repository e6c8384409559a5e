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

// state is what the status of an endpoint slice follows from.
type state struct {
	// export is nil if there is none.
	export *apisv1alpha2.APIExport
	// cached reports whether there is the cached resource that the slice refers to, if it does.
	cached bool
	// partition is nil if there is none of the name in the slice.
	partition *topologyv1alpha1.Partition
	shards    []*corev1alpha1.Shard
	// consumed reports whether the export has bindings on a shard.
	consumed func(shard string) bool
}

// advance returns a slice with the status that it should have.
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
			"There is no %s here in the resource that the slice is for: create it, or delete the slice", its.Cached)
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

// waitingForReplicas says that it is not known yet what other shards export.
const waitingForReplicas = "WaitingForReplicas"

// waitingFor returns a slice that says what it waits for, if nothing is known of its export yet. What
// others say stays.
func waitingFor[T Slice](slice T, why error) T {
	if known := conditions.Get(slice, apisv1alpha2.APIExportValid); known != nil && known.Reason != waitingForReplicas {
		return slice
	}
	slice, _ = slice.DeepCopyObject().(T)
	conditions.MarkUnknown(slice, apisv1alpha2.APIExportValid, waitingForReplicas, "It goes on by itself when more of other shards is known: %v", why)
	return slice
}

// selectorOf returns the selector of the shards of a slice, and says in it whether that is
// valid.
func selectorOf(slice Slice, name string, partition *topologyv1alpha1.Partition) (selector labels.Selector, valid bool) {
	invalid := func(format string, args ...any) (labels.Selector, bool) {
		conditions.MarkFalse(slice, apisv1alpha1.PartitionValid, apisv1alpha1.PartitionInvalidReferenceReason, conditionsv1alpha1.ConditionSeverityError, format, args...)
		return nil, false
	}
	selector = labels.Everything()
	switch {
	case name == "":
	case partition == nil:
		return invalid("The Partition %s does not exist: create it, or take it out of spec.partition", name)
	case partition.Spec.Selector != nil:
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(partition.Spec.Selector); err != nil {
			return invalid("The selector of the Partition %s is not valid, correct it: %v", name, err)
		}
	}
	conditions.MarkTrue(slice, apisv1alpha1.PartitionValid)
	return selector, true
}

// endpoints returns the endpoints of the shards that have consumers and match, or did when
// they got their endpoint.
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

// endpointOf returns the URL of a view on a shard; false if the shard has told no URL that can
// be used.
func endpointOf(shard *corev1alpha1.Shard, view []string) (string, bool) {
	base, err := url.Parse(shard.Spec.VirtualWorkspaceURL)
	if err != nil || base.Host == "" {
		return "", false
	}
	return base.JoinPath(append([]string{"services"}, view...)...).String(), true
}
