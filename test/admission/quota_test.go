package admission

import (
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (c *cluster) quota(t *testing.T, namespace, name string, hard corev1.ResourceList) {
	t.Helper()
	hard = maps.Clone(hard)
	hard["count/leases.coordination.k8s.io"] = resource.MustParse("0")
	_, err := c.CoreV1().ResourceQuotas(namespace).Create(t.Context(),
		&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}, metav1.CreateOptions{})
	require.NoError(t, err)
	eventually(t, "the status of the quota", func() bool {
		quota, err := c.CoreV1().ResourceQuotas(namespace).Get(t.Context(), name, metav1.GetOptions{})
		return err == nil && len(quota.Status.Used) == len(hard)
	})
	// Admission may receive it later.
	eventually(t, "admission to enforce the quota", func() bool {
		_, err := c.CoordinationV1().Leases(namespace).Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err)
	})
}

func (c *cluster) used(t *testing.T, namespace, quota string, name corev1.ResourceName) int64 {
	t.Helper()
	obj, err := c.CoreV1().ResourceQuotas(namespace).Get(t.Context(), quota, metav1.GetOptions{})
	require.NoError(t, err)
	value := obj.Status.Used[name]
	return value.Value()
}

func TestQuota(t *testing.T) {
	t.Parallel()
	all := sharedCluster.Get(t)
	both := clusters(t, all, "quota-a", "quota-b", "quota-whole")
	a, b := both[0], both[1]
	a.defineWidgets(t)
	const countWidgets = corev1.ResourceName("count/widgets.example.com")

	t.Run("concurrent writers", func(t *testing.T) {
		const writers, limit = 32, 10
		a.quota(t, "default", "few", corev1.ResourceList{countWidgets: resource.MustParse("10"), "pods": resource.MustParse("1")})
		results := make(chan error, writers)
		for i := range writers {
			go func() {
				_, err := a.widget(t.Context(), fmt.Sprintf("w-%d", i), nil)
				results <- err
			}()
		}
		created := 0
		for range writers {
			err := <-results
			if err == nil {
				created++
				continue
			}
			require.True(t, apierrors.IsForbidden(err), "%v", err)
			require.ErrorContains(t, err, "exceeded quota: few, requested: count/widgets.example.com=1, used: count/widgets.example.com=10, limited: count/widgets.example.com=10")
		}
		require.Equal(t, limit, created)
		list, err := a.dynamic.Resource(widgets).Namespace("default").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, list.Items, limit)
		require.Equal(t, int64(limit), a.used(t, "default", "few", countWidgets))

		// createAfterDelete deletes an item, and creates a widget when the quota has capacity.
		createAfterDelete := func(item int) (err error) {
			require.NoError(t, a.dynamic.Resource(widgets).Namespace("default").Delete(t.Context(), list.Items[item].GetName(), metav1.DeleteOptions{}))
			eventually(t, "the updated count", func() bool { return a.used(t, "default", "few", countWidgets) == limit-1 })
			eventually(t, "admission to have capacity", func() bool {
				_, err = a.widget(t.Context(), "late", nil)
				return !apierrors.IsForbidden(err)
			})
			return err
		}
		require.NoError(t, createAfterDelete(0))
		// A write that is admitted but fails must also release its capacity.
		err = createAfterDelete(1)
		require.True(t, apierrors.IsAlreadyExists(err), "%v", err)
		eventually(t, "the released capacity", func() bool { return a.used(t, "default", "few", countWidgets) == limit-1 })
	})

	t.Run("separate quotas", func(t *testing.T) {
		for in, hard := range map[*cluster]string{a: "1", b: "2"} {
			in.createNamespace(t, "q")
			in.quota(t, "q", "same-name", corev1.ResourceList{"secrets": resource.MustParse(hard)})
		}
		create := func(in *cluster, name string) error {
			_, err := in.CoreV1().Secrets("q").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			return err
		}
		require.NoError(t, create(a, "1"))
		require.True(t, apierrors.IsForbidden(create(a, "2")))
		require.NoError(t, create(b, "1"))
		require.NoError(t, create(b, "2"))
		require.True(t, apierrors.IsForbidden(create(b, "3")))

		_, err := a.CoreV1().Secrets("q").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "dry"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		require.True(t, apierrors.IsForbidden(err), "the dry run was not rejected: %v", err)
		require.NoError(t, a.CoreV1().ResourceQuotas("q").Delete(t.Context(), "same-name", metav1.DeleteOptions{}))
		eventually(t, "writes without a quota", func() bool { return create(a, "2") == nil })
	})

	t.Run("a quota that is already exceeded", func(t *testing.T) {
		b.quota(t, "q", "full", corev1.ResourceList{"count/secrets": resource.MustParse("1")})
		require.Equal(t, int64(2), b.used(t, "q", "full", "count/secrets"))
	})

	t.Run("a quota of the logical cluster", func(t *testing.T) { clusterScopedQuota(t, both[2]) })

	t.Run("invalid", func(t *testing.T) {
		for name, spec := range map[string]corev1.ResourceQuotaSpec{
			"negative": {Hard: corev1.ResourceList{"secrets": resource.MustParse("-1")}},
			"fraction": {Hard: corev1.ResourceList{"secrets": resource.MustParse("500m")}},
			"unknown":  {Hard: corev1.ResourceList{"unicorns": resource.MustParse("1")}},
			"scoped":   {Hard: corev1.ResourceList{"secrets": resource.MustParse("1")}, Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}},
		} {
			_, err := a.CoreV1().ResourceQuotas("default").Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
			require.True(t, apierrors.IsInvalid(err), "%s: %v", name, err)
		}
		_, err := a.CoreV1().LimitRanges("default").Create(t.Context(), &corev1.LimitRange{
			ObjectMeta: metav1.ObjectMeta{Name: "g"},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
				Type: corev1.LimitTypeContainer,
				Min:  corev1.ResourceList{"cpu": resource.MustParse("2")}, Max: corev1.ResourceList{"cpu": resource.MustParse("1")},
			}}},
		}, metav1.CreateOptions{})
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		require.ErrorContains(t, err, "min value 2 is greater than max value 1")
	})
}
