package identity_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

func TestShardOf(t *testing.T) {
	for _, tc := range []struct {
		user, group, want string
		is                bool
	}{
		{"system:shard:one", request.GroupShards, "one", true},
		{"system:shard:", request.GroupShards, "", true},
		{"system:shard:a:b", request.GroupShards, "", true},
		{"one", request.GroupShards, "", true},
		{"system:shard:one", "system:masters", "", false},
	} {
		name, is := identity.ShardOf(t.Context(), &user.DefaultInfo{Name: tc.user, Groups: []string{tc.group}})
		require.Equal(t, tc.want, name, tc.user)
		require.Equal(t, tc.is, is, tc.user)
	}
}
