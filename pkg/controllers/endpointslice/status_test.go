package endpointslice

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	topologyv1alpha1 "github.com/kcp-dev/sdk/apis/topology/v1alpha1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/test/documented"
)

func shard(name, url, region string) *corev1alpha1.Shard {
	return &corev1alpha1.Shard{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"region": region}},
		Spec:       corev1alpha1.ShardSpec{VirtualWorkspaceURL: url},
	}
}

func partition(selector *metav1.LabelSelector) *topologyv1alpha1.Partition {
	return &topologyv1alpha1.Partition{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: topologyv1alpha1.PartitionSpec{Selector: selector}}
}

func TestStatus(t *testing.T) {
	const one, two = "https://one/services/apiexport/provider/e", "https://two:6443/x/services/apiexport/provider/e"
	shards := []*corev1alpha1.Shard{shard("two", "https://two:6443/x/", "eu"), shard("one", "https://one", "us"), shard("broken", "", "eu"), shard("alias", "https://one", "us")}
	export := &apisv1alpha2.APIExport{ObjectMeta: metav1.ObjectMeta{Name: "e", Annotations: map[string]string{"kcp.io/cluster": "provider"}}}
	eu := partition(&metav1.LabelSelector{MatchLabels: map[string]string{"region": "eu"}})
	for name, test := range map[string]struct {
		state                              state
		before, consumed, urls             []string
		partition, selector, export, valid string
	}{
		"no consumers":                          {state: state{export: export}, valid: "True", export: "True"},
		"all shards with consumers":             {state: state{export: export}, consumed: []string{"two", "one", "broken", "alias"}, urls: []string{one, two}, valid: "True", export: "True"},
		"consumers removed":                     {state: state{export: export}, before: []string{one, two}, consumed: []string{"two"}, urls: []string{two}, valid: "True", export: "True"},
		"no export":                             {state: state{}, before: []string{one}, consumed: []string{"one"}, valid: "True", export: "False APIExportNotFound"},
		"no partition":                          {partition: "p", state: state{export: export}, before: []string{one}, consumed: []string{"one"}, valid: "False PartitionInvalidReference", export: "True"},
		"neither export nor partition":          {partition: "p", state: state{}, before: []string{one}, consumed: []string{"one"}, valid: "False PartitionInvalidReference", export: "False APIExportNotFound"},
		"partition":                             {partition: "p", state: state{export: export, partition: eu}, consumed: []string{"one", "two"}, urls: []string{two}, selector: "region=eu", valid: "True", export: "True"},
		"no longer matching, with consumers":    {partition: "p", state: state{export: export, partition: eu}, before: []string{one, two}, consumed: []string{"one", "two"}, urls: []string{one, two}, selector: "region=eu", valid: "True", export: "True"},
		"no longer matching, without consumers": {partition: "p", state: state{export: export, partition: eu}, before: []string{one, two}, consumed: []string{"two"}, urls: []string{two}, selector: "region=eu", valid: "True", export: "True"},
		"partition without a selector":          {partition: "p", state: state{export: export, partition: partition(nil)}, consumed: []string{"one"}, urls: []string{one}, valid: "True", export: "True"},
		"invalid selector": {
			partition: "p", state: state{export: export, partition: partition(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "x"}}})},
			consumed: []string{"one"}, valid: "False PartitionInvalidReference", export: "True",
		},
		"removed shard": {state: state{export: export}, before: []string{"https://removed/services/apiexport/provider/e"}, consumed: []string{"removed"}, valid: "True", export: "True"},
	} {
		t.Run(name, func(t *testing.T) {
			slice := &apisv1alpha1.APIExportEndpointSlice{Spec: apisv1alpha1.APIExportEndpointSliceSpec{Partition: test.partition}}
			slice.Status.ShardSelector = "former"
			OfExports.SetURLs(slice, test.before)
			test.state.shards = shards
			test.state.consumed = func(shard string) bool { return slices.Contains(test.consumed, shard) }
			after := OfExports.advance(slice, test.state)
			require.Equal(t, test.urls, OfExports.URLs(after))
			require.Equal(t, test.selector, after.Status.ShardSelector)
			require.Equal(t, test.export, conditionOf(after, apisv1alpha2.APIExportValid))
			require.Equal(t, test.valid, conditionOf(after, apisv1alpha1.PartitionValid))
			require.Equal(t, after, OfExports.advance(after, test.state), "a second reconcile must not change the slice")
		})
	}
}

