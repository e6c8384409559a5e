package registry_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func TestSmoke(t *testing.T) {
	config := newServer(t)
	forEachEncoding(t, config, func(t *testing.T, client kubernetes.Interface, ns string) {
		ctx := t.Context()
		created, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Equal(t, corev1.NamespaceActive, created.Status.Phase)
		t.Log(created)
		_, err = client.CoreV1().Secrets(ns).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "x"}, StringData: map[string]string{"a": "b"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		s, err := client.CoreV1().Secrets(ns).Get(ctx, "x", metav1.GetOptions{})
		require.NoError(t, err)
		t.Log(s)
		_, lists, err := client.Discovery().ServerGroupsAndResources()
		require.NoError(t, err)
		for _, l := range lists {
			for _, r := range l.APIResources {
				t.Log(l.GroupVersion, r.String())
			}
		}
	})
}
