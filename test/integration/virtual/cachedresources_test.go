package virtual

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// afterSecondOf waits until new objects have a later creation time, which has a resolution of one second. The older of two cached
// resources has priority.
func afterSecondOf(k kit.WorkspaceClient, object *unstructured.Unstructured) {
	k.T.Helper()
	k.Eventually("the next second has begun", func() bool { return time.Since(object.GetCreationTimestamp().Time) > time.Second })
}

// clusterSchema creates a schema of a cluster-scoped resource of shared.example.org.
func clusterSchema(k kit.WorkspaceClient, prefix, plural, kind string) string {
	k.T.Helper()
	name := prefix + "." + plural + ".shared.example.org"
	k.Create(kit.APIsV1Alpha1+"apiresourceschemas", `{"metadata":{"name":%q},"spec":{"group":"shared.example.org","scope":"Cluster","names":{"plural":%q,"singular":%q,"kind":%q,"listKind":%q},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}]}}`,
		name, plural, plural[:len(plural)-1], kind, kind+"List")
	return name
}

func sha256Hex(key []byte) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:])
}

// untilReplicas waits until the cache server has these replicas of a resource, by name.
func untilReplicas(e *kit.Env, cluster, resource string, want ...string) (all []unstructured.Unstructured) {
	e.T.Helper()
	kit.EventuallyEqual(e, want, func() []string {
		all, _ = e.ReplicasOf(cluster, resource)
		return kit.Names(all)
	}, "replicas of %s", resource)
	return all
}

// TestCachedResources checks cached resources of both kinds: the selected objects of a CRD are on the cache server, as
// <resource>:<identity> for all and by the plain name in one logical cluster, follow changes, and are removed with the cached resource.
func TestCachedResources(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	for kind, shard := range map[string]int{"CachedResource": 0, "ClusterCachedResource": 1} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			k := kit.NewWorkspaceClientOn(e, "cached-"+kit.CachedResourcePlural[kind], shard).ForTest(t)
			plural, objects := "flavors"+fmt.Sprint(shard), "/apis/shared.example.org/v1/flavors"+fmt.Sprint(shard)
			made := k.CreateCachedResource(kind, plural, `,"labelSelector":{"matchExpressions":[{"key":"hidden","operator":"DoesNotExist"}]}`)
			require.NotNil(t, kit.Field(made, "metadata", "annotations", "kcp.io/path"), "the path annotation must be set")
			k.UntilCachedCondition(kind, plural, "ResourceValid", "False", "NoResources")
			k.DefineClusterScoped(plural, "Flavor")
			object := func(name, labels string) {
				k.Create(objects, `{"apiVersion":"shared.example.org/v1","kind":"Flavor","metadata":{"name":%q,"labels":{%s},"finalizers":["example.org/kept"]},"spec":{"cpus":4}}`, name, labels)
			}
			object("large", "")
			object("secret", `"hidden":"yes"`)
			object("small", "")
			now := k.UntilCached(kind, plural, 2, 2)

			secret := k.Get("/api/v1/namespaces/kcp-system/secrets/" + plural)
			key, err := base64.StdEncoding.DecodeString(kit.Field(secret, "data", "key").(string)) //nolint:forcetypeassert // as secrets are
			require.NoError(t, err)
			hash, _ := kit.Field(now, "status", "identityHash").(string)
			require.Equal(t, sha256Hex(key), hash)
			require.Equal(t, map[string]any{"namespace": "kcp-system", "name": plural}, kit.Field(now, "spec", "identity", "secretRef"))
			k.UntilCachedCondition(kind, plural, "IdentityValid", "True", "")
			k.UntilCachedCondition(kind, plural, "ReplicationStarted", "True", "")

			all := untilReplicas(k.Env, "", plural+":"+hash, "large", "small")
			original := k.Get(objects + "/large")
			for _, same := range [][]string{{"metadata", "uid"}, {"metadata", "creationTimestamp"}, {"metadata", "finalizers"}, {"metadata", "managedFields"}, {"spec"}, {"kind"}, {"apiVersion"}} {
				require.Equal(t, fmt.Sprint(kit.Field(original, same...)), fmt.Sprint(kit.Field(&all[0], same...)), same)
			}
			require.Equal(t, k.ClusterName, all[0].GetAnnotations()["kcp.io/cluster"])
			require.Equal(t, original.GetResourceVersion(), all[0].GetAnnotations()["cache.kcp.io/original-resource-version"])
			untilReplicas(k.Env, k.ClusterName, plural, "large", "small")

			_, err = e.ReplicasOf("", plural)
			require.True(t, apierrors.IsNotFound(err), "without an identity: %v", err)
			_, err = e.ReplicasOf("", plural+":"+sha256Hex([]byte("another")))
			require.True(t, apierrors.IsNotFound(err), "another identity: %v", err)

			object("tiny", "")
			k.Patch(objects+"/small", `{"metadata":{"labels":{"hidden":"now"}}}`)
			k.Patch(objects+"/large/status", `{"status":{"used":7}}`)
			untilReplicas(k.Env, "", plural+":"+hash, "large", "tiny")
			k.Eventually("the status is replicated", func() bool {
				all, err := e.ReplicasOf(k.ClusterName, plural)
				return err == nil && len(all) == 2 && fmt.Sprint(kit.Field(&all[0], "status", "used")) == "7"
			})
			k.UntilCached(kind, plural, 2, 2)

			// The resource and the identity must be immutable.
			k.Do(http.StatusUnprocessableEntity, http.MethodPatch, kit.CachePath+kit.CachedResourcePlural[kind]+"/"+plural, `{"spec":{"resource":"others"}}`)
			k.Do(http.StatusUnprocessableEntity, http.MethodPatch, kit.CachePath+kit.CachedResourcePlural[kind]+"/"+plural, `{"spec":{"identity":{"secretRef":{"name":"others"}}}}`)
			k.Patch("/api/v1/namespaces/kcp-system/secrets/"+plural, `{"stringData":{"key":"other"}}`)
			k.UntilCachedCondition(kind, plural, "IdentityValid", "False", "IdentityVerificationFailed")
			untilReplicas(k.Env, "", plural+":"+hash, "large", "tiny")

			k.DeleteAndWait(kit.CachePath + kit.CachedResourcePlural[kind] + "/" + plural)
			k.Eventually("the resource is deleted on the cache server", func() bool {
				_, err := e.ReplicasOf("", plural+":"+hash)
				return apierrors.IsNotFound(err)
			})
			// A new cached resource with the same identity has no replicas of the first.
			k.Patch("/api/v1/namespaces/kcp-system/secrets/"+plural, fmt.Sprintf(`{"data":{"key":%q}}`, base64.StdEncoding.EncodeToString(key)))
			k.CreateCachedResource(kind, plural, `,"labelSelector":{"matchLabels":{"hidden":"yes"}}`)
			untilReplicas(k.Env, "", plural+":"+hash, "secret")
		})
	}
}

