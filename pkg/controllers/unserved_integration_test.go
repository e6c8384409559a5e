package controllers_test

import (
	"context"
	"slices"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// TestDeletionOfUnservedObjects: objects without a definition are deleted with their workspace regardless of finalizers;
// others are retained.
func TestDeletionOfUnservedObjects(t *testing.T) {
	e := start(t)
	root := e.at(0, "root")
	scopes := map[string]client.Scope{}
	clusters := map[string]logicalcluster.Name{}
	for _, name := range []string{"torn", "whole"} {
		create(t, root, on("shard-1", named(name)))
		clusters[name] = logicalcluster.Name(awaitReady(t, root, name).Spec.Cluster)
		scopes[name] = e.at(1, clusters[name].String())
		_, err := kinds.CustomResourceDefinitions.In(scopes[name]).Create(t.Context(), widgets(), metav1.CreateOptions{})
		require.NoError(t, err)
		dynamic, err := scopes[name].Dynamic()
		require.NoError(t, err)
		await(t, "a widget", func(ctx context.Context) error {
			_, err := dynamic.Resource(widgetsResource).Namespace("default").Create(ctx, &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "example.com/v1", "kind": "Widget",
				"metadata": map[string]any{"name": "w", "finalizers": []any{"example.com/keep"}},
			}}, metav1.CreateOptions{})
			return err
		})
	}
	definitions := kinds.CustomResourceDefinitions.In(scopes["torn"])
	require.NoError(t, definitions.Delete(t.Context(), "widgets.example.com", metav1.DeleteOptions{}))
	patch(t, definitions, "widgets.example.com", `{"metadata":{"finalizers":null}}`)
	await(t, "the deletion of the definition", func(ctx context.Context) error {
		_, err := definitions.Get(ctx, "widgets.example.com", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return notYetError("the definition exists")
	})
	all, err := e.shards[1].Wildcard().Metadata()
	require.NoError(t, err)
	stored := func(ctx context.Context) []logicalcluster.Name {
		list, err := all.Resource(widgetsResource).List(ctx, metav1.ListOptions{})
		require.NoError(t, err)
		var of []logicalcluster.Name
		for i := range list.Items {
			of = append(of, logicalcluster.From(&list.Items[i]))
		}
		slices.Sort(of)
		return of
	}
	require.Contains(t, stored(t.Context()), clusters["torn"], "the unserved object must be stored")

	require.NoError(t, kinds.Workspaces.In(root).Delete(t.Context(), "torn", metav1.DeleteOptions{}))
	awaitDeleted(t, root, "torn")
	require.Equal(t, []logicalcluster.Name{clusters["whole"]}, stored(t.Context()))
}
