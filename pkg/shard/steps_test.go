package shard

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestLateServers checks that a component cannot use the servers of objects before they are registered.
func TestLateServers(t *testing.T) {
	late := &lateServers{}
	require.PanicsWithValue(t, "shard: a component used the servers of objects before New had registered them", func() {
		late.builtIn(t.Context(), schema.GroupResource{})
	})
	servers := &objectServers{}
	late.servers = servers
	require.Same(t, servers, late.get())
}
