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

// viewer is whom a warrant names by which somebody acts through a view.
const viewer = "system:kcp:view"

// Through returns u as it acts in a logical cluster through a view. What it may do was
// decided by the view; there it has a warrant besides, for what is asked about users
// beyond that: whether they may give away rights that they do not have, say.
func Through(cluster logicalcluster.Name, u user.Info) user.Info {
	text, err := json.Marshal(warrant{
		User: viewer, Groups: []string{request.GroupAdmin},
		Extra: map[string]values{request.ExtraScopes: {request.ScopeClusterPrefix + cluster.String()}},
	})
	if err != nil {
		return u // texts can be encoded
	}
	extra := maps.Clone(u.GetExtra())
	if extra == nil {
		extra = map[string][]string{}
	}
	extra[request.ExtraWarrant] = append(slices.Clone(extra[request.ExtraWarrant]), string(text))
	return &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra}
}

// Within returns u restricted to a logical cluster, as impersonated users are. Code that acts as
// a stored user must use it, e.g. as the owner of a workspace, because nobody of that name has
// sent the request: elsewhere u would lend its permissions to whoever has. Warrants are
// dropped, because they are not subject to the scopes of their holder.
func Within(cluster logicalcluster.Name, u user.Info) user.Info {
	extra := maps.Clone(u.GetExtra())
	if extra == nil {
		extra = map[string][]string{}
	}
	delete(extra, request.ExtraWarrant)
	extra[request.ExtraScopes] = append(slices.Clone(extra[request.ExtraScopes]), request.ScopeClusterPrefix+cluster.String())
	return &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra}
}

type senderKey struct{}

// WithSender returns a context for what goes on through a view, which notes the user of ctx as who
// has sent the request: it may go on as somebody else.
func WithSender(ctx context.Context) context.Context {
	if u, ok := apirequest.UserFrom(ctx); ok {
		return context.WithValue(ctx, senderKey{}, u)
	}
	return ctx
}

// SenderFrom returns who has sent a request that has entered a view, if that is known.
func SenderFrom(ctx context.Context) (user.Info, bool) {
	u, ok := ctx.Value(senderKey{}).(user.Info)
	return u, ok
}

// WithoutView returns u without the warrant of a view, if it has one: as who it is by
// itself.
func WithoutWarrant(u user.Info) user.Info {
	isViewer := func(text string) bool {
		w, ok := parseWarrant(text)
		return ok && w.GetName() == viewer
	}
	warrants := u.GetExtra()[request.ExtraWarrant]
	if !slices.ContainsFunc(warrants, isViewer) {
		return u
	}
	extra := maps.Clone(u.GetExtra())
	extra[request.ExtraWarrant] = slices.DeleteFunc(slices.Clone(warrants), isViewer)
	return &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra}
}
