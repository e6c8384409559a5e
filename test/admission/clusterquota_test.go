package admission

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"

	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// setLimits sets the limits of a quota to the current usage plus more.
func (c *cluster) setLimits(t *testing.T, namespace, name string, more map[corev1.ResourceName]int64) {
	t.Helper()
	ctx, in := t.Context(), c.CoreV1().ResourceQuotas(namespace)
	var obj *corev1.ResourceQuota
	eventually(t, "the update of the quota", func() (changed bool) {
		var err error
		obj, err = in.Get(ctx, name, metav1.GetOptions{})
		require.NoError(t, err)
		for kind, n := range more {
			used := obj.Status.Used[kind]
			obj.Spec.Hard[kind] = *resource.NewQuantity(used.Value()+n, resource.DecimalSI)
		}
		obj, err = in.Update(ctx, obj, metav1.UpdateOptions{})
		return err == nil
	})
	eventually(t, "the new limits in the status", func() bool {
		now, err := in.Get(ctx, name, metav1.GetOptions{})
		require.NoError(t, err)
		return quotav1.Equals(now.Status.Hard, obj.Spec.Hard)
	})
}

// clusterScopedQuota checks a quota of the logical cluster.
func clusterScopedQuota(t *testing.T, c *cluster) {
	const (
		configMaps    = corev1.ResourceName("count/configmaps")
		roles         = corev1.ResourceName("count/clusterroles.rbac.authorization.k8s.io")
		ofWidgets     = corev1.ResourceName("count/widgets.example.com")
		clusterScoped = "experimental.quota.kcp.io/cluster-scoped"
	)
	ctx := t.Context()
	configMap := func(ctx context.Context, namespace, name string) error {
		made, err := c.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err == nil && made.Namespace != namespace {
			return fmt.Errorf("the object is in namespace %q", made.Namespace)
		}
		return err
	}
	spaces := []string{"admin", "x", "y", "default"}
	for _, name := range spaces[:3] {
		c.createNamespace(t, name)
	}
	require.NoError(t, configMap(ctx, "x", "before"))
	role := func(name string) error {
		made, err := c.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err == nil && made.Namespace != "" {
			return fmt.Errorf("the object is in namespace %q", made.Namespace)
		}
		return err
	}
	require.NoError(t, role("before"))
	many := resource.MustParse("1000")
	hard := corev1.ResourceList{configMaps: many, roles: many, ofWidgets: many}
	// The annotation has no effect in other namespaces, even with the same name.
	for _, namespace := range []string{"x", "admin"} {
		_, err := c.CoreV1().ResourceQuotas(namespace).Create(ctx, &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Name: "all", Annotations: map[string]string{clusterScoped: "true"}}, Spec: corev1.ResourceQuotaSpec{Hard: hard.DeepCopy()},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	count := func(namespace string) int64 {
		list, err := c.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		return int64(len(list.Items))
	}
	rootCAs := func() bool { return count("x") == 2 && count("y") == 1 && count("admin") == 1 }
	eventually(t, "the ConfigMaps that controllers create", rootCAs)
	eventually(t, "the counts of the logical cluster", func() bool {
		return c.used(t, "admin", "all", configMaps) == count("") && c.used(t, "admin", "all", roles) == 1
	})
	eventually(t, "the counts of the namespace", func() bool {
		return c.used(t, "x", "all", configMaps) == count("x") && c.used(t, "x", "all", roles) == 0
	})

	// Only two of the writers in all namespaces must succeed.
	c.setLimits(t, "admin", "all", map[corev1.ResourceName]int64{configMaps: 2, roles: 1})
	const writers = 20
	results := make(chan error, writers)
	for i := range writers {
		go func() { results <- configMap(ctx, spaces[i%len(spaces)], fmt.Sprintf("w-%d", i)) }()
	}
	created := 0
	for range writers {
		if err := <-results; err == nil {
			created++
		} else {
			require.True(t, apierrors.IsForbidden(err), "%v", err)
			require.ErrorContains(t, err, "exceeded quota: all, requested: count/configmaps=1")
		}
	}
	require.Equal(t, 2, created)
	require.NoError(t, role("one"))
	require.ErrorContains(t, role("two"), "exceeded quota: all, requested: count/clusterroles.rbac.authorization.k8s.io=1")
	require.NoError(t, c.RbacV1().ClusterRoles().Delete(ctx, "one", metav1.DeleteOptions{}))
	eventually(t, "capacity after the deletion", func() bool { return role("two") == nil })

	// The definition is created, deleted and recreated without affecting other entries.
	for range 2 {
		c.defineWidgets(t)
		eventually(t, "the creation of a widget", func() bool { _, err := c.widget(ctx, "w", nil); return err == nil })
		eventually(t, "the count of widgets", func() bool { return c.used(t, "admin", "all", ofWidgets) == 1 })
		require.NoError(t, kinds.CustomResourceDefinitions.In(c.factory.Cluster(c.name.Path())).Delete(ctx, "widgets.example.com", metav1.DeleteOptions{}))
		eventually(t, "the removal of the widgets", func() bool { return c.used(t, "admin", "all", ofWidgets) == 0 })
		require.True(t, apierrors.IsForbidden(configMap(ctx, "y", "late")))
	}

	// Without the annotation, the quota applies to its own namespace.
	_, err := c.CoreV1().ResourceQuotas("admin").Patch(ctx, "all", "application/merge-patch+json", []byte(`{"metadata":{"annotations":{"`+clusterScoped+`":null}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	eventually(t, "writes in other namespaces", func() bool { return configMap(ctx, "y", "late") == nil })
	eventually(t, "the counts of the namespace", func() bool {
		return c.used(t, "admin", "all", configMaps) == count("admin") && c.used(t, "admin", "all", roles) == 0
	})
}
