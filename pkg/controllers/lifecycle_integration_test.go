package controllers_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// awaitCondition waits until a workspace's condition has a reason, and its
// message a text.
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

func TestDeletingAWorkspaceTakesEverythingAndTellsWhatKeepsIt(t *testing.T) {
	e := start(t)
	root := e.at(0, "root")
	create(t, root, on("shard-1", named("full")))
	ws := awaitReady(t, root, "full")
	inside := e.at(1, ws.Spec.Cluster)

	_, err := kinds.CustomResourceDefinitions.In(inside).Create(t.Context(), widgets(), metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = kinds.Namespaces.In(inside).Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "more"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	dynamic, err := inside.Dynamic()
	require.NoError(t, err)
	await(t, "a widget", func(ctx context.Context) error {
		_, err := dynamic.Resource(widgetsResource).Namespace("more").Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget",
			"metadata": map[string]any{"name": "w", "finalizers": []any{"example.com/keep"}},
		}}, metav1.CreateOptions{})
		return err
	})
	_, err = kinds.Secrets.InNamespace(inside, "default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	create(t, inside, on("root", named("child")))
	child := awaitReady(t, inside, "child")

	require.NoError(t, kinds.Workspaces.In(root).Delete(t.Context(), "full", metav1.DeleteOptions{}))
	awaitCondition(t, root, "full", string(tenancyv1alpha1.WorkspaceContentDeleted), "ContentRemaining", "example.com/keep in 1 objects")
	_, err = kinds.CustomResourceDefinitions.In(inside).Get(t.Context(), "widgets.example.com", metav1.GetOptions{})
	require.NoError(t, err, "the definition stays as long as there are widgets")
	_, err = kinds.LogicalClusters.In(e.at(0, child.Spec.Cluster)).Get(t.Context(), corev1alpha1.LogicalClusterName, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "the child went first: %v", err)

	// In the middle of it both shards start again.
	e.Component("shard-1").Restart()
	e.Component("root").Restart()
	await(t, "the finalizer to be removed", func(ctx context.Context) error {
		_, err := dynamic.Resource(widgetsResource).Namespace("more").Patch(ctx, "w", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		return err
	})
	gone(t, root, "full")
	for name, list := range map[string]func() (int, error){
		"namespaces": func() (int, error) {
			l, err := kinds.Namespaces.In(inside).List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
		"secrets": func() (int, error) {
			l, err := kinds.Secrets.In(inside).List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
		"definitions": func() (int, error) {
			l, err := kinds.CustomResourceDefinitions.In(inside).List(t.Context(), metav1.ListOptions{})
			return len(l.Items), err
		},
	} {
		n, err := list()
		require.NoError(t, err)
		require.Zero(t, n, name)
	}
	lateCreate(t, e)
}

// lateCreate has the create of a logical cluster arrive on each shard after its
// Workspace has gone: the shard of the Workspace sees it, and that there is none.
func lateCreate(t *testing.T, e *env) {
	t.Helper()
	late := &corev1alpha1.LogicalCluster{
		ObjectMeta: metav1.ObjectMeta{
			Name:        corev1alpha1.LogicalClusterName,
			Finalizers:  []string{"core.kcp.io/logicalcluster-deletion"},
			Labels:      map[string]string{"internal.shardplane.io/owner-shard": "root"},
			Annotations: map[string]string{"kcp.io/path": "root:late", tenancyv1alpha1.ExperimentalWorkspaceOwnerAnnotationKey: `{"username":"somebody"}`},
		},
		Spec: corev1alpha1.LogicalClusterSpec{Owner: &corev1alpha1.LogicalClusterOwner{
			APIVersion: tenancyv1alpha1.SchemeGroupVersion.String(), Resource: "workspaces", Name: "late", Cluster: "root", UID: "gone",
		}},
	}
	for shard := range e.shards {
		clusters := kinds.LogicalClusters.In(e.at(shard, "late"))
		_, err := clusters.Create(t.Context(), late, metav1.CreateOptions{})
		require.NoError(t, err)
		await(t, "the logical cluster without a workspace to be gone", func(ctx context.Context) error {
			found, err := clusters.Get(ctx, late.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			if err != nil {
				return err
			}
			return notYetError("phase " + string(found.Status.Phase))
		})
	}
}

func TestNamespacesAreEmptiedAndSayWhatKeepsThem(t *testing.T) {
	e := start(t)
	root := e.at(0, "root")
	create(t, root, on("root", named("w")))
	inside := e.at(0, awaitReady(t, root, "w").Spec.Cluster)
	_, err := kinds.Namespaces.In(inside).Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	for _, cm := range []*corev1.ConfigMap{
		{ObjectMeta: metav1.ObjectMeta{Name: "free"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "kept", Finalizers: []string{"example.com/keep"}}},
	} {
		_, err := kinds.ConfigMaps.InNamespace(inside, "n").Create(t.Context(), cm, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	require.NoError(t, kinds.Namespaces.In(inside).Delete(t.Context(), "n", metav1.DeleteOptions{}))
	await(t, "the namespace to tell", func(ctx context.Context) error {
		ns, err := kinds.Namespaces.In(inside).Get(ctx, "n", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range ns.Status.Conditions {
			if c.Type == corev1.NamespaceFinalizersRemaining && c.Status == corev1.ConditionTrue && strings.Contains(c.Message, "example.com/keep in 1 objects") {
				return nil
			}
		}
		return notYetError(ns.Status.String())
	})
	_, err = kinds.ConfigMaps.InNamespace(inside, "n").Get(t.Context(), "free", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
	patch(t, kinds.ConfigMaps.InNamespace(inside, "n"), "kept", `{"metadata":{"finalizers":null}}`)
	await(t, "the namespace to be gone", func(ctx context.Context) error {
		_, err := kinds.Namespaces.In(inside).Get(ctx, "n", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return notYetError("still there")
	})

	err = kinds.Namespaces.In(inside).Delete(t.Context(), "default", metav1.DeleteOptions{})
	require.True(t, apierrors.IsForbidden(err), "the default namespace stays: %v", err)
}

func TestAShardThatIsDownHoldsUpOnlyItsOwnWorkspaces(t *testing.T) {
	e := start(t)
	root := e.at(0, "root")
	create(t, root, on("shard-1", named("before")))
	awaitReady(t, root, "before")

	e.Component("shard-1").Stop()
	create(t, root, on("shard-1", named("during")))
	scheduled := awaitCondition(t, root, "during", string(tenancyv1alpha1.WorkspaceScheduled), "ShardUnreachable", "shard-1")
	require.NoError(t, kinds.Workspaces.In(root).Delete(t.Context(), "before", metav1.DeleteOptions{}))
	create(t, root, on("root", named("elsewhere")))
	awaitReady(t, root, "elsewhere")
	e.Component("root").Restart()

	e.Component("shard-1").Start()
	ws := awaitReady(t, root, "during")
	require.Equal(t, scheduled.Spec.Cluster, ws.Spec.Cluster)
	require.True(t, conditions.IsTrue(ws, tenancyv1alpha1.WorkspaceScheduled))
	gone(t, root, "before")
}

func TestSchedulingWaitsForWhatItNeeds(t *testing.T) {
	e := start(t)
	root := e.at(0, "root")
	region := named("far")
	region.Spec.Location = &tenancyv1alpha1.WorkspaceLocation{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"region": "far"}}}
	create(t, root, region)
	awaitCondition(t, root, "far", string(tenancyv1alpha1.WorkspaceScheduled), "Unschedulable", "none matches spec.location.selector")
	patch(t, kinds.Shards.In(root), "shard-1", `{"metadata":{"labels":{"region":"far"}}}`)
	require.Equal(t, 1, shardOf(t, awaitReady(t, root, "far")))

	patch(t, kinds.Shards.In(root), "shard-1", `{"metadata":{"annotations":{"experimental.core.kcp.io/unschedulable":"true"}}}`)
	refused := firstRefused(t, root, "shard-1")
	awaitCondition(t, root, refused, string(tenancyv1alpha1.WorkspaceScheduled), "Unschedulable", "shard-1 is unschedulable")
	patch(t, kinds.Shards.In(root), "shard-1", `{"metadata":{"annotations":{"experimental.core.kcp.io/unschedulable":null}}}`)
	awaitReady(t, root, refused)

	ws := typed("special", named("typed"))
	ws.Spec.Location = &tenancyv1alpha1.WorkspaceLocation{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"region": "later"}}}
	requireRefused(t, root, ws, "workspace type root:special does not exist")
	types := kinds.WorkspaceTypes.In(root)
	special := &tenancyv1alpha1.WorkspaceType{
		ObjectMeta: metav1.ObjectMeta{Name: "special"},
		Spec: tenancyv1alpha1.WorkspaceTypeSpec{
			Extend:      tenancyv1alpha1.WorkspaceTypeExtension{With: []tenancyv1alpha1.WorkspaceTypeReference{{Name: "universal", Path: "root"}}},
			Initializer: true, AdditionalWorkspaceLabels: map[string]string{"kind": "special"},
		},
	}
	_, err := types.Create(t.Context(), special, metav1.CreateOptions{})
	require.NoError(t, err)
	create(t, root, ws)
	awaitCondition(t, root, "typed", string(tenancyv1alpha1.WorkspaceScheduled), "Unschedulable", "none matches spec.location.selector")
	require.NoError(t, types.Delete(t.Context(), "special", metav1.DeleteOptions{}))
	// Separate watches tell of types and of shards: the shard is to fit once the type is known to be gone.
	await(t, "the end of the type", func(ctx context.Context) error {
		_, err := kinds.Workspaces.In(root).Create(ctx, typed("special", named("too-late")), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsForbidden(err) {
			return notYetError(fmt.Sprintf("a workspace of it was answered: %v", err))
		}
		return nil
	})
	patch(t, kinds.Shards.In(root), "shard-1", `{"metadata":{"labels":{"region":"later"}}}`)
	awaitCondition(t, root, "typed", string(tenancyv1alpha1.WorkspaceScheduled), "WorkspaceTypeInvalid", "workspace type root:special does not exist")
	_, err = types.Create(t.Context(), special, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, types.Delete(context.WithoutCancel(t.Context()), "special", metav1.DeleteOptions{}))
	})
	ws = awaitCondition(t, root, "typed", string(tenancyv1alpha1.WorkspaceInitialized), "InitializerExists", "root:special")
	require.Equal(t, corev1alpha1.LogicalClusterPhaseInitializing, ws.Status.Phase)
	require.Equal(t, "special", ws.Labels["kind"])
	inside := e.at(shardOf(t, ws), ws.Spec.Cluster)
	patch(t, kinds.LogicalClusters.In(inside), corev1alpha1.LogicalClusterName, `{"status":{"initializers":null}}`, "status")
	awaitReady(t, root, "typed")

	require.NoError(t, kinds.LogicalClusters.In(inside).Delete(t.Context(), corev1alpha1.LogicalClusterName, metav1.DeleteOptions{}))
	gone(t, root, "typed")

	requireRefused(t, root, typed("team", named("misplaced")), "root:team does not allow parents of type root:root")
}

// requireRefused has a workspace refused.
func requireRefused(t *testing.T, scope client.Scope, ws *tenancyv1alpha1.Workspace, text string) {
	t.Helper()
	_, err := kinds.Workspaces.In(scope).Create(t.Context(), ws, metav1.CreateOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, text)
}

// firstRefused creates workspaces on a shard that has just become unschedulable
// until one is not scheduled, and returns its name: the scheduler hears of the
// change by a watch, so it may still place workspaces there for a moment.
func firstRefused(t *testing.T, scope client.Scope, shard string) string {
	t.Helper()
	for n := 0; ; n++ {
		name := fmt.Sprintf("refused-%d", n)
		create(t, scope, on(shard, named(name)))
		var placed bool
		await(t, "a decision about workspace "+name, func(ctx context.Context) error {
			ws, err := kinds.Workspaces.In(scope).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if conditions.Get(ws, tenancyv1alpha1.WorkspaceScheduled) == nil {
				return notYetError("no condition yet")
			}
			placed = ws.Spec.Cluster != ""
			return nil
		})
		if !placed {
			return name
		}
		require.Less(t, n, 100, "shard %s still takes workspaces", shard)
	}
}

func TestAnInactiveWorkspaceCanBeDeleted(t *testing.T) {
	e := start(t)
	root := e.at(0, "root")
	create(t, root, on("root", named("off")))
	inside := e.at(0, awaitReady(t, root, "off").Spec.Cluster)
	_, err := kinds.ConfigMaps.InNamespace(inside, "default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	patch(t, kinds.LogicalClusters.In(inside), corev1alpha1.LogicalClusterName, `{"metadata":{"annotations":{"core.kcp.io/inactive":"true"}}}`)
	await(t, "the workspace to be inactive", func(ctx context.Context) error {
		ws, err := kinds.Workspaces.In(root).Get(ctx, "off", metav1.GetOptions{})
		if err == nil && ws.Status.Phase != corev1alpha1.LogicalClusterPhaseInactive {
			err = notYetError(ws.Status.Phase)
		}
		return err
	})
	require.NoError(t, kinds.Workspaces.In(root).Delete(t.Context(), "off", metav1.DeleteOptions{}))
	gone(t, root, "off")
	requireNothingLeft(t, e, 0)
}
