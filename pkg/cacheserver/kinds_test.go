package cacheserver_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	systemconfig "github.com/shardplane/shardplane/config"
	"github.com/shardplane/shardplane/pkg/controllers/replication"
)

var workspacesGVR = schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}

// TestKindsComeAndGo holds that a kind is replicated as soon as the table has it,
// with the objects that there are, and that removing it takes away the replicas of
// this shard, and no others.
func TestKindsComeAndGo(t *testing.T) {
	cache := newCacheServer(t)
	amber := newTestShard(t, "amber")
	types := in(t, amber.f, "root", workspaceTypesGVR)
	replicas := in(t, cache.f.Shard("*"), "*", workspaceTypesGVR)
	have := func(want ...string) {
		t.Helper()
		slices.Sort(want)
		eventually(t, "replicas "+fmt.Sprint(want), func() bool {
			list, err := replicas.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return false
			}
			got := names(list)
			slices.Sort(got)
			return slices.Equal(want, got)
		})
	}
	create(t, types, object(workspaceTypesGVR, "WorkspaceType", "early", nil))
	create(t, in(t, amber.f, "root", shardsGVR), object(shardsGVR, "Shard", "one", nil))
	blue := create(t, in(t, cache.f.Shard("blue"), "root", workspaceTypesGVR), object(workspaceTypesGVR, "WorkspaceType", "others", nil))

	table := tableOf(t, replication.Resource{GroupVersionResource: shardsGVR})
	config := replicationConfig(t, amber, cache)
	config.Table = table
	controller, err := replication.New(config)
	require.NoError(t, err)
	running := start(t, "", controller.Run)
	requireReplicas(t, cache, []string{"amber|root|one"}, config)
	have("blue|root|others")

	for range 2 { // what was removed can come back
		require.NoError(t, table.Add(replication.Resource{GroupVersionResource: workspaceTypesGVR}))
		have("blue|root|others", "amber|root|early")
		create(t, types, object(workspaceTypesGVR, "WorkspaceType", "late", nil))
		have("blue|root|others", "amber|root|early", "amber|root|late")
		eventually(t, "all kinds are said to have synced", controller.HasSynced)
		requireTrue(t, config)

		// A finalizer does not keep a replica, and an absent cache server delays it.
		held, err := in(t, cache.f.Shard("amber"), "root", workspaceTypesGVR).Get(t.Context(), "late", metav1.GetOptions{})
		require.NoError(t, err)
		held.SetFinalizers([]string{"example.io/held"})
		_, err = in(t, cache.f.Shard("amber"), "root", workspaceTypesGVR).Update(t.Context(), held, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) { // put right already
			require.NoError(t, err)
		}
		cache.stop()
		impatient, cancel := context.WithTimeout(t.Context(), time.Second/10)
		require.ErrorIs(t, table.Remove(impatient, workspaceTypesGVR.GroupResource()), context.DeadlineExceeded)
		cancel()
		cache.start(t)
		removing, cancel := contextWithDeadline(t)
		require.NoError(t, table.Remove(removing, workspaceTypesGVR.GroupResource()))
		cancel()
		have("blue|root|others")
		require.NoError(t, types.Delete(t.Context(), "late", metav1.DeleteOptions{}))
	}
	requireReplicas(t, cache, []string{"amber|root|one"}, config)
	others, err := in(t, cache.f.Shard("blue"), "root", workspaceTypesGVR).Get(t.Context(), "others", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, blue.GetUID(), others.GetUID())

	// Who comes to lead after another one finds the table as it is then.
	running.stop()
	require.NoError(t, table.Add(replication.Resource{GroupVersionResource: workspaceTypesGVR}))
	next, err := replication.New(config)
	require.NoError(t, err)
	start(t, "", next.Run)
	have("blue|root|others", "amber|root|early")
}

// TestCacheServerLearnsKinds holds that the cache server serves a kind from when it
// is added until it is removed, and that shards replicate it meanwhile.
func TestCacheServerLearnsKinds(t *testing.T) {
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

	removing, cancel := contextWithDeadline(t)
	defer cancel()
	require.NoError(t, config.Table.Remove(removing, workspacesGVR.GroupResource()))
	require.Equal(t, "DELETED", string((<-watch.ResultChan()).Type))
	require.Equal(t, "DELETED", string((<-watch.ResultChan()).Type))
	remove()
	for range watch.ResultChan() {
		t.Error("an event of a kind that is not served")
	}
	_, err = replicas.List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}
