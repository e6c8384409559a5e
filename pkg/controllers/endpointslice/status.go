package endpointslice

import (
	"net/url"
	"slices"
	"strings"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
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
	// partition is nil if there is none of the name in the slice.
	partition *topologyv1alpha1.Partition
	shards    []*corev1alpha1.Shard
	// consumed reports whether the export has bindings on a shard.
	consumed func(shard string) bool
}

// advance returns a slice with the status that it should have.
func advance(slice *apisv1alpha1.APIExportEndpointSlice, s state) *apisv1alpha1.APIExportEndpointSlice {
	slice = slice.DeepCopy()
	selector, valid := selectorOf(slice, s.partition)
	if s.export == nil {
		conditions.MarkFalse(slice, apisv1alpha2.APIExportValid, apisv1alpha2.APIExportNotFoundReason, conditionsv1alpha1.ConditionSeverityError,
			"The APIExport does not exist: create it, or delete the slice")
	} else {
		conditions.MarkTrue(slice, apisv1alpha2.APIExportValid)
	}
	if s.export == nil || !valid {
		slice.Status.ShardSelector, slice.Status.APIExportEndpoints = "", nil
		return slice
	}
	slice.Status.ShardSelector = selector.String()
	slice.Status.APIExportEndpoints = endpoints(slice.Status.APIExportEndpoints, selector, s)
	return slice
}

// selectorOf returns the selector of the shards of a slice, and says in it whether that is
// valid.
func selectorOf(slice *apisv1alpha1.APIExportEndpointSlice, partition *topologyv1alpha1.Partition) (selector labels.Selector, valid bool) {
	invalid := func(format string, args ...any) (labels.Selector, bool) {
		conditions.MarkFalse(slice, apisv1alpha1.PartitionValid, apisv1alpha1.PartitionInvalidReferenceReason, conditionsv1alpha1.ConditionSeverityError, format, args...)
		return nil, false
	}
	selector = labels.Everything()
	switch {
	case slice.Spec.Partition == "":
	case partition == nil:
		return invalid("The Partition %s does not exist: create it, or take it out of spec.partition", slice.Spec.Partition)
	case partition.Spec.Selector != nil:
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(partition.Spec.Selector); err != nil {
			return invalid("The selector of the Partition %s is not valid, correct it: %v", slice.Spec.Partition, err)
		}
	}
	conditions.MarkTrue(slice, apisv1alpha1.PartitionValid)
	return selector, true
}

// endpoints returns the endpoints of the shards that have consumers and match, or did when
// they got their endpoint.
func endpoints(before []apisv1alpha1.APIExportEndpoint, selector labels.Selector, s state) []apisv1alpha1.APIExportEndpoint {
	var all []apisv1alpha1.APIExportEndpoint
	shards := slices.SortedFunc(slices.Values(s.shards), func(a, b *corev1alpha1.Shard) int { return strings.Compare(a.Name, b.Name) })
	for _, shard := range shards {
		endpoint, ok := endpointOf(shard, s.export)
		had := slices.ContainsFunc(before, func(e apisv1alpha1.APIExportEndpoint) bool { return e.URL == endpoint })
		known := slices.ContainsFunc(all, func(e apisv1alpha1.APIExportEndpoint) bool { return e.URL == endpoint })
		if ok && !known && s.consumed(shard.Name) && (had || selector.Matches(labels.Set(shard.Labels))) {
			all = append(all, apisv1alpha1.APIExportEndpoint{URL: endpoint})
		}
	}
	return all
}

// endpointOf returns the URL of the view of an export on a shard; false if the shard has
// told no URL that can be used.
func endpointOf(shard *corev1alpha1.Shard, export *apisv1alpha2.APIExport) (string, bool) {
	base, err := url.Parse(shard.Spec.VirtualWorkspaceURL)
	if err != nil || base.Host == "" {
		return "", false
	}
	return base.JoinPath("services", "apiexport", logicalcluster.From(export).String(), export.Name).String(), true
}
