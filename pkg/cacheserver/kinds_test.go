package cacheserver_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	systemconfig "github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/replication"
)

var workspacesGVR = schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}

// TestCacheServerAddsKinds checks that an added resource is served and replicated until it is removed.
func TestCacheServerAddsKinds(t *testing.T) {
	t.Parallel()
	cache := newCacheServer(t)
	amber := newTestShard(t, "amber")
	workspaces := in(t, amber.f, "root", workspacesGVR)
	replicas := in(t, cache.f.Shard("*"), "*", workspacesGVR)
	create(t, workspaces, object(workspacesGVR, "Workspace", "early", nil))
	config, _ := replicate(t, amber, cache)
	requireReplicas(t, cache, nil, config)
	_, err := replicas.List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)

	// The shard may be first: it waits.
	require.NoError(t, config.Table.Add(replication.Resource{GroupVersionResource: workspacesGVR}))
	all, err := systemconfig.SystemCRDs()
	require.NoError(t, err)
	at := slices.IndexFunc(all, func(crd *apiextensionsv1.CustomResourceDefinition) bool { return crd.Spec.Names.Kind == "Workspace" })
	remove, err := cache.server.AddKind(all[at])
	require.NoError(t, err)
	var list *unstructured.UnstructuredList
	eventually(t, "the replica", func() bool {
		list, err = replicas.List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.Equal(names(list), []string{"amber|root|early"})
	})
	requireTrue(t, config)
	watch, err := replicas.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	require.NoError(t, err)
	defer watch.Stop()
	create(t, workspaces, object(workspacesGVR, "Workspace", "late", nil))
	require.Equal(t, "ADDED", string((<-watch.ResultChan()).Type))

	require.NoError(t, config.Table.Remove(t.Context(), workspacesGVR.GroupResource()))
	require.Equal(t, "DELETED", string((<-watch.ResultChan()).Type))
	require.Equal(t, "DELETED", string((<-watch.ResultChan()).Type))
	remove()
	for range watch.ResultChan() {
		t.Error("received an event of a resource that is no longer served")
	}
	_, err = replicas.List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}
