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

	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// limit sets what the quota allows of each kind to what is used and some more.
func (c *cluster) limit(t *testing.T, namespace, quota string, more map[corev1.ResourceName]int64) {
	t.Helper()
	ctx, in := t.Context(), c.CoreV1().ResourceQuotas(namespace)
	var obj *corev1.ResourceQuota
	eventually(t, "the quota can be changed", func() (changed bool) {
		var err error
		obj, err = in.Get(ctx, quota, metav1.GetOptions{})
		require.NoError(t, err)
		for name, n := range more {
			used := obj.Status.Used[name]
			obj.Spec.Hard[name] = *resource.NewQuantity(used.Value()+n, resource.DecimalSI)
		}
		obj, err = in.Update(ctx, obj, metav1.UpdateOptions{})
		return err == nil
	})
	eventually(t, "the quota has the new limits", func() bool {
		now, err := in.Get(ctx, quota, metav1.GetOptions{})
		require.NoError(t, err)
		return len(now.Status.Hard) == len(obj.Spec.Hard) && equalLists(now.Status.Hard, obj.Spec.Hard)
	})
}

func equalLists(a, b corev1.ResourceList) bool {
	for name, quantity := range a {
		if other := b[name]; quantity.Cmp(other) != 0 {
			return false
		}
	}
	return true
}

// wholeQuota tries a quota that limits the whole logical cluster.
func wholeQuota(t *testing.T, c *cluster) {
	const (
		configMaps = corev1.ResourceName("count/configmaps")
		roles      = corev1.ResourceName("count/clusterroles.rbac.authorization.k8s.io")
		ofWidgets  = corev1.ResourceName("count/widgets.example.com")
		whole      = "experimental.quota.kcp.io/cluster-scoped"
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
		_, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		require.NoError(t, err)
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
	// The same annotation means nothing elsewhere, also under the same name.
	for _, namespace := range []string{"x", "admin"} {
		_, err := c.CoreV1().ResourceQuotas(namespace).Create(ctx, &corev1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Name: "all", Annotations: map[string]string{whole: "true"}}, Spec: corev1.ResourceQuotaSpec{Hard: hard.DeepCopy()},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	held := func(namespace string) int64 {
		list, err := c.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		return int64(len(list.Items))
	}
	rootCAs := func() bool { return held("x") == 2 && held("y") == 1 && held("admin") == 1 }
	eventually(t, "namespaces have what they have from the system", rootCAs)
	eventually(t, "all is counted", func() bool {
		return c.used(t, "admin", "all", configMaps) == held("") && c.used(t, "admin", "all", roles) == 1
	})
	eventually(t, "what is elsewhere is not", func() bool {
		return c.used(t, "x", "all", configMaps) == held("x") && c.used(t, "x", "all", roles) == 0
	})

	// Of the writers in all namespaces, two get the last two places.
	c.limit(t, "admin", "all", map[corev1.ResourceName]int64{configMaps: 2, roles: 1})
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
	eventually(t, "the place is free again", func() bool { return role("two") == nil })

	// A definition comes, goes and comes back; other entries stay.
	for range 2 {
		c.serveWidgets(t)
		eventually(t, "a widget is made", func() bool { _, err := c.widget(ctx, "w", nil); return err == nil })
		eventually(t, "it is counted", func() bool { return c.used(t, "admin", "all", ofWidgets) == 1 })
		require.NoError(t, kinds.CustomResourceDefinitions.In(c.factory.Cluster(c.name.Path())).Delete(ctx, "widgets.example.com", metav1.DeleteOptions{}))
		eventually(t, "it is gone", func() bool { return c.used(t, "admin", "all", ofWidgets) == 0 })
		require.True(t, apierrors.IsForbidden(configMap(ctx, "y", "late")))
	}

	// Without the annotation it limits its own namespace.
	_, err := c.CoreV1().ResourceQuotas("admin").Patch(ctx, "all", "application/merge-patch+json", []byte(`{"metadata":{"annotations":{"`+whole+`":null}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	eventually(t, "others are free", func() bool { return configMap(ctx, "y", "late") == nil })
	eventually(t, "only its namespace is counted", func() bool {
		return c.used(t, "admin", "all", configMaps) == held("admin") && c.used(t, "admin", "all", roles) == 0
	})
}
