package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// defineVersions makes a cluster-scoped kind of the group shared.example.org with versions, the first of which is stored.
func (k apiKinds) defineVersions(plural, kind, conversion string, versions ...string) {
	k.t.Helper()
	all := ""
	for i, version := range versions {
		all += fmt.Sprintf(`,{"name":%q,"served":true,"storage":%t,"schema":{"openAPIV3Schema":{"type":"object"}}}`, version, i == 0)
	}
	k.create(crds, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]s.shared.example.org"},"spec":{"group":"shared.example.org","scope":"Cluster","names":{"plural":%[1]q,"kind":%[2]q},"conversion":%[3]s,"versions":[%[4]s]}}`, plural, kind, conversion, all[1:])
}

// TestCachedResourceReasons: a cached resource that cannot be replicated for now says why, and goes on by itself when
// that is over.
func TestCachedResourceReasons(t *testing.T) {
	e := newEnv(t, two.Get(t))
	const none = `{"strategy":"None"}`
	t.Run("IdentityInUse", func(t *testing.T) {
		t.Parallel()
		const identity = `,"identity":{"secretRef":{"namespace":"default","name":"same"}}`
		first, second := newAPIKindsOn(e, "reasons-first", 1).in(t), newAPIKindsOn(e, "reasons-second", 1).in(t)
		for _, k := range []apiKinds{first, second} {
			k.create("/api/v1/namespaces/default/secrets", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"same"},"stringData":{"key":"it is the same"}}`)
		}
		first.defineVersions("pairs", "Pair", none, "v2")
		first.create(cacheV1+"cachedresources", `{"apiVersion":"cache.kcp.io/v1alpha1","kind":"CachedResource","metadata":{"name":"pairs"},"spec":{"group":"shared.example.org","version":"v2","resource":"pairs"%s}}`, identity)
		first.untilCached("CachedResource", "pairs", 0, 0)
		second.defineVersions("pairs", "Pair", none, "v1")
		second.cached("CachedResource", "pairs", identity)
		now := second.untilSays("CachedResource", "pairs", "ReplicationStarted", "False", "IdentityInUse")
		require.Equal(t, "Initializing", field(now, "status", "phase"))
		second.untilSays("CachedResource", "pairs", "IdentityValid", "True", "")

		first.ask(http.StatusOK, http.MethodDelete, cacheV1+"cachedresources/pairs", "")
		second.untilCached("CachedResource", "pairs", 0, 0)
		second.untilSays("CachedResource", "pairs", "ReplicationStarted", "True", "")
	})
	t.Run("IdentityVerificationFailed", func(t *testing.T) {
		t.Parallel()
		testIdentitySecret(t, newAPIKindsOn(e, "reasons-secret", 1).in(t))
	})
	t.Run("ResourceConverted", func(t *testing.T) {
		t.Parallel()
		k := newAPIKindsOn(e, "reasons-converted", 0).in(t)
		k.defineVersions("units", "Unit", `{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"url":"https://127.0.0.1:1"}}}`, "v2", "v1")
		k.cached("CachedResource", "units", "")
		now := k.untilSays("CachedResource", "units", "ResourceValid", "False", "ResourceConverted")
		require.Equal(t, "Initializing", field(now, "status", "phase"))
		k.untilSays("CachedResource", "units", "ReplicationStarted", "False", "Waiting")
		k.ask(http.StatusOK, http.MethodPatch, crds+"/units.shared.example.org", `{"spec":{"conversion":{"strategy":"None","webhook":null}}}`)
		k.untilCached("CachedResource", "units", 0, 0)
		k.untilSays("CachedResource", "units", "ResourceValid", "True", "")
	})
}

// testIdentitySecret: nothing is replicated before there is a secret with an identity. After that, one that goes or is
// another is said, and changes nothing of what is replicated, until the former one is back.
func testIdentitySecret(t *testing.T, k apiKinds) {
	const secrets = "/api/v1/namespaces/default/secrets"
	k.defineVersions("keys", "Key", `{"strategy":"None"}`, "v1")
	key := func(name string) {
		k.create("/apis/shared.example.org/v1/keys", `{"apiVersion":"shared.example.org/v1","kind":"Key","metadata":{"name":%q}}`, name)
	}
	key("a")
	k.cached("CachedResource", "keys", `,"identity":{"secretRef":{"namespace":"default","name":"own"}}`)
	failed := func(says, phase string) *unstructured.Unstructured {
		t.Helper()
		var now *unstructured.Unstructured
		k.eventually("it says: "+says, func() bool {
			now = k.get(cacheV1 + "cachedresources/keys")
			return condition(now, "IdentityValid") == "False IdentityVerificationFailed" && strings.Contains(fmt.Sprint(field(now, "status", "conditions")), says)
		})
		require.Equal(t, phase, field(now, "status", "phase"))
		return now
	}
	now := failed("The secret default/own does not exist: create it", "Initializing")
	require.Nil(t, field(now, "status", "identityHash"))
	k.untilSays("CachedResource", "keys", "ReplicationStarted", "False", "Waiting")
	k.create(secrets, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"own"},"stringData":{"other":"x"}}`)
	failed("The secret default/own has nothing under", "Initializing")
	k.ask(http.StatusOK, http.MethodPatch, secrets+"/own", `{"stringData":{"key":"the first"}}`)
	now = k.untilCached("CachedResource", "keys", 1, 1)
	hash := sha256Hex([]byte("the first"))
	require.Equal(t, hash, field(now, "status", "identityHash"))

	k.ask(http.StatusOK, http.MethodDelete, secrets+"/own", "")
	failed("The secret default/own does not exist", "Ready")
	key("b")
	k.untilReplicas("", "keys:"+hash, "a", "b")
	k.create(secrets, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"own"},"stringData":{"key":"the second"}}`)
	failed("has another identity than status.identityHash", "Ready")
	key("c")
	k.untilReplicas("", "keys:"+hash, "a", "b", "c")
	k.untilSays("CachedResource", "keys", "ReplicationStarted", "True", "")
	k.ask(http.StatusOK, http.MethodPatch, secrets+"/own", `{"stringData":{"key":"the first"}}`)
	k.untilSays("CachedResource", "keys", "IdentityValid", "True", "")

	// It goes without the secret, too.
	k.ask(http.StatusOK, http.MethodDelete, secrets+"/own", "")
	k.ask(http.StatusOK, http.MethodDelete, cacheV1+"cachedresources/keys", "")
	k.gone(cacheV1+"cachedresources", "keys")
	k.eventually("the kind is gone on the cache server", func() bool {
		_, err := k.replicasOf("", "keys:"+hash)
		return apierrors.IsNotFound(err)
	})
}
