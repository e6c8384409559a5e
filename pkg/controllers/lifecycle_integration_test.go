package controllers_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
)

func awaitCondition(t *testing.T, scope client.Scope, name string, kind string, reason, text string) *tenancyv1alpha1.Workspace {
	t.Helper()
	var ws *tenancyv1alpha1.Workspace
	await(t, kind+" of workspace "+name+" to be "+reason, func(ctx context.Context) error {
		var err error
		if ws, err = kinds.Workspaces.In(scope).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		for _, c := range ws.Status.Conditions {
			if string(c.Type) == kind && c.Reason == reason && strings.Contains(c.Message, text) {
				return nil
			}
		}
		return notYetError(conditionsOf(ws))
	})
	return ws
}

func patch[T client.Object](t *testing.T, c interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error)
}, name, data string, subresources ...string) {
	t.Helper()
	await(t, "patching "+name, func(ctx context.Context) error {
		_, err := c.Patch(ctx, name, types.MergePatchType, []byte(data), metav1.PatchOptions{}, subresources...)
		return err
	})
}

func widgets() *apiextensionsv1.CustomResourceDefinition {
	preserve := true
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &preserve}},
			}},
		},
	}
}

var widgetsResource = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// TestSchedulingWaitsForDependencies: changes of shards and types are noticed. See TestChooseShard and TestPlugin for the decisions.
func TestSchedulingWaitsForDependencies(t *testing.T) {
	e := start(t)
	root := e.at(0, "root")
	special := &tenancyv1alpha1.WorkspaceType{ObjectMeta: metav1.ObjectMeta{Name: "special"}}
	workspaceTypes := kinds.WorkspaceTypes.In(root)
	harness.Create(t, workspaceTypes, special)
	ws := named("typed")
	ws.Spec.Type = &tenancyv1alpha1.WorkspaceTypeReference{Name: "special", Path: "root"}
	ws.Spec.Location = &tenancyv1alpha1.WorkspaceLocation{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"region": "far"}}}
	create(t, root, ws)
	awaitCondition(t, root, "typed", string(tenancyv1alpha1.WorkspaceScheduled), "Unschedulable", "none matches spec.location.selector")
	require.NoError(t, workspaceTypes.Delete(t.Context(), "special", metav1.DeleteOptions{}))
	// Types and shards have separate watches: the shard must become eligible after the deletion of the type was observed.
	await(t, "the deletion of the type", func(ctx context.Context) error {
		late := ws.DeepCopy()
		late.Name = "too-late"
		_, err := kinds.Workspaces.In(root).Create(ctx, late, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsForbidden(err) {
			return notYetError(fmt.Sprintf("creating a workspace of the type: %v", err))
		}
		return nil
	})
	patch(t, kinds.Shards.In(root), "shard-1", `{"metadata":{"labels":{"region":"far"}}}`)
	awaitCondition(t, root, "typed", string(tenancyv1alpha1.WorkspaceScheduled), "WorkspaceTypeInvalid", "workspace type root:special does not exist")
	harness.Create(t, workspaceTypes, special)
	t.Cleanup(func() {
		require.NoError(t, workspaceTypes.Delete(context.WithoutCancel(t.Context()), "special", metav1.DeleteOptions{}))
	})
	require.Equal(t, "shard-1", awaitReady(t, root, "typed").Annotations[corev1alpha1.LogicalClusterShardAnnotationKey])
}
