package integration

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
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
)

const cacheV1 = "/apis/cache.kcp.io/v1alpha1/"

// defineCluster makes a cluster-scoped kind of the group shared.example.org.
func (k apiKinds) defineCluster(plural, kind string) {
	k.t.Helper()
	k.create(crds, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]s.shared.example.org"},"spec":{"group":"shared.example.org","scope":"Cluster","names":{"plural":"%[1]s","kind":%[2]q},
		"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true},"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}]}}`, plural, kind)
	k.eventually("the definition of "+plural+" is established", func() bool {
		code, _ := k.status(http.MethodGet, "/apis/shared.example.org/v1/"+plural, "")
		return code == http.StatusOK
	})
}

// cached creates a cached resource of the group shared.example.org under one of its names.
func (k apiKinds) cached(kind, plural, more string) *unstructured.Unstructured {
	k.t.Helper()
	return k.create(cacheV1+resourceOf[kind], `{"apiVersion":"cache.kcp.io/v1alpha1","kind":%q,"metadata":{"name":%q},"spec":{"group":"shared.example.org","version":"v1","resource":%q%s}}`, kind, plural, plural, more)
}

// afterSecondOf waits until what is made is younger than an object: times of creation are in seconds,
// and the older of two cached resources comes first.
func (k apiKinds) afterSecondOf(object *unstructured.Unstructured) {
	k.t.Helper()
	k.eventually("the next one is younger", func() bool { return time.Since(object.GetCreationTimestamp().Time) > time.Second })
}

// clusterSchema makes a schema of a cluster-scoped resource of shared.example.org.
func (k apiKinds) clusterSchema(prefix, plural, kind string) string {
	k.t.Helper()
	name := prefix + "." + plural + ".shared.example.org"
	k.create(apisV1+"apiresourceschemas", `{"metadata":{"name":%q},"spec":{"group":"shared.example.org","scope":"Cluster","names":{"plural":%q,"singular":%q,"kind":%q,"listKind":%q},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}]}}`,
		name, plural, plural[:len(plural)-1], kind, kind+"List")
	return name
}

func sha256Hex(key []byte) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:])
}

var resourceOf = map[string]string{"CachedResource": "cachedresources", "ClusterCachedResource": "clustercachedresources"}

// untilCached waits until a cached resource says that so many objects are replicated.
func (k apiKinds) untilCached(kind, name string, local, cached float64) *unstructured.Unstructured {
	k.t.Helper()
	var now *unstructured.Unstructured
	require.Eventually(k.t, func() bool {
		now = k.get(cacheV1 + resourceOf[kind] + "/" + name)
		counts, _ := field(now, "status", "resourceCounts").(map[string]any)
		return field(now, "status", "phase") == "Ready" && counts["local"] == local && counts["cache"] == cached
	}, testTimeout, testTimeout/300, "%s %s: %v", kind, name, &printed{&now})
	return now
}

// printed is what an object is when a message is printed.
type printed struct{ of **unstructured.Unstructured }

func (p *printed) String() string {
	return fmt.Sprint((*p.of).Object["spec"], (*p.of).Object["status"])
}

// untilSays waits until a condition of a cached resource has a status and a reason.
func (k apiKinds) untilSays(kind, name, condition, status, reason string) *unstructured.Unstructured {
	k.t.Helper()
	var now *unstructured.Unstructured
	require.Eventually(k.t, func() bool {
		now = k.get(cacheV1 + resourceOf[kind] + "/" + name)
		all, _ := field(now, "status", "conditions").([]any)
		for _, c := range all {
			if c, _ := c.(map[string]any); c["type"] == condition {
				said, _ := c["reason"].(string)
				return c["status"] == status && said == reason
			}
		}
		return false
	}, testTimeout, testTimeout/300, "%s of %s %s is to be %s, %s: %v", condition, kind, name, status, reason, &printed{&now})
	return now
}

// replicasOf returns what the cache server has of a resource in a logical cluster, or "" for all.
func (e *env) replicasOf(cluster, resource string) ([]unstructured.Unstructured, error) {
	e.t.Helper()
	scope := e.cache.Shard("*").Wildcard()
	if cluster != "" {
		scope = e.cache.Shard(e.placement(cluster)).Cluster(path(cluster))
	}
	clients, err := scope.Dynamic()
	require.NoError(e.t, err)
	list, err := clients.Resource(schema.GroupVersionResource{Group: "shared.example.org", Version: "v1", Resource: resource}).List(e.t.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func names(all []unstructured.Unstructured) []string {
	found := []string{}
	for i := range all {
		found = append(found, all[i].GetName())
	}
	return found
}

// untilReplicas waits until the cache server has these objects of a resource, by name.
func (e *env) untilReplicas(cluster, resource string, want ...string) []unstructured.Unstructured {
	e.t.Helper()
	var all []unstructured.Unstructured
	var err error
	require.Eventually(e.t, func() bool {
		all, err = e.replicasOf(cluster, resource)
		return err == nil && len(all) == len(want) && fmt.Sprint(names(all)) == fmt.Sprint(want)
	}, testTimeout, testTimeout/300, "the cache server is to have %v of %s", want, resource)
	return all
}

// TestCachedResources: by both of their names, cached resources have what they select of a CRD's
// objects on the cache server, as <resource>:<identity> for all and by the plain name in one
// logical cluster, follow it, and take it away again with the kind.
func TestCachedResources(t *testing.T) {
	e := newEnv(t, two.Get(t))
	for kind, shard := range map[string]int{"CachedResource": 0, "ClusterCachedResource": 1} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			k := newAPIKindsOn(e, "cached-"+resourceOf[kind], shard).in(t)
			plural, objects := "flavors"+fmt.Sprint(shard), "/apis/shared.example.org/v1/flavors"+fmt.Sprint(shard)
			made := k.cached(kind, plural, `,"labelSelector":{"matchExpressions":[{"key":"hidden","operator":"DoesNotExist"}]}`)
			require.NotNil(t, field(made, "metadata", "annotations", "kcp.io/path"), "others refer to it by its path")
			k.untilSays(kind, plural, "ResourceValid", "False", "NoResources")
			k.defineCluster(plural, "Flavor")
			object := func(name, labels string) {
				k.create(objects, `{"apiVersion":"shared.example.org/v1","kind":"Flavor","metadata":{"name":%q,"labels":{%s},"finalizers":["example.org/kept"]},"spec":{"cpus":4}}`, name, labels)
			}
			object("large", "")
			object("secret", `"hidden":"yes"`)
			object("small", "")
			now := k.untilCached(kind, plural, 2, 2)

			secret := k.get("/api/v1/namespaces/kcp-system/secrets/" + plural)
			key, err := base64.StdEncoding.DecodeString(field(secret, "data", "key").(string)) //nolint:forcetypeassert // as secrets are
			require.NoError(t, err)
			hash, _ := field(now, "status", "identityHash").(string)
			require.Equal(t, sha256Hex(key), hash)
			require.Equal(t, map[string]any{"namespace": "kcp-system", "name": plural}, field(now, "spec", "identity", "secretRef"))
			k.untilSays(kind, plural, "IdentityValid", "True", "")
			k.untilSays(kind, plural, "ReplicationStarted", "True", "")

			all := k.untilReplicas("", plural+":"+hash, "large", "small")
			original := k.get(objects + "/large")
			for _, same := range [][]string{{"metadata", "uid"}, {"metadata", "creationTimestamp"}, {"metadata", "finalizers"}, {"metadata", "managedFields"}, {"spec"}, {"kind"}, {"apiVersion"}} {
				require.Equal(t, fmt.Sprint(field(original, same...)), fmt.Sprint(field(&all[0], same...)), same)
			}
			require.Equal(t, k.cluster, all[0].GetAnnotations()["kcp.io/cluster"])
			require.Equal(t, original.GetResourceVersion(), all[0].GetAnnotations()["cache.kcp.io/original-resource-version"])
			k.untilReplicas(k.cluster, plural, "large", "small")

			_, err = e.replicasOf("", plural)
			require.True(t, apierrors.IsNotFound(err), "all need an identity: %v", err)
			_, err = e.replicasOf("", plural+":"+sha256Hex([]byte("another")))
			require.True(t, apierrors.IsNotFound(err), "another identity: %v", err)

			object("tiny", "")
			k.ask(http.StatusOK, http.MethodPatch, objects+"/small", `{"metadata":{"labels":{"hidden":"now"}}}`)
			k.ask(http.StatusOK, http.MethodPatch, objects+"/large/status", `{"status":{"used":7}}`)
			k.untilReplicas("", plural+":"+hash, "large", "tiny")
			k.eventually("the status is replicated", func() bool {
				all, err := e.replicasOf(k.cluster, plural)
				return err == nil && len(all) == 2 && fmt.Sprint(field(&all[0], "status", "used")) == "7"
			})
			k.untilCached(kind, plural, 2, 2)

			// Neither what is replicated nor the identity changes.
			k.ask(http.StatusUnprocessableEntity, http.MethodPatch, cacheV1+resourceOf[kind]+"/"+plural, `{"spec":{"resource":"others"}}`)
			k.ask(http.StatusUnprocessableEntity, http.MethodPatch, cacheV1+resourceOf[kind]+"/"+plural, `{"spec":{"identity":{"secretRef":{"name":"others"}}}}`)
			k.ask(http.StatusOK, http.MethodPatch, "/api/v1/namespaces/kcp-system/secrets/"+plural, `{"stringData":{"key":"other"}}`)
			k.untilSays(kind, plural, "IdentityValid", "False", "IdentityVerificationFailed")
			k.untilReplicas("", plural+":"+hash, "large", "tiny")

			k.ask(http.StatusOK, http.MethodDelete, cacheV1+resourceOf[kind]+"/"+plural, "")
			k.gone(cacheV1+resourceOf[kind], plural)
			k.eventually("the kind is gone on the cache server", func() bool {
				_, err := e.replicasOf("", plural+":"+hash)
				return apierrors.IsNotFound(err)
			})
			// Another one with the same identity finds nothing of the first.
			k.ask(http.StatusOK, http.MethodPatch, "/api/v1/namespaces/kcp-system/secrets/"+plural, fmt.Sprintf(`{"data":{"key":%q}}`, base64.StdEncoding.EncodeToString(key)))
			k.cached(kind, plural, `,"labelSelector":{"matchLabels":{"hidden":"yes"}}`)
			k.untilReplicas("", plural+":"+hash, "secret")
		})
	}
}

// TestCachedResourceRefused: what can never be replicated is refused, with what to do.
func TestCachedResourceRefused(t *testing.T) {
	e := newEnv(t, two.Get(t))
	k := newAPIKindsOn(e, "cached-refused", 1).in(t)
	refused := func(want int, spec, says string) {
		t.Helper()
		code, said := k.status(http.MethodPost, cacheV1+"cachedresources", `{"apiVersion":"cache.kcp.io/v1alpha1","kind":"CachedResource","metadata":{"generateName":"x-"},"spec":`+spec+`}`)
		require.Equal(t, want, code, said)
		require.Contains(t, said, says)
	}
	refused(422, `{"version":"v1","resource":"configmaps"}`, "is built in")
	refused(422, `{"group":"apis.kcp.io","version":"v1alpha2","resource":"apiexports"}`, "is built in")
	refused(422, `{"group":"tenancy.kcp.io","version":"v1alpha1","resource":"workspaces"}`, "is built in")
	refused(422, `{"group":"shared.example.org","resource":"ones"}`, "spec.version")
	refused(422, `{"group":"shared.example.org","version":"v1","resource":"ones","identity":{"secretRef":{"namespace":"default"}}}`, "spec.identity.secretRef.name")
	refused(422, `{"group":"shared.example.org","version":"v1","resource":"ones","labelSelector":{"matchExpressions":[{"key":"a","operator":"Near"}]}}`, "spec.labelSelector")
	k.cached("ClusterCachedResource", "ones", "")
	refused(403, `{"group":"shared.example.org","version":"v1","resource":"ones"}`, "is cached already, by the clustercachedresources ones")

	// A namespaced resource is known to be one only when it is there.
	k.create(crds, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"spaced.shared.example.org"},"spec":{"group":"shared.example.org","scope":"Namespaced","names":{"plural":"spaced","kind":"Spaced"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`)
	k.cached("CachedResource", "spaced", "")
	k.untilSays("CachedResource", "spaced", "ResourceValid", "False", "ResourceNotClusterScoped")

	// The status is the server's.
	user := k.as("user-1-token")
	admin := rbacV1 + "clusterrolebindings"
	k.create(admin, `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"user-1"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"user-1"}]}`)
	k.eventually("user-1 may enter", func() bool {
		code, _ := user.status(http.MethodGet, cacheV1+"cachedresources", "")
		return code == http.StatusOK
	})
	user.ask(http.StatusForbidden, http.MethodPatch, cacheV1+"cachedresources/spaced/status", `{"status":{"identityHash":"0123"}}`)
	kept := user.ask(http.StatusOK, http.MethodPatch, cacheV1+"cachedresources/spaced", `{"metadata":{"finalizers":null}}`)
	require.Equal(t, []string{"cache.kcp.io/cachedresource"}, kept.GetFinalizers(), "it goes when the replicas have gone")
}

