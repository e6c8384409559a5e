package shard_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
)

// TestOldData enables the garbage collector on existing data, which must be kept for the initial delay.
func TestOldData(t *testing.T) {
	t.Parallel()
	o := options(t)
	serve := func(t *testing.T, args ...string) (root kubernetes.Interface, itself rest.Interface) {
		t.Helper()
		with := *o
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		for _, section := range with.Flags().FlagSets {
			flags.AddFlagSet(section)
		}
		require.NoError(t, flags.Parse(args))
		config := start(t, &with)
		in := func(cluster string) kubernetes.Interface {
			c := harness.Clientset(t, config, cluster)
			require.Eventually(t, func() bool {
				_, err := c.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceDefault, metav1.GetOptions{})
				return err == nil
			}, testTimeout, 20*time.Millisecond)
			return c
		}
		return in("root"), in("system:admin").Discovery().RESTClient()
	}
	abandon := func(t *testing.T, c kubernetes.Interface, name string) {
		t.Helper()
		harness.Create(t, c.CoreV1().ConfigMaps(metav1.NamespaceDefault), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "gone", UID: "gone"}},
		}})
	}
	const logicalCluster = "/apis/core.kcp.io/v1alpha1/logicalclusters/cluster"
	t.Run("before", func(t *testing.T) {
		root, _ := serve(t, "--enable-garbage-collector=false")
		abandon(t, root, "old")
	})
	t.Run("after", func(t *testing.T) {
		root, itself := serve(t, "--garbage-collector-initial-delay=3h")
		require.Eventually(t, func() bool {
			var lc metav1.PartialObjectMetadata
			raw, err := itself.Get().AbsPath(logicalCluster).DoRaw(t.Context())
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(raw, &lc))
			since, begun := lc.Annotations["internal.shardplane.io/garbage-collected-since"]
			if !begun {
				return false
			}
			from, err := time.Parse(time.RFC3339, since)
			require.NoError(t, err)
			require.Greater(t, time.Until(from), 2*time.Hour)
			return true
		}, testTimeout, 20*time.Millisecond)
		abandon(t, root, "new")
		require.Eventually(t, func() bool {
			_, err := root.CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(t.Context(), "new", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}, testTimeout, 20*time.Millisecond, "new garbage must be collected")
		require.Nil(t, harness.Get(t, root.CoreV1().ConfigMaps(metav1.NamespaceDefault), "old").DeletionTimestamp)
	})
}
