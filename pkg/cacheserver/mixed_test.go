package cacheserver_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
)

// versionsOf returns the versions of all Shards that a cache server has.
func versionsOf(t *testing.T, f *client.Factory) string {
	t.Helper()
	list, err := in(t, f.Shard("*"), "*", shardsGVR).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	versions := ""
	for i := range list.Items {
		versions += list.Items[i].GetName() + "@" + list.Items[i].GetResourceVersion() + " "
	}
	return versions
}

// TestReplicationToFormerCacheServer: a cache server of the previous release keeps no UIDs and
// deletes nothing that has finalizers. Replicas come to rest there; and once this release has
// taken its place, they become what they should be.
func TestReplicationToFormerCacheServer(t *testing.T) {
	t.Parallel()
	cache := newCacheServer(t)
	cache.stop()
	former := newFormerCacheServer(t, cache)
	amber := newTestShard(t, "amber")
	shards := in(t, amber.f, "root", shardsGVR)
	held := object(shardsGVR, "Shard", "held", map[string]any{"baseURL": "https://x"})
	held.SetFinalizers([]string{"test/held"})
	create(t, shards, held)
	create(t, shards, object(shardsGVR, "Shard", "edited", map[string]any{"baseURL": "https://x"}))
	create(t, shards, object(shardsGVR, "Shard", "gone", nil))
	config, _ := replicate(t, amber, cache, markOften) // it does not serve marks, nor digests
	replicas := in(t, former.f.Shard("amber"), "root", shardsGVR)
	url := func(name string) string {
		replica, err := replicas.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		url, _, _ := unstructured.NestedString(replica.Object, "spec", "baseURL")
		return url + replica.GetAnnotations()["cache.shardplane.io/deleting"]
	}
	eventually(t, "all are replicated", func() bool { return url("held") == "https://x" && url("edited") == "https://x" && url("gone") == "" })

	_, err := shards.Patch(t.Context(), "edited", types.MergePatchType, []byte(`{"spec":{"baseURL":"https://y"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, shards.Delete(t.Context(), "held", metav1.DeleteOptions{}))
	require.NoError(t, shards.Delete(t.Context(), "gone", metav1.DeleteOptions{}))
	deleted, err := shards.Get(t.Context(), "held", metav1.GetOptions{})
	require.NoError(t, err)
	since := deleted.GetDeletionTimestamp().UTC().Format(time.RFC3339)
	eventually(t, "the changes are there", func() bool {
		return url("edited") == "https://y" && url("held") == "https://x"+since && url("gone") != ""
	})
	requireList(t, former.f.Shard("*"), "*", "amber|root|edited", "amber|root|held")
	_, err = replicas.Patch(t.Context(), "edited", types.MergePatchType, []byte(`{"spec":{"baseURL":"https://evil"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	eventually(t, "the edited replica is put right", func() bool { return url("edited") == "https://y" })

	t.Log("audits ask again whether the server keeps UIDs, and change nothing")
	asked := func() float64 {
		return counted(t, cache.pushes, "shardplane_replication_operations_total", map[string]string{"cache": t.Name(), "operation": "update"})
	}
	eventually(t, "the replicas are at rest", func() bool {
		before, updates := versionsOf(t, former.f), asked()
		eventually(t, "some audits", func() bool { return asked() > updates+3 })
		return versionsOf(t, former.f) == before
	})

	_, err = shards.Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	eventually(t, "what the server holds is released", func() bool {
		_, err := replicas.Get(t.Context(), "held", metav1.GetOptions{})
		return err != nil
	})
	replica, err := replicas.Get(t.Context(), "edited", metav1.GetOptions{})
	require.NoError(t, err)
	require.NotEqual(t, replica.GetAnnotations()["cache.kcp.io/original-resource-UID"], string(replica.GetUID()))

	require.Zero(t, startsOver(t, cache))
	t.Log("the cache server becomes one of this release")
	former.stop()
	cache.start(t)
	requireTrue(t, config)
	source, err := shards.Get(t.Context(), "edited", metav1.GetOptions{})
	require.NoError(t, err)
	replica, err = in(t, cache.f.Shard("amber"), "root", shardsGVR).Get(t.Context(), "edited", metav1.GetOptions{})
	require.NoError(t, err)
	requireSame(t, source, replica)
}
