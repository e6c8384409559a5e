package apikinds_test

import (
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const twoVersions = `{metadata: {name: v1.widgets.example.org}, spec: {group: example.org, scope: Cluster, names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}, versions: [
  {name: v1, served: true, storage: true, schema: {type: object, properties: {a: {type: string}}}},
  {name: v2, served: true, storage: false, schema: {type: object, properties: {b: {type: string}}}}]}}`

func TestConversion(t *testing.T) {
	t.Parallel()
	conversion := func(name, rule string) *unstructured.Unstructured {
		return parse(t, "{apiVersion: apis.kcp.io/v1alpha1, kind: APIConversion, metadata: {name: "+name+"}, spec: {conversions: [{from: v1, to: v2, rules: [{"+rule+"}]}]}}")
	}
	write := func(object, old *unstructured.Unstructured, cluster logicalcluster.Name) error {
		return call{resource: "apiconversions", object: object, old: old, user: "bob", cluster: cluster}.write(t, nil)
	}
	const good, bad = "field: .a, destination: .b", "field: .a, destination: .c"
	require.NoError(t, write(conversion("v1.widgets.example.org", good), nil, ""))
	for _, old := range []*unstructured.Unstructured{nil, conversion("v1.widgets.example.org", good)} {
		err := write(conversion("v1.widgets.example.org", bad), old, "")
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		require.ErrorContains(t, err, "spec.conversions[0].rules[0].destination")
	}
	require.NoError(t, write(conversion("v1.widgets.example.org", bad), conversion("v1.widgets.example.org", bad), ""), "an unchanged conversion must be accepted")
	require.NoError(t, write(conversion("v2.widgets.example.org", bad), nil, ""), "a conversion without a schema must be accepted")
	require.NoError(t, write(conversion("v1.widgets.example.org", bad), nil, "elsewhere"))
	err := write(conversion("v3.widgets.example.org", good), nil, "")
	requireUnavailable(t, err)
}
