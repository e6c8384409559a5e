package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
)

func TestCounted(t *testing.T) {
	for name, want := range map[corev1.ResourceName]schema.GroupResource{
		"configmaps":                {Resource: "configmaps"},
		"count/secrets":             {Resource: "secrets"},
		"count/widgets.example.com": {Group: "example.com", Resource: "widgets"},
	} {
		got, ok := counted(name)
		require.True(t, ok, name)
		require.Equal(t, want, got)
	}
	for _, name := range []corev1.ResourceName{"pods", "requests.cpu", "count/"} {
		_, ok := counted(name)
		require.False(t, ok, name)
	}
}

func quotaOf(hard, used int64, scopes ...corev1.ResourceQuotaScope) *corev1.ResourceQuota {
	list := func(n int64) corev1.ResourceList {
		return corev1.ResourceList{"secrets": *apiresource.NewQuantity(n, apiresource.DecimalSI)}
	}
	return &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "q", Namespace: "n", Annotations: map[string]string{logicalcluster.AnnotationKey: "c"}},
		Spec:       corev1.ResourceQuotaSpec{Hard: list(hard), Scopes: scopes},
		Status:     corev1.ResourceQuotaStatus{Hard: list(hard), Used: list(used)},
	}
}

func TestScopedQuotasAreNotCounted(t *testing.T) {
	quota := quotaOf(1, 0, corev1.ResourceQuotaScopeBestEffort)
	require.Empty(t, countedBy([]*corev1.ResourceQuota{quota}))
	require.Equal(t, usage{"secrets": 0}, countFor(quota, counts{objects: map[schema.GroupResource]int64{{Resource: "secrets"}: 7}}))
}

// TestPublish: increased counts are written immediately, and decreased ones after the delay for admitted writes.
func TestPublish(t *testing.T) {
	now := time.Unix(1000, 0)
	quota := quotaOf(10, 5)
	objects := int64(0)
	r := &quotaReconciler{
		quotas: func(namespace) []*corev1.ResourceQuota { return []*corev1.ResourceQuota{quota} },
		count: func(context.Context, namespace, []schema.GroupResource) counts {
			return counts{objects: map[schema.GroupResource]int64{{Resource: "secrets"}: objects}}
		},
		commit: func(_ context.Context, updated *corev1.ResourceQuota) error {
			quota = updated
			return nil
		},
		now:  func() time.Time { return now },
		seen: map[limit]excess{},
	}
	for i, step := range []struct {
		after   time.Duration
		objects int64
		want    int64
		again   bool
	}{
		{0, 5, 5, false},
		{0, 8, 8, false},
		{0, 6, 8, true}, // two were deleted, or are not stored yet
		{admissionDelay / 2, 6, 8, true},
		{admissionDelay / 2, 7, 7, false}, // one was stored later
		{0, 5, 7, true},
		{0, 7, 7, false}, // both were
		{admissionDelay, 4, 7, true},
		{admissionDelay, 4, 4, false},
	} {
		now, objects = now.Add(step.after), step.objects
		result, err := r.reconcile(t.Context(), namespace{Cluster: "c", Name: "n"})
		require.NoError(t, err)
		used := quota.Status.Used["secrets"]
		require.Equal(t, step.want, used.Value(), "step %d", i)
		require.Equal(t, step.again, result.RequeueAfter == admissionDelay, "step %d", i)
	}
	require.Empty(t, r.seen)
}

// TestObserveKeepsAdmittedWrites: writes that were admitted since the first count stay included.
func TestObserveKeepsAdmittedWrites(t *testing.T) {
	for _, test := range []struct{ used, before, count, want int64 }{
		{used: 9, before: 8, count: 7, want: 8},
		{used: 9, before: 9, count: 7, want: 7},
		{used: 10, before: 5, count: 8, want: 10},
		{used: 10, before: 0, count: 8, want: 10},
		{used: 3, before: 9, count: 8, want: 8},
	} {
		updated, above := observe(quotaOf(10, test.used), usage{"secrets": test.count}, usage{"secrets": test.before})
		got := updated.Status.Used["secrets"]
		require.Equal(t, test.want, got.Value(), "%+v", test)
		require.Equal(t, test.want > test.count, len(above) > 0, "%+v", test)
	}
}

