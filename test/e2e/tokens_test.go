package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/shardplane/shardplane/test/harness"
)

// TestContinueTokens takes one page of a list and goes on after a restart, which
// changes nothing, and after the compaction of its resource version, which
// offers a token that goes on with what is there now.
func TestContinueTokens(t *testing.T) {
	c := harness.Start(t, harness.Options{
		Mode: harness.Processes, Without: []string{"cache-server", "front-proxy"},
		ExtraArgs: map[string][]string{"shard": {"--etcd-compaction-interval=1s"}},
	})
	client, err := dynamic.NewForConfig(harness.In(c.Shard(0), "root"))
	require.NoError(t, err)
	resources := map[string]dynamic.ResourceInterface{
		"ConfigMap":     client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("default"),
		"WorkspaceType": client.Resource(schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspacetypes"}),
	}
	versions := map[string]string{"ConfigMap": "v1", "WorkspaceType": "tenancy.kcp.io/v1alpha1"}
	create := func(kind, name string) {
		_, err := resources[kind].Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": versions[kind], "kind": kind, "metadata": map[string]any{"name": name},
		}}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	for kind := range resources {
		for n := range 9 {
			create(kind, fmt.Sprintf("page-%d", n))
		}
	}

	require.Eventually(t, func() bool { // which a controller makes
		_, err := resources["ConfigMap"].Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		return err == nil
	}, testTimeout, 10*time.Millisecond)
	first, rest := map[string]*unstructured.UnstructuredList{}, map[string]int{}
	for kind, in := range resources {
		whole, err := in.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		first[kind], err = in.List(t.Context(), metav1.ListOptions{Limit: 4})
		require.NoError(t, err)
		rest[kind] = len(whole.Items) - 4
	}
	c.Component("root").Restart()
	for kind, in := range resources {
		page, err := in.List(t.Context(), metav1.ListOptions{Limit: 100, Continue: first[kind].GetContinue()})
		if !apierrors.IsResourceExpired(err) { // unless the restart took as long as two compactions
			require.NoError(t, err)
			require.Equal(t, first[kind].GetResourceVersion(), page.GetResourceVersion())
			require.Len(t, page.Items, rest[kind])
		}
		create(kind, "zzz-later")
	}
	for kind, in := range resources {
		var expired error
		require.Eventually(t, func() bool {
			_, expired = in.List(t.Context(), metav1.ListOptions{Limit: 100, Continue: first[kind].GetContinue()})
			return expired != nil
		}, testTimeout, 50*time.Millisecond, "the token expires")
		require.True(t, apierrors.IsResourceExpired(expired), "%v", expired)
		var status apierrors.APIStatus
		require.ErrorAs(t, expired, &status)
		token := status.Status().ListMeta.Continue
		require.NotEmpty(t, token, "the answer offers a token to go on with")
		page, err := in.List(t.Context(), metav1.ListOptions{Limit: 100, Continue: token})
		require.NoError(t, err)
		require.NotEqual(t, first[kind].GetResourceVersion(), page.GetResourceVersion())
		require.Len(t, page.Items, rest[kind]+1, "the rest as it is now")
		_, err = in.List(t.Context(), metav1.ListOptions{Limit: 100, Continue: token + "x"})
		require.True(t, apierrors.IsBadRequest(err), "%v", err)
	}
}
