package identity

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
)

// virtualWorkspaceUser is the identity in warrants of requests through a virtual workspace.
const virtualWorkspaceUser = "system:kcp:virtual-workspace"

// Through returns u for requests to a logical cluster through a virtual workspace, which has already authorized
// them. The warrant is for additional checks of the user's permissions, e.g. for privilege escalation.
func Through(cluster logicalcluster.Name, u user.Info) user.Info {
	text, err := json.Marshal(warrant{
		User: virtualWorkspaceUser, Groups: []string{request.GroupAdmin},
		Extra: map[string]values{request.ExtraScopes: {request.ScopeClusterPrefix + cluster.String()}},
	})
	if err != nil {
		return u // strings can always be encoded
	}
	return withExtra(u, func(extra map[string][]string) {
		extra[request.ExtraWarrant] = append(slices.Clone(extra[request.ExtraWarrant]), string(text))
	})
}

func withExtra(u user.Info, change func(extra map[string][]string)) user.Info {
	extra := maps.Clone(u.GetExtra())
	if extra == nil {
		extra = map[string][]string{}
	}
	change(extra)
	return &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra}
}

// Within returns u restricted to a logical cluster, like an impersonated user. It must be used to act as a stored
// user, e.g. the owner of a workspace, because the name of a user does not prove its identity in other logical
// clusters. Warrants are removed, because scopes do not apply to them.
func Within(cluster logicalcluster.Name, u user.Info) user.Info {
	return withExtra(u, func(extra map[string][]string) {
		delete(extra, request.ExtraWarrant)
		extra[request.ExtraScopes] = append(slices.Clone(extra[request.ExtraScopes]), request.ScopeClusterPrefix+cluster.String())
	})
}

type senderKey struct{}

// WithSender returns a context for a request through a virtual workspace that records the original user of ctx.
func WithSender(ctx context.Context) context.Context {
	if u, ok := apirequest.UserFrom(ctx); ok {
		return context.WithValue(ctx, senderKey{}, u)
	}
	return ctx
}

// SenderFrom returns the original user of a request through a virtual workspace, if known.
func SenderFrom(ctx context.Context) (user.Info, bool) {
	u, ok := ctx.Value(senderKey{}).(user.Info)
	return u, ok
}

// WithoutWarrant returns u without the warrant of a virtual workspace.
func WithoutWarrant(u user.Info) user.Info {
	isVirtualWorkspace := func(text string) bool {
		w, ok := parseWarrant(text)
		return ok && w.GetName() == virtualWorkspaceUser
	}
	warrants := u.GetExtra()[request.ExtraWarrant]
	if !slices.ContainsFunc(warrants, isVirtualWorkspace) {
		return u
	}
	return withExtra(u, func(extra map[string][]string) {
		extra[request.ExtraWarrant] = slices.DeleteFunc(slices.Clone(warrants), isVirtualWorkspace)
	})
}
