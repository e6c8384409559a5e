package metriclabels

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestAllowLists: what is served keeps its labels, what requests that are
// refused early can combine is one label, and names of tenants' have none.
func TestAllowLists(t *testing.T) {
	all, err := resources()
	require.NoError(t, err)
	lists := allowLists(all)
	allows := func(metric, label, value string) bool {
		list, ok := lists[metric+","+label]
		require.True(t, ok, "%s has no list for %s", metric, label)
		return slices.Contains(strings.Split(list, ","), value)
	}
	for _, resource := range all {
		require.True(t, allows("apiserver_request_total", "group", resource.Group), resource)
		require.True(t, allows("apiserver_request_total", "version", resource.Version), resource)
		require.True(t, allows("apiserver_request_total", "resource", resource.Resource), resource)
		require.True(t, allows("apiserver_request_terminations_total", "resource", resource.Resource), resource)
	}
	require.True(t, allows("apiserver_request_total", "subresource", "status"))
	require.False(t, allows("apiserver_request_total", "subresource", "anything"))
	require.False(t, allows("apiserver_request_total", "resource", "widgets"))
	require.False(t, allows("apiserver_request_terminations_total", "group", "rbac.authorization.k8s.io"))
	require.False(t, allows("apiserver_admission_webhook_request_total", "name", ""))
}

// TestNamed: built-in resources and the system's have series of their own.
func TestNamed(t *testing.T) {
	named, err := Named()
	require.NoError(t, err)
	for _, resource := range []schema.GroupResource{
		{Resource: "configmaps"},
		{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
		{Group: "events.k8s.io", Resource: "events"},
		{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
		{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
		{Group: "tenancy.kcp.io", Resource: "workspaces"},
	} {
		require.Contains(t, named, resource)
	}
	require.NotContains(t, named, schema.GroupResource{Group: "example.com", Resource: "widgets"})
}
