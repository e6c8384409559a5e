package shard

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers"
)

// TestCurrent: nobody is told for good that he may not bind, as long as the exports or the rules of other shards
// have not been read. These are read apart from each other.
func TestCurrent(t *testing.T) {
	clients, err := client.NewFactory(&rest.Config{Host: "https://nowhere.invalid"})
	require.NoError(t, err)
	all := clients.Wildcard()
	for _, tc := range []struct {
		name                     string
		exports, roles, bindings bool
	}{
		{"nothing", false, false, false},
		{"no exports", false, true, true},
		{"no cluster roles", true, false, true},
		{"no bindings of these", true, true, false},
		{"all", true, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &Server{informers: &controllers.Informers{APIExports: viewOf(t, kinds.APIExports, all, tc.exports)}}
			s.informers.RBAC.ClusterRoles = viewOf(t, kinds.ClusterRoles, all, tc.roles)
			s.informers.RBAC.ClusterRoleBindings = viewOf(t, kinds.ClusterRoleBindings, all, tc.bindings)
			if err := s.apiKinds().Current(); tc.exports && tc.roles && tc.bindings {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, client.ErrIncomplete)
			}
		})
	}
}

// viewOf returns one of which the own side has been read, and that of others, unless there are none, has not.
func viewOf[T client.Object, L runtime.Object](t *testing.T, resource client.Resource[T, L], scope client.Scope, complete bool) *client.Dual[T] {
	t.Helper()
	own := resource.Informer(scope, client.InformerOptions[T]{})
	require.NoError(t, own.Restore(nil))
	if complete {
		return client.NewDual(own, nil, client.DualOptions{})
	}
	return client.NewDual(own, resource.Informer(scope, client.InformerOptions[T]{}), client.DualOptions{})
}