// TestStatusOfCached: slices of cached resources have endpoints as long as all referenced objects exist and the export
// refers to them.
func TestStatusOfCached(t *testing.T) {
	group := "cache.kcp.io"
	in := func(cluster, kind, name string) *apisv1alpha2.APIExport {
		return &apisv1alpha2.APIExport{
			ObjectMeta: metav1.ObjectMeta{Name: "e", Annotations: map[string]string{"kcp.io/cluster": cluster}},
			Spec: apisv1alpha2.APIExportSpec{Resources: []apisv1alpha2.ResourceSchema{{Storage: apisv1alpha2.ResourceSchemaStorage{
				Virtual: &apisv1alpha2.ResourceSchemaStorageVirtual{Reference: corev1.TypedLocalObjectReference{APIGroup: &group, Kind: kind, Name: name}},
			}}}},
		}
	}
	for name, test := range map[string]struct {
		export       *apisv1alpha2.APIExport
		cached       bool
		urls         []string
		valid, found string
	}{
		"complete":                       {in("here", "CachedResourceEndpointSlice", "s"), true, []string{"https://one/services/replication/here/s"}, "True", "True"},
		"no cached resource":             {in("here", "CachedResourceEndpointSlice", "s"), false, nil, "True", "False CachedResourceNotFound"},
		"no export":                      {nil, true, nil, "False APIExportInvalidReference", "True"},
		"another slice":                  {in("here", "CachedResourceEndpointSlice", "t"), true, nil, "False APIExportInvalidReference", "True"},
		"slice of the other cached kind": {in("here", "ClusterCachedResourceEndpointSlice", "s"), true, nil, "False APIExportInvalidReference", "True"},
		"another kind":                   {in("here", "Other", "s"), true, nil, "False APIExportInvalidReference", "True"},
		"another workspace":              {in("there", "CachedResourceEndpointSlice", "s"), true, nil, "False APIExportInvalidReference", "True"},
	} {
		t.Run(name, func(t *testing.T) {
			slice := &cachev1alpha1.CachedResourceEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "s", Annotations: map[string]string{"kcp.io/cluster": "here"}}}
			slice.Spec.CachedResource.Name = "c"
			slice.Status.CachedResourceEndpoints = []cachev1alpha1.CachedResourceEndpoint{{URL: "https://former"}}
			after := OfCached.advance(slice, state{
				export: test.export, cached: test.cached, shards: []*corev1alpha1.Shard{shard("one", "https://one", "us"), shard("two", "https://two", "eu")},
				consumed: func(shard string) bool { return shard == "one" },
			})
			require.Equal(t, test.urls, OfCached.URLs(after))
			require.Equal(t, test.valid, conditionOf(after, "APIExportValid"))
			require.Equal(t, test.found, conditionOf(after, "ResourceValid"))
		})
	}
}

func conditionOf(slice Slice, kind conditionsv1alpha1.ConditionType) string {
	c := conditions.Get(slice, kind)
	return strings.TrimSpace(string(c.Status) + " " + c.Reason)
}

// TestWaiting: a new slice reports that it waits for its export; the condition of others does not change.
func TestWaiting(t *testing.T) {
	why := fmt.Errorf("%w: the cache is unreachable", client.ErrIncomplete)
	slice := waitingFor(&apisv1alpha1.APIExportEndpointSlice{}, why)
	valid := conditions.Get(slice, apisv1alpha2.APIExportValid)
	require.Equal(t, "Unknown WaitingForReplicas Waiting for the state of other shards: not all objects are loaded yet: the cache is unreachable", strings.Join([]string{string(valid.Status), valid.Reason, valid.Message}, " "))
	require.Equal(t, slice, waitingFor(slice, why))
	later := waitingFor(slice, client.ErrIncomplete)
	require.Equal(t, "Waiting for the state of other shards: not all objects are loaded yet", conditions.GetMessage(later, apisv1alpha2.APIExportValid))
	known := OfExports.advance(later, state{})
	require.Equal(t, apisv1alpha2.APIExportNotFoundReason, conditions.GetReason(known, apisv1alpha2.APIExportValid))
	require.Equal(t, known, waitingFor(known, why))
}

func TestDocumented(t *testing.T) {
	why := client.ErrIncomplete
	export := &apisv1alpha2.APIExport{ObjectMeta: metav1.ObjectMeta{Name: "e"}}
	noConsumers := func(string) bool { return false }
	of := &apisv1alpha1.APIExportEndpointSlice{Spec: apisv1alpha1.APIExportEndpointSliceSpec{Partition: "p"}}
	cached := &cachev1alpha1.CachedResourceEndpointSlice{}
	cached.Spec.CachedResource.Name, cached.Spec.Partition = "c", "p"
	require.ElementsMatch(t, documented.Conditions(t, "APIExportEndpointSlice"), documented.Reported(
		OfExports.advance(of, state{consumed: noConsumers}), OfExports.advance(of, state{export: export, consumed: noConsumers}), waitingFor(of, why)))
	require.ElementsMatch(t, documented.Conditions(t, "CachedResourceEndpointSlice"), documented.Reported(
		OfCached.advance(cached, state{consumed: noConsumers}), waitingFor(cached, why)))
}
