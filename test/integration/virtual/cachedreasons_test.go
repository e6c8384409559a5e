package virtual

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// defineVersions defines a cluster-scoped kind of shared.example.org. The first version is stored.
func defineVersions(k kit.WorkspaceClient, plural, kind, conversion string, versions ...string) {
	k.T.Helper()
	all := ""
	for i, version := range versions {
		all += fmt.Sprintf(`,{"name":%q,"served":true,"storage":%t,"schema":{"openAPIV3Schema":{"type":"object"}}}`, version, i == 0)
	}
	k.Create(kit.DefinitionsPath, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]s.shared.example.org"},"spec":{"group":"shared.example.org","scope":"Cluster","names":{"plural":%[1]q,"kind":%[2]q},"conversion":%[3]s,"versions":[%[4]s]}}`, plural, kind, conversion, all[1:])
}

// TestCachedResourceReasons checks that a cached resource reports why its objects are not replicated, and is replicated if the
// reason does not apply any more.
func TestCachedResourceReasons(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	const none = `{"strategy":"None"}`
	t.Run("IdentityInUse", func(t *testing.T) {
		t.Parallel()
		const identity = `,"identity":{"secretRef":{"namespace":"default","name":"same"}}`
		first, second := kit.NewWorkspaceClientOn(e, "reasons-first", 1).ForTest(t), kit.NewWorkspaceClientOn(e, "reasons-second", 1).ForTest(t)
		for _, k := range []kit.WorkspaceClient{first, second} {
			k.Create("/api/v1/namespaces/default/secrets", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"same"},"stringData":{"key":"it is the same"}}`)
		}
		defineVersions(first, "pairs", "Pair", none, "v2")
		first.Create(kit.CachePath+"cachedresources", `{"apiVersion":"cache.kcp.io/v1alpha1","kind":"CachedResource","metadata":{"name":"pairs"},"spec":{"group":"shared.example.org","version":"v2","resource":"pairs"%s}}`, identity)
		first.UntilCached("CachedResource", "pairs", 0, 0)
		defineVersions(second, "pairs", "Pair", none, "v1")
		second.CreateCachedResource("CachedResource", "pairs", identity)
		now := second.UntilCachedCondition("CachedResource", "pairs", "ReplicationStarted", "False", "IdentityInUse")
		require.Equal(t, "Initializing", kit.Field(now, "status", "phase"))
		second.UntilCachedCondition("CachedResource", "pairs", "IdentityValid", "True", "")

		first.Delete(kit.CachePath + "cachedresources/pairs")
		second.UntilCached("CachedResource", "pairs", 0, 0)
		second.UntilCachedCondition("CachedResource", "pairs", "ReplicationStarted", "True", "")
	})
	t.Run("IdentityVerificationFailed", func(t *testing.T) {
		t.Parallel()
		testIdentitySecret(t, kit.NewWorkspaceClientOn(e, "reasons-secret", 1).ForTest(t))
	})
	t.Run("ResourceConverted", func(t *testing.T) {
		t.Parallel()
		k := kit.NewWorkspaceClientOn(e, "reasons-converted", 0).ForTest(t)
		defineVersions(k, "units", "Unit", `{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"url":"https://127.0.0.1:1"}}}`, "v2", "v1")
		k.CreateCachedResource("CachedResource", "units", "")
		now := k.UntilCachedCondition("CachedResource", "units", "ResourceValid", "False", "ResourceConverted")
		require.Equal(t, "Initializing", kit.Field(now, "status", "phase"))
		k.UntilCachedCondition("CachedResource", "units", "ReplicationStarted", "False", "Waiting")
		k.Patch(kit.DefinitionsPath+"/units.shared.example.org", `{"spec":{"conversion":{"strategy":"None","webhook":null}}}`)
		k.UntilCached("CachedResource", "units", 0, 0)
		k.UntilCachedCondition("CachedResource", "units", "ResourceValid", "True", "")
	})
}

// testIdentitySecret checks that replication starts if the secret with the identity exists. If the secret is deleted or changed
// later, it is reported, and the replicas are not affected.
func testIdentitySecret(t *testing.T, k kit.WorkspaceClient) {
	const secrets = "/api/v1/namespaces/default/secrets"
	defineVersions(k, "keys", "Key", `{"strategy":"None"}`, "v1")
	key := func(name string) {
		k.Create("/apis/shared.example.org/v1/keys", `{"apiVersion":"shared.example.org/v1","kind":"Key","metadata":{"name":%q}}`, name)
	}
	key("a")
	k.CreateCachedResource("CachedResource", "keys", `,"identity":{"secretRef":{"namespace":"default","name":"own"}}`)
	failed := func(message, phase string) *unstructured.Unstructured {
		t.Helper()
		var now *unstructured.Unstructured
		k.Eventually("the condition reports: "+message, func() bool {
			now = k.Get(kit.CachePath + "cachedresources/keys")
			return kit.Condition(now, "IdentityValid") == "False IdentityVerificationFailed" && strings.Contains(fmt.Sprint(kit.Field(now, "status", "conditions")), message)
		})
		require.Equal(t, phase, kit.Field(now, "status", "phase"))
		return now
	}
	now := failed("The secret default/own does not exist: create it", "Initializing")
	require.Nil(t, kit.Field(now, "status", "identityHash"))
	k.UntilCachedCondition("CachedResource", "keys", "ReplicationStarted", "False", "Waiting")
	k.Create(secrets, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"own"},"stringData":{"other":"x"}}`)
	failed("The secret default/own has no value under", "Initializing")
	k.Patch(secrets+"/own", `{"stringData":{"key":"the first"}}`)
	now = k.UntilCached("CachedResource", "keys", 1, 1)
	hash := sha256Hex([]byte("the first"))
	require.Equal(t, hash, kit.Field(now, "status", "identityHash"))

	k.Delete(secrets + "/own")
	failed("The secret default/own does not exist", "Ready")
	key("b")
	untilReplicas(k.Env, "", "keys:"+hash, "a", "b")
	k.Create(secrets, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"own"},"stringData":{"key":"the second"}}`)
	failed("has another identity than status.identityHash", "Ready")
	key("c")
	untilReplicas(k.Env, "", "keys:"+hash, "a", "b", "c")
	k.UntilCachedCondition("CachedResource", "keys", "ReplicationStarted", "True", "")
	k.Patch(secrets+"/own", `{"stringData":{"key":"the first"}}`)
	k.UntilCachedCondition("CachedResource", "keys", "IdentityValid", "True", "")

	// It must be possible to delete the cached resource without the secret.
	k.Delete(secrets + "/own")
	k.DeleteAndWait(kit.CachePath + "cachedresources/keys")
	k.Eventually("the resource is deleted on the cache server", func() bool {
		_, err := k.ReplicasOf("", "keys:"+hash)
		return apierrors.IsNotFound(err)
	})
}