// TestCachedResourceRefused checks that resources are rejected with a reason if they can never be replicated.
func TestCachedResourceRefused(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	k := kit.NewWorkspaceClientOn(e, "cached-refused", 1).ForTest(t)
	refused := func(want int, spec, message string) {
		t.Helper()
		require.Contains(t, k.RequireCode(want, http.MethodPost, kit.CachePath+"cachedresources", `{"apiVersion":"cache.kcp.io/v1alpha1","kind":"CachedResource","metadata":{"generateName":"x-"},"spec":`+spec+`}`), message)
	}
	refused(422, `{"version":"v1","resource":"configmaps"}`, "is built in")
	refused(422, `{"group":"apis.kcp.io","version":"v1alpha2","resource":"apiexports"}`, "is built in")
	refused(422, `{"group":"tenancy.kcp.io","version":"v1alpha1","resource":"workspaces"}`, "is built in")
	refused(422, `{"group":"shared.example.org","resource":"ones"}`, "spec.version")
	refused(422, `{"group":"shared.example.org","version":"v1","resource":"ones","identity":{"secretRef":{"namespace":"default"}}}`, "spec.identity.secretRef.name")
	refused(422, `{"group":"shared.example.org","version":"v1","resource":"ones","labelSelector":{"matchExpressions":[{"key":"a","operator":"Near"}]}}`, "spec.labelSelector")
	k.CreateCachedResource("ClusterCachedResource", "ones", "")
	refused(403, `{"group":"shared.example.org","version":"v1","resource":"ones"}`, "is already cached by the clustercachedresources ones")

	// The scope of a resource cannot be determined if it does not exist.
	k.Create(kit.DefinitionsPath, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"spaced.shared.example.org"},"spec":{"group":"shared.example.org","scope":"Namespaced","names":{"plural":"spaced","kind":"Spaced"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`)
	k.CreateCachedResource("CachedResource", "spaced", "")
	k.UntilCachedCondition("CachedResource", "spaced", "ResourceValid", "False", "ResourceNotClusterScoped")

	// Users must not be able to write the status.
	user := k.BindAdmin("user-1")
	user.UntilCode(http.StatusOK, http.MethodGet, kit.CachePath+"cachedresources", "")
	user.Do(http.StatusForbidden, http.MethodPatch, kit.CachePath+"cachedresources/spaced/status", `{"status":{"identityHash":"0123"}}`)
	kept := user.Patch(kit.CachePath+"cachedresources/spaced", `{"metadata":{"finalizers":null}}`)
	require.Equal(t, []string{"cache.kcp.io/cachedresource"}, kept.GetFinalizers(), "only the controller may remove the finalizer")
}

// TestCachedResourceOfBoundAPI checks that bound APIs are replicated from each workspace with a cached resource. Workspaces may share
// an identity.
func TestCachedResourceOfBoundAPI(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	provider := kit.NewWorkspaceClientOn(e, "cached-provider", 0).ForTest(t)
	provider.CreateExport("sizes", clusterSchema(provider, "v1", "sizes", "Size"))
	consumers := []kit.WorkspaceClient{kit.NewWorkspaceClientOn(e, "cached-a", 1).ForTest(t), kit.NewWorkspaceClientOn(e, "cached-b", 1).ForTest(t), kit.NewWorkspaceClientOn(e, "cached-c", 1).ForTest(t)}
	for i, k := range consumers {
		k.BindReady("sizes", provider, "sizes")
		k.Create("/api/v1/namespaces/default/secrets", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"shared"},"stringData":{"key":"they share it"}}`)
		k.Create("/apis/shared.example.org/v1/sizes", `{"apiVersion":"shared.example.org/v1","kind":"Size","metadata":{"name":"of-%d"},"spec":{"cpus":4}}`, i)
	}
	hash := sha256Hex([]byte("they share it"))
	const identity = `,"identity":{"secretRef":{"namespace":"default","name":"shared"}}`
	consumers[0].CreateCachedResource("CachedResource", "sizes", identity)
	untilReplicas(consumers[0].Env, "", "sizes:"+hash, "of-0")
	consumers[1].CreateCachedResource("ClusterCachedResource", "sizes", identity)
	consumers[1].UntilCached("ClusterCachedResource", "sizes", 1, 1)
	all, err := e.ReplicasOf("", "sizes:"+hash)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"of-0", "of-1"}, kit.Names(all), "the third workspace has no cached resource")

	consumers[0].Delete(kit.CachePath + "cachedresources/sizes")
	consumers[0].UntilDeleted(kit.CachePath + "cachedresources/sizes")
	untilReplicas(consumers[1].Env, "", "sizes:"+hash, "of-1")
	require.NoError(t, kinds.Workspaces.In(e.ProxyClient.Cluster(kit.Path("root"))).Delete(t.Context(), "cached-b", metav1.DeleteOptions{}))
	e.Eventually("the replicas are deleted with the workspace", func() bool {
		_, err := e.ReplicasOf("", "sizes:"+hash)
		return apierrors.IsNotFound(err)
	})
}

