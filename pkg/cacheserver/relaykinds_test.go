package cacheserver_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/cacheserver"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

// TestRelayOfOtherKinds checks that resources which shards write directly are relayed, and the objects of
// CachedResources as long as these exist.
func TestRelayOfOtherKinds(t *testing.T) {
	t.Parallel()
	regions := newRegions(t, map[string][]string{"eu": nil, "us": {"eu"}})
	for _, r := range regions {
		r.change = append(r.change, func(o *cacheserver.Options) { o.RemovedShardGracePeriod = time.Second })
		r.run(t)
	}
	eu, us := regions["eu"], regions["us"]
	identity := strings.Repeat("ab", 32)
	exportUses := schema.GroupVersionResource{Group: "cache.shardplane.io", Version: "v1alpha1", Resource: "exportuses"}
	cachedResources := schema.GroupVersionResource{Group: "cache.kcp.io", Version: "v1alpha1", Resource: "cachedresources"}
	widgets := schema.GroupVersionResource{Group: "example.io", Version: "v1", Resource: "widgets:" + identity}

	cp := &replicationcheckpoints.ReplicationCheckpoint{
		ObjectMeta: metav1.ObjectMeta{Name: replicationcheckpoints.Name}, Epoch: uuid.Must(uuid.NewV7()).String(), Number: 100,
		Resources: map[string]replicationcheckpoints.Extent{cachedResources.GroupResource().String(): {ResourceVersion: "5"}, widgets.GroupResource().String(): {ResourceVersion: "5"}},
	}
	checkpoints := checkpointsOf(eu.cacheServer, "amber")
	_, err := checkpoints.Create(t.Context(), cp, metav1.CreateOptions{})
	require.NoError(t, err)
	get := func(gvr schema.GroupVersionResource, name string) error {
		_, err := in(t, us.f.Shard("amber"), "c", gvr).Get(t.Context(), name, metav1.GetOptions{})
		return err
	}
	there := func(gvr schema.GroupVersionResource, name string) func() bool {
		return func() bool { return get(gvr, name) == nil }
	}
	notFound := func(gvr schema.GroupVersionResource, name string) func() bool {
		return func() bool { return apierrors.IsNotFound(get(gvr, name)) }
	}

	use := object(exportUses, "ExportUse", "export", nil)
	delete(use.Object, "spec")
	uses := in(t, eu.f.Shard("amber"), "c", exportUses)
	create(t, uses, use)
	eventually(t, "an object that a shard has written is relayed", there(exportUses, "export"))
	require.NoError(t, uses.Delete(t.Context(), "export", metav1.DeleteOptions{}))
	eventually(t, "its deletion is relayed", notFound(exportUses, "export"))
	again := create(t, uses, use)
	eventually(t, "a new object with the same name is relayed", func() bool {
		found, err := in(t, us.f.Shard("amber"), "c", exportUses).Get(t.Context(), "export", metav1.GetOptions{})
		return err == nil && found.GetUID() == again.GetUID()
	})

	cached := object(cachedResources, "CachedResource", "widgets", map[string]any{"group": "example.io", "version": "v1", "resource": "widgets"})
	cached.SetAnnotations(map[string]string{"cache.kcp.io/resource-kind": "Widget", "cache.kcp.io/resource-scope": "Cluster"})
	cached.Object["status"] = map[string]any{"identityHash": identity}
	all := in(t, eu.f.Shard("amber"), "c", cachedResources)
	create(t, all, cached)
	selected := in(t, eu.f.Shard("amber"), "c", widgets)
	widget := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.io/v1", "kind": "Widget", "metadata": map[string]any{"name": "one"}}}
	eventually(t, "the resource is served", func() bool {
		_, err := selected.Create(t.Context(), widget, metav1.CreateOptions{})
		return err == nil
	})
	secret := widget.DeepCopy()
	secret.SetName("secret")
	create(t, selected, regional(secret))
	eventually(t, "objects of a CachedResource are relayed", there(widgets, "one"))
	require.True(t, notFound(widgets, "secret")(), "regional objects must not be relayed")

	// This is the order on a shard: its own cache server is emptied, its checkpoint no longer contains the resource, and
	// then the CachedResource is deleted.
	cp, err = checkpoints.Get(t.Context(), replicationcheckpoints.Name, metav1.GetOptions{})
	require.NoError(t, err)
	cp.Number++
	delete(cp.Resources, widgets.GroupResource().String())
	_, err = checkpoints.Update(t.Context(), cp, metav1.UpdateOptions{})
	require.NoError(t, err)
	for _, name := range []string{"one", "secret"} {
		require.NoError(t, selected.Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	require.NoError(t, all.Delete(t.Context(), "widgets", metav1.DeleteOptions{}))
	eventually(t, "the CachedResource is deleted", notFound(cachedResources, "widgets"))
	eventually(t, "the resource is no longer served", notFound(widgets, "one"))
	inEU, inUS := eu.own(t), us.own(t)
	left := map[string]string{"name": "amber", "resource": widgets.GroupResource().String()}
	eventually(t, "all replicas are deleted", func() bool {
		return measured(t, inEU, "shardplane_cache_replicas", left) <= 0 && measured(t, inUS, "shardplane_cache_replicas", left) <= 0
	})
}