// TestCachedResourceOfBoundAPI: what is bound is replicated as well, of each workspace that has a
// cached resource and of no other; workspaces may share an identity.
func TestCachedResourceOfBoundAPI(t *testing.T) {
	e := newEnv(t, two.Get(t))
	provider := newAPIKindsOn(e, "cached-provider", 0).in(t)
	provider.export("sizes", provider.clusterSchema("v1", "sizes", "Size"))
	consumers := []apiKinds{newAPIKindsOn(e, "cached-a", 1).in(t), newAPIKindsOn(e, "cached-b", 1).in(t), newAPIKindsOn(e, "cached-c", 1).in(t)}
	for i, k := range consumers {
		k.bind("sizes", provider, "sizes")
		k.until("sizes", "Ready", "True <nil>")
		k.create("/api/v1/namespaces/default/secrets", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"shared"},"stringData":{"key":"they share it"}}`)
		k.create("/apis/shared.example.org/v1/sizes", `{"apiVersion":"shared.example.org/v1","kind":"Size","metadata":{"name":"of-%d"},"spec":{"cpus":4}}`, i)
	}
	hash := sha256Hex([]byte("they share it"))
	const identity = `,"identity":{"secretRef":{"namespace":"default","name":"shared"}}`
	consumers[0].cached("CachedResource", "sizes", identity)
	consumers[0].untilReplicas("", "sizes:"+hash, "of-0")
	consumers[1].cached("ClusterCachedResource", "sizes", identity)
	consumers[1].untilCached("ClusterCachedResource", "sizes", 1, 1)
	all, err := e.replicasOf("", "sizes:"+hash)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"of-0", "of-1"}, names(all), "the third has not said so")

	consumers[0].ask(http.StatusOK, http.MethodDelete, cacheV1+"cachedresources/sizes", "")
	consumers[0].gone(cacheV1+"cachedresources", "sizes")
	consumers[1].untilReplicas("", "sizes:"+hash, "of-1")
	require.NoError(t, kinds.Workspaces.In(e.proxy.Cluster(path("root"))).Delete(t.Context(), "cached-b", metav1.DeleteOptions{}))
	e.eventually("the workspace takes its replicas along", func() bool {
		_, err := e.replicasOf("", "sizes:"+hash)
		return apierrors.IsNotFound(err)
	})
}

// TestCachedResourceBytes: a workspace has no more bytes on the cache server than the flag says, all its
// cached resources together, also when objects grow that are there.
func TestCachedResourceBytes(t *testing.T) {
	e := start(t, harness.Options{Shards: 1, DevTokens: true, ExtraArgs: map[string][]string{"shard": {"--max-cached-bytes=24Ki"}}})
	k := newAPIKindsOn(e, "cached-bytes", 0)
	const flavors, size = "/apis/shared.example.org/v1/flavors", 6 << 10
	k.defineCluster("flavors", "Flavor")
	for i := range 4 {
		k.create(flavors, `{"apiVersion":"shared.example.org/v1","kind":"Flavor","metadata":{"name":"f%d"},"spec":{"text":%q}}`, i, strings.Repeat("x", size))
	}
	first := k.cached("CachedResource", "flavors", "")
	now := k.untilSays("CachedResource", "flavors", "ReplicationStarted", "False", "TooManyObjects")
	require.Contains(t, fmt.Sprint(now.Object["status"]), "10000, and 24KiB of them")
	hash, _ := field(now, "status", "identityHash").(string)
	replicas := func(want int, why string) {
		t.Helper()
		var got []string
		require.Eventually(t, func() bool {
			all, err := e.replicasOf("", "flavors:"+hash)
			got = names(all)
			return err == nil && len(got) == want
		}, testTimeout, testTimeout/300, "%s: %d replicas, not %v", why, want, &got)
	}
	replicas(3, "the fourth does not fit")

	// A younger one has the room that is left.
	k.afterSecondOf(first)
	k.defineCluster("sizes", "Size")
	k.create("/apis/shared.example.org/v1/sizes", `{"apiVersion":"shared.example.org/v1","kind":"Size","metadata":{"name":"s"},"spec":{"text":%q}}`, strings.Repeat("x", size))
	k.cached("ClusterCachedResource", "sizes", "")
	k.untilSays("ClusterCachedResource", "sizes", "ReplicationStarted", "False", "TooManyObjects")
	for i := range 4 {
		k.ask(http.StatusOK, http.MethodPatch, fmt.Sprintf("%s/f%d", flavors, i), fmt.Sprintf(`{"spec":{"text":%q}}`, strings.Repeat("x", 3*size)))
	}
	replicas(1, "they have grown")
	for i := range 4 {
		k.ask(http.StatusOK, http.MethodDelete, fmt.Sprintf("%s/f%d", flavors, i), "")
	}
	replicas(0, "they are gone")
	k.ask(http.StatusOK, http.MethodPatch, "/apis/shared.example.org/v1/sizes/s", `{"spec":{"text":"x"}}`)
	k.untilCached("ClusterCachedResource", "sizes", 1, 1)
}

// TestCachedResourceLimit: a workspace has no more objects on the cache server than the flag says,
// the oldest. Restarts of both servers change nothing, and do not keep replicas from going.
func TestCachedResourceLimit(t *testing.T) {
	e := start(t, harness.Options{Shards: 1, DevTokens: true, ExtraArgs: map[string][]string{"shard": {"--max-cached-objects=3"}}})
	k := newAPIKindsOn(e, "cached-limited", 0)
	k.defineCluster("flavors", "Flavor")
	for i := range 4 {
		k.create("/apis/shared.example.org/v1/flavors", `{"apiVersion":"shared.example.org/v1","kind":"Flavor","metadata":{"name":"f%d"}}`, i)
	}
	first := k.cached("CachedResource", "flavors", "")
	now := k.untilSays("CachedResource", "flavors", "ReplicationStarted", "False", "TooManyObjects")
	hash, _ := field(now, "status", "identityHash").(string)
	require.Eventually(t, func() bool {
		all, err := e.replicasOf("", "flavors:"+hash)
		return err == nil && len(all) == 3
	}, testTimeout, testTimeout/300, "three are replicated")
	k.ask(http.StatusOK, http.MethodDelete, "/apis/shared.example.org/v1/flavors/f0", "")
	k.untilReplicas("", "flavors:"+hash, "f1", "f2", "f3")
	k.untilCached("CachedResource", "flavors", 3, 3)

	// The other name has no room left, as it is younger.
	k.afterSecondOf(first)
	k.defineCluster("sizes", "Size")
	k.create("/apis/shared.example.org/v1/sizes", `{"apiVersion":"shared.example.org/v1","kind":"Size","metadata":{"name":"s"}}`)
	k.cached("ClusterCachedResource", "sizes", "")
	k.untilSays("ClusterCachedResource", "sizes", "ReplicationStarted", "False", "TooManyObjects")

	e.Component("cache-server").Restart()
	e.Component("cache-server").WaitReady()
	e.Component("root").Restart()
	e.Component("root").WaitReady()
	k.ask(http.StatusOK, http.MethodDelete, "/apis/shared.example.org/v1/flavors/f1", "")
	k.untilReplicas("", "flavors:"+hash, "f2", "f3")
	k.untilCached("CachedResource", "flavors", 2, 2)
	k.untilCached("ClusterCachedResource", "sizes", 1, 1)

	// It is deleted while the cache server is away, and the shard restarts.
	e.Component("cache-server").Stop()
	k.ask(http.StatusOK, http.MethodPatch, "/apis/shared.example.org/v1/sizes/s", `{"metadata":{"labels":{"looked":"at"}}}`)
	k.untilSays("ClusterCachedResource", "sizes", "ReplicationStarted", "False", "Waiting")
	k.ask(http.StatusOK, http.MethodDelete, cacheV1+"cachedresources/flavors", "")
	k.eventually("it is being deleted", func() bool {
		return field(k.get(cacheV1+"cachedresources/flavors"), "status", "phase") == "Deleting"
	})
	e.Component("root").Restart()
	e.Component("cache-server").Start()
	e.Component("cache-server").WaitReady()
	e.Component("root").WaitReady()
	k.gone(cacheV1+"cachedresources", "flavors")
	k.untilSays("ClusterCachedResource", "sizes", "ReplicationStarted", "True", "")
	k.eventually("the kind is gone", func() bool {
		_, err := e.replicasOf("", "flavors:"+hash)
		return apierrors.IsNotFound(err)
	})
}
