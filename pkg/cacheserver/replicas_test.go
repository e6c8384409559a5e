package cacheserver_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// asReplica returns an object as a shard sends it.
func asReplica(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "core.kcp.io/v1alpha1", "kind": "Shard",
		"metadata": map[string]any{
			"name": name, "uid": "uid-of-" + name, "generation": int64(7), "creationTimestamp": "2020-01-02T03:04:05Z",
			"labels": map[string]any{"a": "b"}, "finalizers": []any{"example.com/held"},
			"annotations": map[string]any{
				"kcp.io/shard": "amber", "cache.kcp.io/original-resource-version": "7", "cache.kcp.io/original-resource-UID": "uid-of-" + name,
			},
			"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "u"}},
			"managedFields": []any{map[string]any{
				"manager": "kubectl", "operation": "Update", "apiVersion": "core.kcp.io/v1alpha1", "time": "2020-01-02T03:04:05Z",
				"fieldsType": "FieldsV1", "fieldsV1": map[string]any{"f:spec": map[string]any{"f:baseURL": map[string]any{}}},
			}},
		},
		"spec":   map[string]any{"baseURL": "https://x", "fromTheFuture": int64(1)},
		"status": map[string]any{"ready": true},
	}}
}

// content returns an object without the metadata that the cache server sets.
func content(obj *unstructured.Unstructured) map[string]any {
	obj = obj.DeepCopy()
	obj.SetResourceVersion("")
	annotations := obj.GetAnnotations()
	delete(annotations, "kcp.io/cluster")
	obj.SetAnnotations(annotations)
	return obj.Object
}

// testUnchangedReplicas checks that objects with the name of a shard keep their metadata.
func testUnchangedReplicas(t *testing.T, cache *cacheServer) {
	t.Helper()
	shards := in(t, cache.f.Shard("amber"), "root", shardsGVR)
	want := asReplica("one")
	created := create(t, shards, want)
	require.Equal(t, want.Object, content(created))
	require.Equal(t, "root", created.GetAnnotations()["kcp.io/cluster"])
	read := mustGet(t, shards, "one")
	require.Equal(t, created, read)

	t.Log("One update changes spec and status, and keeps the generation")
	want.Object["spec"], want.Object["status"] = map[string]any{"baseURL": "https://y"}, map[string]any{"ready": false}
	want.SetManagedFields(nil)
	want.SetFinalizers(nil)
	want.SetResourceVersion(created.GetResourceVersion())
	updated, err := shards.Update(t.Context(), want, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, content(want)["metadata"], content(updated)["metadata"])
	require.Equal(t, want.Object["spec"], updated.Object["spec"])
	require.Equal(t, want.Object["status"], updated.Object["status"])
	patched := mustPatch(t, shards, "one", `{"spec":{"baseURL":"https://z"}}`)
	require.EqualValues(t, 7, patched.GetGeneration())
	require.EqualValues(t, "uid-of-one", patched.GetUID())

	t.Log("The UID may only change with the annotation of the original UID")
	want.SetResourceVersion(patched.GetResourceVersion())
	want.SetUID("another")
	_, err = shards.Update(t.Context(), want, metav1.UpdateOptions{})
	require.True(t, apierrors.IsConflict(err), "%v", err)
	want.SetUID("")
	annotations := want.GetAnnotations()
	annotations["cache.kcp.io/original-resource-UID"] = "another"
	want.SetAnnotations(annotations)
	updated, err = shards.Update(t.Context(), want, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
	require.NoError(t, err)
	require.EqualValues(t, "another", updated.GetUID())
	read = mustGet(t, shards, "one")
	require.Equal(t, patched, read, "a dry run must not change the object")
	updated, err = shards.Update(t.Context(), want, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.EqualValues(t, "another", updated.GetUID())
	require.EqualValues(t, 7, updated.GetGeneration())

	t.Log("Updates require the current resource version")
	want.SetResourceVersion(read.GetResourceVersion())
	_, err = shards.Update(t.Context(), want, metav1.UpdateOptions{})
	require.True(t, apierrors.IsConflict(err), "%v", err)
	want.SetResourceVersion("")
	_, err = shards.Update(t.Context(), want, metav1.UpdateOptions{})
	require.True(t, apierrors.IsInvalid(err), "%v", err)
	_, err = shards.Create(t.Context(), want, metav1.CreateOptions{})
	require.True(t, apierrors.IsAlreadyExists(err), "%v", err)
	missing := asReplica("missing")
	missing.SetResourceVersion("1")
	_, err = shards.Update(t.Context(), missing, metav1.UpdateOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	_, err = shards.Create(t.Context(), missing, metav1.CreateOptions{})
	require.True(t, apierrors.IsBadRequest(err), "%v", err)
}

// testOwnObjectsGetMetadata checks that objects without the name of a shard get metadata from the server.
func testOwnObjectsGetMetadata(t *testing.T, cache *cacheServer) {
	t.Helper()
	shards := in(t, cache.f.Shard("amber"), "own", shardsGVR)
	obj := asReplica("one")
	obj.SetAnnotations(nil)
	before := time.Now().Add(-time.Minute)
	created := create(t, shards, obj)
	require.NotEqualValues(t, "uid-of-one", created.GetUID())
	require.EqualValues(t, 1, created.GetGeneration())
	require.True(t, created.GetCreationTimestamp().After(before))

	for _, gap := range []string{"uid", "creationTimestamp"} {
		incomplete := asReplica("two")
		delete(incomplete.Object["metadata"].(map[string]any), gap)
		created = create(t, shards, incomplete)
		require.EqualValues(t, "uid-of-two", created.GetUID())
		require.False(t, created.GetCreationTimestamp().Time.IsZero())
		require.NoError(t, shards.Delete(t.Context(), "two", metav1.DeleteOptions{}))
	}
}

// testReplicasAreDeletedAtOnce checks that finalizers do not delay the deletion of replicas.
func testReplicasAreDeletedAtOnce(t *testing.T, cache *cacheServer) {
	t.Helper()
	shards := in(t, cache.f.Shard("amber"), "root", shardsGVR)
	one, two := create(t, shards, asReplica("one")), create(t, shards, asReplica("two"))
	require.NotEmpty(t, one.GetFinalizers())
	err := shards.Delete(t.Context(), "one", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: new(two.GetResourceVersion())}})
	require.True(t, apierrors.IsConflict(err), "%v", err)
	other := types.UID("other")
	err = shards.Delete(t.Context(), "one", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}})
	require.True(t, apierrors.IsConflict(err), "%v", err)
	require.NoError(t, shards.Delete(t.Context(), "one", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}))
	requireList(t, cache.f.Shard("*"), "*", "amber|root|one", "amber|root|two")

	foreground := metav1.DeletePropagationForeground
	require.NoError(t, shards.Delete(t.Context(), "one", metav1.DeleteOptions{PropagationPolicy: &foreground}))
	requireList(t, cache.f.Shard("*"), "*", "amber|root|two")
	err = shards.Delete(t.Context(), "one", metav1.DeleteOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)

	create(t, shards, asReplica("three"))
	require.NoError(t, shards.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	requireList(t, cache.f.Shard("*"), "*")
}

