package endpointslice

import (
	"slices"
	"testing"

	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	topologyv1alpha1 "github.com/kcp-dev/sdk/apis/topology/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		partition string
		before    []string
		state     state
		consumed  []string
		urls      []string
		selector  string
		export    string
		valid     string
	}{
		"nobody":                           {state: state{export: export}, valid: "True", export: "True"},
		"all shards with consumers":        {state: state{export: export}, consumed: []string{"two", "one", "broken", "alias"}, urls: []string{one, two}, valid: "True", export: "True"},
		"without consumers any more":       {state: state{export: export}, before: []string{one, two}, consumed: []string{"two"}, urls: []string{two}, valid: "True", export: "True"},
		"no export":                        {state: state{}, before: []string{one}, consumed: []string{"one"}, valid: "True", export: "False APIExportNotFound"},
		"no partition":                     {partition: "p", state: state{export: export}, before: []string{one}, consumed: []string{"one"}, valid: "False PartitionInvalidReference", export: "True"},
		"neither":                          {partition: "p", state: state{}, before: []string{one}, consumed: []string{"one"}, valid: "False PartitionInvalidReference", export: "False APIExportNotFound"},
		"of a partition":                   {partition: "p", state: state{export: export, partition: eu}, consumed: []string{"one", "two"}, urls: []string{two}, selector: "region=eu", valid: "True", export: "True"},
		"stopped matching, with consumers": {partition: "p", state: state{export: export, partition: eu}, before: []string{one, two}, consumed: []string{"one", "two"}, urls: []string{one, two}, selector: "region=eu", valid: "True", export: "True"},
		"stopped matching, without":        {partition: "p", state: state{export: export, partition: eu}, before: []string{one, two}, consumed: []string{"two"}, urls: []string{two}, selector: "region=eu", valid: "True", export: "True"},
		"of everything":                    {partition: "p", state: state{export: export, partition: partition(nil)}, consumed: []string{"one"}, urls: []string{one}, valid: "True", export: "True"},
		"bad selector": {
			partition: "p", state: state{export: export, partition: partition(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "x"}}})},
			consumed: []string{"one"}, valid: "False PartitionInvalidReference", export: "True",
		},
		"a shard that is gone": {state: state{export: export}, before: []string{"https://gone/services/apiexport/provider/e"}, consumed: []string{"gone"}, valid: "True", export: "True"},
	} {
		t.Run(name, func(t *testing.T) {
			slice := &apisv1alpha1.APIExportEndpointSlice{Spec: apisv1alpha1.APIExportEndpointSliceSpec{Partition: test.partition}}
			slice.Status.ShardSelector = "former"
			for _, url := range test.before {
				slice.Status.APIExportEndpoints = append(slice.Status.APIExportEndpoints, apisv1alpha1.APIExportEndpoint{URL: url})
			}
			test.state.shards = shards
			test.state.consumed = func(shard string) bool {
				return slices.Contains(test.consumed, shard)
			}
			after := advance(slice, test.state)
			var urls []string
			for _, e := range after.Status.APIExportEndpoints {
				urls = append(urls, e.URL)
			}
			require.Equal(t, test.urls, urls)
			require.Equal(t, test.selector, after.Status.ShardSelector)
			require.Equal(t, test.export, said(after, string(apisv1alpha2.APIExportValid)))
			require.Equal(t, test.valid, said(after, string(apisv1alpha1.PartitionValid)))
			require.Equal(t, after, advance(after, test.state), "once is enough")
		})
	}
}

func said(slice *apisv1alpha1.APIExportEndpointSlice, kind string) string {
	for _, c := range conditions.Getter(slice).GetConditions() {
		if string(c.Type) == kind {
			if c.Reason != "" {
				return string(c.Status) + " " + c.Reason
			}
			return string(c.Status)
		}
	}
	return ""
}
