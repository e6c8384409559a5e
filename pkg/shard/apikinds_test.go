package shard

import (
	"net/http"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

// known is the state of the replicas of other shards.
type known int

const (
	nothing known = iota // not loaded
	saved                // restored from an empty snapshot
	all                  // there are none
)

// TestCurrent checks that binding is not denied permanently until the exports and the rules of other shards are loaded,
// each of which is replicated independently.
func TestCurrent(t *testing.T) {
	for _, tc := range []struct {
		name                     string
		exports, roles, bindings known
	}{
		{"nothing", nothing, nothing, nothing},
		{"no exports", nothing, all, all},
		{"no cluster roles", all, nothing, all},
		{"no cluster role bindings", all, all, nothing},
		{"exports from a snapshot", saved, all, all},
		{"cluster roles from a snapshot", all, saved, all},
		{"cluster role bindings from a snapshot", all, all, saved},
		{"all", all, all, all},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &installation{informers: &controllers.Informers{APIExports: dualOf(t, kinds.APIExports, tc.exports, replicas.DualOptions{})}, local: &local{}}
			s.informers.RBAC.ClusterRoles = dualOf(t, kinds.ClusterRoles, tc.roles, replicas.DualOptions{})
			s.informers.RBAC.ClusterRoleBindings = dualOf(t, kinds.ClusterRoleBindings, tc.bindings, replicas.DualOptions{})
			if err := s.apiKinds().Current(); tc.exports == all && tc.roles == all && tc.bindings == all {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, client.ErrIncomplete)
			}
		})
	}
}

// TestUnknownGrantors checks that paths of virtual workspaces are only reported as not existing if the exports and types
// of other shards are loaded.
func TestUnknownGrantors(t *testing.T) {
	for _, of := range []known{nothing, all} {
		s := &installation{informers: &controllers.Informers{
			LogicalClusters: kinds.LogicalClusters.Informer(nowhere(t).Wildcard(), client.InformerOptions[*corev1alpha1.LogicalCluster]{Indexers: map[string]client.IndexFunc[*corev1alpha1.LogicalCluster]{tenancy.PathIndex: nil}}),
			APIExports:      dualOf(t, kinds.APIExports, of, replicas.DualOptions{}),
			WorkspaceTypes:  dualOf(t, kinds.WorkspaceTypes, of, replicas.DualOptions{}),
		}, local: &local{index: workspaceindex.NewWorkspaceIndex()}}
		for _, mount := range []*request.Mount{request.APIExports, request.InitializingWorkspaces, request.TerminatingWorkspaces} {
			name, err := s.grantingCluster(logicalcluster.NewPath("root:provider"), mount, "object")
			require.Empty(t, name)
			_, later := apierrors.SuggestsClientDelay(err)
			require.Equal(t, of == nothing, later, "%s: %v", mount.Prefix, err)
			require.Equal(t, of == nothing, err != nil, mount.Prefix)
		}
	}
}

// TestReady checks that external requests get 503 until the bindings are loaded, because consumers are unknown before.
func TestReady(t *testing.T) {
	l := &local{
		logicalClusters: dualOf(t, kinds.LogicalClusters, all, replicas.DualOptions{}).Own(),
		workspaces:      dualOf(t, kinds.Workspaces, all, replicas.DualOptions{}).Own(),
	}
	require.ErrorIs(t, l.ready(func() bool { return false })(&http.Request{}), errNotSynced)
	require.NoError(t, l.ready(func() bool { return true })(&http.Request{}))
}

// TestSavedExports checks that an export which is missing in the snapshot may exist, with a policy, except on this
// shard.
func TestSavedExports(t *testing.T) {
	for of, want := range map[known]error{nothing: client.ErrIncomplete, saved: client.ErrIncomplete, all: nil} {
		s := &installation{informers: &controllers.Informers{APIExports: dualOf(t, kinds.APIExports, of, replicas.DualOptions{
			Owns: func(cluster logicalcluster.Name) bool { return cluster == "here" },
		})}}
		s.sources.Local = nowhere(t)
		index, err := s.newBindings(&lateServers{})
		require.NoError(t, err)
		_, err = index.Export(t.Context(), client.Key{Cluster: "other", Name: "e"})
		require.ErrorIs(t, err, want)
		_, err = index.Export(t.Context(), client.Key{Cluster: "here", Name: "e"})
		require.NoError(t, err)
		decision, _, err := index.PermitsClaim(t.Context(), nil, "other", "h", authorizer.AttributesRecord{})
		require.ErrorIs(t, err, want)
		require.Equal(t, authorizer.DecisionNoOpinion, decision)
	}
}

// nowhere returns clients of a server that does not exist.
func nowhere(t *testing.T) *client.Factory {
	t.Helper()
	return clientsOf(t, &rest.Config{Host: "https://nowhere.invalid"})
}

func clientsOf(t *testing.T, config *rest.Config) *client.Factory {
	t.Helper()
	clients, err := client.NewFactory(config)
	require.NoError(t, err)
	t.Cleanup(clients.CloseIdleConnections)
	return clients
}

// dualOf returns one of which the own side has been read.
func dualOf[T client.Object, L runtime.Object](t *testing.T, resource client.Resource[T, L], of known, options replicas.DualOptions) *replicas.Dual[T] {
	t.Helper()
	scope := nowhere(t).Wildcard()
	indexes := client.InformerOptions[T]{Indexers: map[string]client.IndexFunc[T]{apis.IdentityIndex: func(T) []string { return nil }}}
	own := resource.Informer(scope, indexes)
	require.NoError(t, own.Restore(nil))
	if of == all {
		return replicas.NewDual(own, nil, options)
	}
	others := resource.Informer(scope, indexes)
	dual := replicas.NewDual(own, others, options)
	if of == saved {
		require.NoError(t, others.Restore(nil))
	}
	return dual
}