func TestVersion(t *testing.T) {
	list := func(version, resource string, namespaced bool) string {
		return fmt.Sprintf(`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":%q,"resources":[{"name":%q,"namespaced":%t,"verbs":["list","watch"]}]}`, version, resource, namespaced)
	}
	responses := map[string]string{
		"/clusters/c/api":                 `{"kind":"APIVersions","apiVersion":"v1","versions":["v1","v1alpha1"]}`,
		"/clusters/c/apis":                `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"example.com","versions":[{"groupVersion":"example.com/v2","version":"v2"},{"groupVersion":"example.com/v1","version":"v1"}]}]}`,
		"/clusters/c/api/v1":              list("v1", "secrets", true),
		"/clusters/c/api/v1alpha1":        list("v1alpha1", "widgets", true),
		"/clusters/c/apis/example.com/v2": list("example.com/v2", "nodes", false),
		"/clusters/c/apis/example.com/v1": list("example.com/v1", "widgets", true),
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		response, ok := responses[r.URL.Path]
		w.Header().Set("Content-Type", "application/json")
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			response = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
		}
		_, _ = w.Write([]byte(response))
	}))
	t.Cleanup(server.Close)
	factory, err := client.NewFactory(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	t.Cleanup(factory.CloseIdleConnections)
	w := newWatches(factory)
	for resource, want := range map[schema.GroupResource]string{
		{Resource: "secrets"}:                       "v1",
		{Resource: "widgets"}:                       "v1alpha1",
		{Resource: "gadgets"}:                       "",
		{Group: "example.com", Resource: "widgets"}: "v1",
		{Group: "example.com", Resource: "nodes"}:   "",
		{Group: "other.org", Resource: "widgets"}:   "",
	} {
		found, served, err := w.version(t.Context(), namespace{Cluster: "c", Name: "n"}, resource)
		require.NoError(t, err)
		require.Equal(t, want != "", served, resource)
		if served {
			require.Equal(t, resource.WithVersion(want), found)
		}
	}
}

// TestUncountable: only a new entry that cannot be counted denies writes. All other entries are counted.
func TestUncountable(t *testing.T) {
	things, broken := schema.GroupResource{Group: "example.com", Resource: "things"}, errors.New("the webhook timed out")
	const counting = corev1.ResourceName("count/things.example.com")
	one, both := quotaOf(10, 5), quotaOf(10, 5)
	both.Name, both.Status = "both", corev1.ResourceQuotaStatus{}
	both.Spec.Hard[counting] = apiresource.MustParse("3")
	written := map[string]*corev1.ResourceQuota{one.Name: one, both.Name: both}
	failed := map[schema.GroupResource]error{things: broken}
	r := &quotaReconciler{
		quotas: func(namespace) []*corev1.ResourceQuota { return slices.Collect(maps.Values(written)) },
		count: func(context.Context, namespace, []schema.GroupResource) counts {
			return counts{objects: map[schema.GroupResource]int64{{Resource: "secrets"}: 8, things: 2}, failed: failed}
		},
		commit: func(_ context.Context, updated *corev1.ResourceQuota) error {
			written[updated.Name] = updated
			return nil
		},
		now: time.Now, seen: map[limit]excess{},
	}
	used := func(quota string) map[corev1.ResourceName]int64 {
		all := map[corev1.ResourceName]int64{}
		for name, quantity := range written[quota].Status.Used {
			all[name] = quantity.Value()
		}
		return all
	}
	reconcile := func() error {
		_, err := r.reconcile(t.Context(), namespace{Cluster: "c", Name: "n"})
		return err
	}
	require.ErrorIs(t, reconcile(), broken, "the reconcile must be retried")
	require.Equal(t, map[corev1.ResourceName]int64{"secrets": 8}, used("q"))
	require.Equal(t, map[corev1.ResourceName]int64{"secrets": 8}, used("both"), "usage that is not counted must not be reported, so that admission denies writes")
	require.Contains(t, written["both"].Status.Hard, counting)
	failed = nil
	require.NoError(t, reconcile())
	require.EqualValues(t, 2, used("both")[counting])
	failed = map[schema.GroupResource]error{things: broken}
	require.ErrorIs(t, reconcile(), broken)
	require.EqualValues(t, 2, used("both")[counting], "the last count must be retained for admission")
}