func testMalformedReplicas(t *testing.T, cache *cacheServer) {
	t.Helper()
	master := httpClient(t, cache.pki.master(t, cache.url))
	url := cache.url + "/services/cache/shards/amber/clusters/root/apis/core.kcp.io/v1alpha1/shards"
	const annotated = `"annotations":{"kcp.io/shard":"amber"}`
	for body, want := range map[string]int{
		`{"apiVersion":"core.kcp.io/v1alpha1","kind":"Shard","metadata":{"name":"x",` + annotated + `}`:                  http.StatusBadRequest,
		`{"apiVersion":"core.kcp.io/v1alpha1","kind":"Other","metadata":{"name":"x",` + annotated + `}}`:                 http.StatusBadRequest,
		`{"apiVersion":"core.kcp.io/v9","kind":"Shard","metadata":{"name":"x",` + annotated + `}}`:                       http.StatusBadRequest,
		`{"kind":"Shard","metadata":{"name":"x",` + annotated + `}}`:                                                     http.StatusBadRequest,
		`{"apiVersion":"core.kcp.io/v1alpha1","kind":"Shard","metadata":{` + annotated + `}}`:                            http.StatusUnprocessableEntity,
		`{"apiVersion":"core.kcp.io/v1alpha1","kind":"Shard","metadata":{"name":"a/b",` + annotated + `}}`:               http.StatusUnprocessableEntity,
		`{"apiVersion":"core.kcp.io/v1alpha1","kind":"Shard","metadata":{"name":"x","generation":-1,` + annotated + `}}`: http.StatusUnprocessableEntity,
		`{"apiVersion":"core.kcp.io/v1alpha1","kind":"Shard","metadata":{"name":"x","labels":7,` + annotated + `}}`:      http.StatusBadRequest,
	} {
		status, response := do(t, master, http.MethodPost, url, body)
		require.Equal(t, want, status, "%s: %s", body, response)
	}
	requireList(t, cache.f.Shard("*"), "*")
}
