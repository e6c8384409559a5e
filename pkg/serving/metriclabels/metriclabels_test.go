package metriclabels

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	admissionmetrics "k8s.io/apiserver/pkg/admission/metrics"
	apimetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
)

// TestAllowLists checks that served resources keep their labels, that requests which are rejected
// early share a label, and that names of tenants have none.
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

// TestCodes checks that invalid codes of webhooks have no series.
func TestCodes(t *testing.T) {
	require.NoError(t, Bound())
	apimetrics.Register()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody)
	attributes := admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, "", "", schema.GroupVersionResource{}, "", admission.Create, nil, false, nil)
	for _, code := range []int{201, 403, 422, 460, 499, 599, -1, -100, 0} {
		apimetrics.MonitorRequest(r, "POST", "", "v1", "configmaps", "", "namespace", "apiserver", false, "", code, 0, 0)
		admissionmetrics.Metrics.ObserveWebhook(t.Context(), "deny", 0, true, attributes, "admit", code)
		admissionmetrics.Metrics.ObserveWebhookRejection(t.Context(), "deny", "admit", "CREATE", admissionmetrics.WebhookRejectionNoError, code)
	}
	for name, label := range map[string]string{
		"apiserver_request_total":                     "code",
		"apiserver_admission_webhook_request_total":   "code",
		"apiserver_admission_webhook_rejection_count": "rejection_code",
	} {
		counts, err := testutil.GetCounterValuesFromGatherer(legacyregistry.DefaultGatherer, name, nil, label)
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"0", "201", "403", "422", Unexpected}, slices.Collect(maps.Keys(counts)), name)
	}
}

// TestNamed checks that built-in and system resources have their own series.
func TestNamed(t *testing.T) {
	named, err := Named()
	require.NoError(t, err)
	for _, resource := range []schema.GroupResource{
		{Resource: "configmaps"}, {Group: "events.k8s.io", Resource: "events"},
		{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
		{Group: "authorization.k8s.io", Resource: "subjectaccessreviews"},
		{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
		{Group: "tenancy.kcp.io", Resource: "workspaces"},
	} {
		require.Contains(t, named, resource)
	}
	require.NotContains(t, named, schema.GroupResource{Group: "example.com", Resource: "widgets"})
}
