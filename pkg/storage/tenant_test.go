package storage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/request"
)

func TestSameNameInSeveralClusters(t *testing.T) {
	s := open(t, backendOf(t, BackendConfig{}), podsGR)
	for _, cluster := range []string{"aa", "bb", "system:admin"} {
		create(in(t.Context(), cluster), t, s, newPod("ns", "same"))
	}
	got := list(in(t.Context(), "bb"), t, s, "/pods", listOpts())
	require.Equal(t, []string{"bb|ns/same"}, names(got.Items...))
	all := list(request.WithWildcard(t.Context()), t, s, "/pods", listOpts())
	require.Equal(t, []string{"aa|ns/same", "bb|ns/same", "system:admin|ns/same"}, names(all.Items...))
}