// TestCachedResourceBytes checks the limit of replicated bytes of a workspace, for all its cached resources together, also when
// existing objects grow.
func TestCachedResourceBytes(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	if e.External {
		t.Skip("the running cluster was started without the limit of TestMain; run it without CLUSTER")
	}
	k := kit.NewWorkspaceClientOn(e, "cached-bytes", 0)
	const flavors, size = "/apis/shared.example.org/v1/flavors", 6 << 10
	k.DefineClusterScoped("flavors", "Flavor")
	for i := range 4 {
		k.Create(flavors, `{"apiVersion":"shared.example.org/v1","kind":"Flavor","metadata":{"name":"f%d"},"spec":{"text":%q}}`, i, strings.Repeat("x", size))
	}
	first := k.CreateCachedResource("CachedResource", "flavors", "")
	now := k.UntilCachedCondition("CachedResource", "flavors", "ReplicationStarted", "False", "TooManyObjects")
	require.Contains(t, fmt.Sprint(now.Object["status"]), "10000, and 24KiB of them")
	hash, _ := kit.Field(now, "status", "identityHash").(string)
	replicas := func(want int, when string) {
		t.Helper()
		kit.EventuallyEqual(e, want, func() int {
			all, err := e.ReplicasOf("", "flavors:"+hash)
			if err != nil {
				return -1
			}
			return len(all)
		}, "replicas %s", when)
	}
	replicas(3, "with four objects")

	// A younger cached resource has lower priority.
	afterSecondOf(k, first)
	k.DefineClusterScoped("sizes", "Size")
	k.Create("/apis/shared.example.org/v1/sizes", `{"apiVersion":"shared.example.org/v1","kind":"Size","metadata":{"name":"s"},"spec":{"text":%q}}`, strings.Repeat("x", size))
	k.CreateCachedResource("ClusterCachedResource", "sizes", "")
	k.UntilCachedCondition("ClusterCachedResource", "sizes", "ReplicationStarted", "False", "TooManyObjects")
	for i := range 4 {
		k.Patch(fmt.Sprintf("%s/f%d", flavors, i), fmt.Sprintf(`{"spec":{"text":%q}}`, strings.Repeat("x", 3*size)))
	}
	replicas(1, "after the objects have grown")
	for i := range 4 {
		k.Delete(fmt.Sprintf("%s/f%d", flavors, i))
	}
	replicas(0, "after the deletion")
	k.Patch("/apis/shared.example.org/v1/sizes/s", `{"spec":{"text":"x"}}`)
	k.UntilCached("ClusterCachedResource", "sizes", 1, 1)
}

