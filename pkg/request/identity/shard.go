package identity

import (
	"context"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/request"
)

// ShardOf returns the name of the shard that a user is, and whether it is one. A member of the
// group whose name is no shard's reads as they do, and has nothing of its own: its name is empty.
func ShardOf(ctx context.Context, u user.Info) (name string, ok bool) {
	if !MemberOf(ctx, u, request.GroupShards) {
		return "", false
	}
	name, _ = strings.CutPrefix(u.GetName(), request.ShardUserPrefix)
	if name == u.GetName() || !request.ValidName(name) {
		return "", true
	}
	return name, true
}
