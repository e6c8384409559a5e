package integration

import (
	"fmt"
	"strings"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// TestSubtreeLimits has workspaces on two shards with one limit together.
func TestSubtreeLimits(t *testing.T) {
	e := newEnv(t, two.Get(t))
	e.workspaceOn("root", "limited", "root")
	e.workspaceOn("root:limited", "far", "shard-1")
	e.workspaceOn("root:limited:far", "near", "root")
	e.workspaceOn("root", "limitless", "shard-1")
	limit := func(text string) {
		t.Helper()
		_, err := kinds.LogicalClusters.In(e.proxy.Cluster(path("root:limited"))).Patch(t.Context(), corev1alpha1.LogicalClusterName, mergePatch,
			[]byte(`{"metadata":{"annotations":{"core.shardplane.io/max-subtree-bytes":`+text+`}}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	create := func(workspace, name string) error {
		_, err := kinds.ConfigMaps.InNamespace(e.proxy.Cluster(path(workspace)), "default").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"text": strings.Repeat("x", 256<<10)}}, metav1.CreateOptions{})
		return err
	}
	refused := func(workspace string) {
		t.Helper()
		n := 0
		e.eventually(workspace+" is full", func() bool {
			n++
			err := create(workspace, fmt.Sprintf("more-%d", n))
			if err == nil {
				return false
			}
			require.True(t, apierrors.IsForbidden(err), "%v", err)
			require.ErrorContains(t, err, "the workspace root:limited and all below it store")
			require.ErrorContains(t, err, "may store 4194304 together")
			return true
		})
	}

	limit(`"4Mi"`)
	refused("root:limited:far")
	refused("root:limited:far:near") // on the other shard, which has to be told
	refused("root:limited")
	require.NoError(t, create("root:limitless", "one"))
	for _, workspace := range []string{"root:limited", "root:limited:far", "root:limited:far:near"} {
		err := kinds.ConfigMaps.InNamespace(e.proxy.Cluster(path(workspace)), "default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
		require.NoError(t, err)
	}
	e.eventually("there is room again, everywhere", func() bool { return create("root:limited", "late") == nil })
	limit(`"1"`)
	e.eventually("the limit is in force on the other shard", func() bool { return create("root:limited:far", "any") != nil })
	limit("null")
	e.eventually("there is no limit", func() bool { return create("root:limited:far", "last") == nil })
}