// TestCachedResourceLimit checks that a workspace has no more objects on the cache server than the flag allows, the oldest ones, also
// after restarts of both servers.
func TestCachedResourceLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: restarts servers")
	}
	t.Parallel()
	e := kit.Start(t, harness.Options{Shards: 1, DevTokens: true, ExtraArgs: map[string][]string{"shard": {"--max-cached-objects=3"}}})
	k := kit.NewWorkspaceClientOn(e, "cached-limited", 0)
	k.DefineClusterScoped("flavors", "Flavor")
	for i := range 4 {
		k.Create("/apis/shared.example.org/v1/flavors", `{"apiVersion":"shared.example.org/v1","kind":"Flavor","metadata":{"name":"f%d"}}`, i)
	}
	first := k.CreateCachedResource("CachedResource", "flavors", "")
	now := k.UntilCachedCondition("CachedResource", "flavors", "ReplicationStarted", "False", "TooManyObjects")
	hash, _ := kit.Field(now, "status", "identityHash").(string)
	require.Eventually(t, func() bool {
		all, err := e.ReplicasOf("", "flavors:"+hash)
		return err == nil && len(all) == 3
	}, kit.Timeout, kit.Timeout/300, "the cache server does not have three replicas")
	k.Delete("/apis/shared.example.org/v1/flavors/f0")
	untilReplicas(k.Env, "", "flavors:"+hash, "f1", "f2", "f3")
	k.UntilCached("CachedResource", "flavors", 3, 3)

	// The other cached resource gets no capacity, because it is younger.
	afterSecondOf(k, first)
	k.DefineClusterScoped("sizes", "Size")
	k.Create("/apis/shared.example.org/v1/sizes", `{"apiVersion":"shared.example.org/v1","kind":"Size","metadata":{"name":"s"}}`)
	k.CreateCachedResource("ClusterCachedResource", "sizes", "")
	k.UntilCachedCondition("ClusterCachedResource", "sizes", "ReplicationStarted", "False", "TooManyObjects")

	e.Component("cache-server").Restart()
	e.Component("cache-server").WaitReady()
	e.Component("root").Restart()
	e.Component("root").WaitReady()
	k.Delete("/apis/shared.example.org/v1/flavors/f1")
	untilReplicas(k.Env, "", "flavors:"+hash, "f2", "f3")
	k.UntilCached("CachedResource", "flavors", 2, 2)
	k.UntilCached("ClusterCachedResource", "sizes", 1, 1)

	// The cached resource is deleted while the cache server is stopped, and the shard restarts.
	e.Component("cache-server").Stop()
	k.Patch("/apis/shared.example.org/v1/sizes/s", `{"metadata":{"labels":{"looked":"at"}}}`)
	k.UntilCachedCondition("ClusterCachedResource", "sizes", "ReplicationStarted", "False", "Waiting")
	k.Delete(kit.CachePath + "cachedresources/flavors")
	kit.UntilPhase(k, kit.CachePath+"cachedresources/flavors", "Deleting")
	e.Component("root").Restart()
	e.Component("cache-server").Start()
	e.Component("cache-server").WaitReady()
	e.Component("root").WaitReady()
	k.UntilDeleted(kit.CachePath + "cachedresources/flavors")
	k.UntilCachedCondition("ClusterCachedResource", "sizes", "ReplicationStarted", "True", "")
	k.Eventually("the resource is deleted on the cache server", func() bool {
		_, err := e.ReplicasOf("", "flavors:"+hash)
		return apierrors.IsNotFound(err)
	})
}
