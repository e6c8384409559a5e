package controllers_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/test/harness"
)

const eventually = 60 * time.Second

// two is the cluster of all tests. The tests run sequentially, because some stop shards, and use separate workspaces.
var two = harness.Shared{Options: harness.Options{Shards: 2, Without: []string{"front-proxy"}}}

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// env is a running cluster with the credentials of a shard administrator.
type env struct {
	*harness.Cluster
	shards []*client.Factory
}

func start(t *testing.T) *env {
	t.Helper()
	e := &env{Cluster: two.Get(t)}
	for n := range two.Options.Shards {
		e.shards = append(e.shards, harness.NewFactory(t, e.Shard(n)))
	}
	return e
}

func (e *env) at(shard int, cluster string) client.Scope {
	return e.shards[shard].Cluster(logicalcluster.NewPath(cluster))
}

func await(t *testing.T, what string, check func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventually)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			require.FailNow(t, "timed out waiting for "+what, err.Error())
		case <-ticker.C:
		}
	}
}

type notYetError string

func (n notYetError) Error() string { return string(n) }

func awaitReady(t *testing.T, scope client.Scope, name string) *tenancyv1alpha1.Workspace {
	t.Helper()
	var ws *tenancyv1alpha1.Workspace
	await(t, "workspace "+name+" to be Ready", func(ctx context.Context) error {
		var err error
		ws, err = kinds.Workspaces.In(scope).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if ws.Status.Phase != corev1alpha1.LogicalClusterPhaseReady || ws.Labels[tenancyv1alpha1.WorkspacePhaseLabel] != "Ready" {
			return notYetError("phase " + string(ws.Status.Phase) + ", conditions " + conditionsOf(ws))
		}
		return nil
	})
	return ws
}

func conditionsOf(ws *tenancyv1alpha1.Workspace) string {
	text := ""
	for _, c := range ws.Status.Conditions {
		text += string(c.Type) + "=" + string(c.Status) + " " + c.Reason + " " + c.Message + "; "
	}
	return text
}

func create(t *testing.T, scope client.Scope, ws *tenancyv1alpha1.Workspace) *tenancyv1alpha1.Workspace {
	t.Helper()
	var created *tenancyv1alpha1.Workspace
	await(t, "creating workspace "+ws.Name, func(ctx context.Context) error {
		var err error
		created, err = kinds.Workspaces.In(scope).Create(ctx, ws, metav1.CreateOptions{})
		return err
	})
	return created
}

func named(name string) *tenancyv1alpha1.Workspace {
	return &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func on(shard string, ws *tenancyv1alpha1.Workspace) *tenancyv1alpha1.Workspace {
	ws.Spec.Location = &tenancyv1alpha1.WorkspaceLocation{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": shard}}}
	return ws
}

func awaitDeleted(t *testing.T, scope client.Scope, name string) {
	t.Helper()
	await(t, "workspace "+name+" to be deleted", func(ctx context.Context) error {
		ws, err := kinds.Workspaces.In(scope).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return notYetError("phase " + string(ws.Status.Phase) + ", conditions " + conditionsOf(ws))
	})
}

func TestRootBootstrapsAndShardsRegister(t *testing.T) {
	e := start(t)
	root := e.at(0, "root")
	for _, cluster := range []client.Scope{root, e.at(0, "system:admin"), e.at(1, "system:admin")} {
		await(t, cluster.String()+" to be Ready", func(ctx context.Context) error {
			lc, err := kinds.LogicalClusters.In(cluster).Get(ctx, corev1alpha1.LogicalClusterName, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if lc.Labels[tenancyv1alpha1.WorkspacePhaseLabel] != "Ready" {
				return notYetError(lc.Status.Phase)
			}
			_, err = kinds.Namespaces.In(cluster).Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
			return err
		})
	}
	var versions map[string]string
	snapshot := func(ctx context.Context) error {
		versions = map[string]string{}
		list, err := kinds.WorkspaceTypes.In(root).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			versions[list.Items[i].Name] = list.Items[i].ResourceVersion
			if len(list.Items[i].Status.VirtualWorkspaces) < 2*two.Options.Shards {
				return notYetError("type " + list.Items[i].Name + " does not have its virtual workspaces on each shard")
			}
		}
		shards, err := kinds.Shards.In(root).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range shards.Items {
			require.Equal(t, shards.Items[i].Name, shards.Items[i].Labels["name"])
			// Heartbeats do not change the generation.
			versions["shard/"+shards.Items[i].Name] = strconv.FormatInt(shards.Items[i].Generation, 10)
		}
		lc, err := kinds.LogicalClusters.In(root).Get(ctx, corev1alpha1.LogicalClusterName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		require.Equal(t, "root", lc.Annotations[core.LogicalClusterPathAnnotationKey])
		if lc.Annotations[tenancy.SystemBindingsAnnotation] != tenancy.SystemBound {
			return notYetError("root has not bound its exports yet")
		}
		if lc.Labels[tenancyv1alpha1.WorkspacePhaseLabel] != "Ready" || len(strings.Split(lc.Annotations[core.ReplicateAnnotationKey], ",")) != 2 {
			return notYetError("root has no phase label yet, or is not replicated for both its exports and its types")
		}
		versions["cluster"] = lc.ResourceVersion
		if len(versions) != 5+2+1 {
			return notYetError("types or shards are missing")
		}
		return nil
	}
	await(t, "types and shards", snapshot)
	before := versions

	for _, component := range []string{"root", "shard-1"} {
		e.Component(component).Restart()
	}
	ws := awaitReady(t, root, create(t, root, named("after-restart")).Name)
	require.Equal(t, "organization", string(ws.Spec.Type.Name))
	await(t, "types and shards after the restart", snapshot)
	require.Equal(t, before, versions, "a restart must not change types, shards and root")

	// Edits of fields that the shard owns are reverted, others are retained.
	_, err := kinds.Shards.In(root).Patch(t.Context(), "shard-1", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"name":"wrong","region":"eu"}},"spec":{"baseURL":"https://wrong:1"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	await(t, "edits of the shard to be reverted", func(ctx context.Context) error {
		shard, err := kinds.Shards.In(root).Get(ctx, "shard-1", metav1.GetOptions{})
		if err == nil && (shard.Labels["name"] != "shard-1" || shard.Labels["region"] != "eu" || shard.Spec.BaseURL != e.shards[1].Host()) {
			err = notYetError(shard.Spec.BaseURL)
		}
		return err
	})
	require.NoError(t, kinds.Shards.In(root).Delete(t.Context(), "shard-1", metav1.DeleteOptions{}))
	e.Component("shard-1").Stop()
	_, err = kinds.Shards.In(root).Get(t.Context(), "shard-1", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "a running shard must not register again: %v", err)
	e.Component("shard-1").Start()
	await(t, "the shard to register again", func(ctx context.Context) error {
		_, err := kinds.Shards.In(root).Get(ctx, "shard-1", metav1.GetOptions{})
		return err
	})
	// The Shard of the root shard is recreated.
	require.NoError(t, kinds.Shards.In(root).Delete(t.Context(), corev1alpha1.RootShard, metav1.DeleteOptions{}))
	await(t, "the root shard to register again", func(ctx context.Context) error {
		_, err := kinds.Shards.In(root).Get(ctx, corev1alpha1.RootShard, metav1.GetOptions{})
		return err
	})
}
