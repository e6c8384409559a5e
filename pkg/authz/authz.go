package authz

import (
	"context"
	"fmt"
	"slices"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/authorization/union"

	"github.com/shardplane/shardplane/pkg/request"
)

// GroupAdmin is the group of the administrators of a Shardplane installation:
// they may do everything in every logical cluster, but nothing across all of
// them.
const GroupAdmin = "system:kcp:admin"

// notPermitted is the reason given to whom nothing is permitted in a logical
// cluster, whether it exists or not. The front-proxy knows it by this text and
// makes it indistinguishable from its own answer.
const notPermitted = "workspace access not permitted"

// ClusterExists tells whether the logical cluster name exists on this server.
type ClusterExists func(ctx context.Context, name logicalcluster.Name) (bool, error)

// Config is what the rules need to know.
type Config struct {
	// OpenPaths are the paths that everybody may GET, such as health probes; a
	// trailing * matches any suffix.
	OpenPaths []string
	// ClusterExists is asked before anybody but system:masters is let into a
	// logical cluster. Nil: all exist.
	ClusterExists ClusterExists
}

// New assembles the authorization chain of a shard.
func New(c Config) (authorizer.Authorizer, error) {
	open, err := path.NewAuthorizer(c.OpenPaths)
	if err != nil {
		return nil, fmt.Errorf("open paths: %w", err)
	}
	rules := Privileged(user.SystemPrivilegedGroup, GroupAdmin)
	if c.ClusterExists != nil {
		rules = WithExistingCluster(rules, c.ClusterExists)
	}
	return union.New(
		union.NamedAuthorizer{AuthorizerName: "open-paths", Authorizer: open},
		union.NamedAuthorizer{AuthorizerName: "groups", Authorizer: WithWildcardGate(rules)},
	)
}

// Privileged lets the members of groups do everything and has no opinion on
// anybody else.
func Privileged(groups ...string) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if memberOf(a.GetUser(), groups...) {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	})
}

// WithWildcardGate denies requests for all logical clusters to everybody but
// members of system:masters, and asks next about the rest.
func WithWildcardGate(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		cluster, ok := request.ClusterFrom(ctx)
		if ok && cluster.Wildcard && !memberOf(a.GetUser(), user.SystemPrivilegedGroup) {
			return authorizer.DecisionDeny, "requests for all logical clusters need group " + user.SystemPrivilegedGroup, nil
		}
		return next.Authorize(ctx, a)
	})
}

// WithExistingCluster denies requests for logical clusters that do not exist,
// with the same answer that a user without rights gets, and asks next about the
// rest. Members of system:masters see an empty logical cluster instead:
// controllers prepare logical clusters before they exist.
func WithExistingCluster(next authorizer.Authorizer, exists ClusterExists) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		cluster, ok := request.ClusterFrom(ctx)
		if !ok || cluster.Wildcard || memberOf(a.GetUser(), user.SystemPrivilegedGroup) {
			return next.Authorize(ctx, a)
		}
		// Ask for rights first: a user without any must not cost a look-up, nor
		// learn from the time it takes whether the logical cluster exists.
		decision, reason, err := next.Authorize(ctx, a)
		if decision == authorizer.DecisionNoOpinion && reason == "" && err == nil {
			return decision, notPermitted, nil
		}
		if decision != authorizer.DecisionAllow || err != nil {
			return decision, reason, err
		}
		found, err := exists(ctx, cluster.Name)
		if err != nil {
			return authorizer.DecisionNoOpinion, "", fmt.Errorf("looking up logical cluster %q: %w", cluster.Name, err)
		}
		if !found {
			return authorizer.DecisionDeny, notPermitted, nil
		}
		return decision, reason, nil
	})
}

func memberOf(u user.Info, groups ...string) bool {
	return u != nil && slices.ContainsFunc(u.GetGroups(), func(g string) bool { return slices.Contains(groups, g) })
}
