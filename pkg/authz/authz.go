package authz

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/path"

	"github.com/shardplane/shardplane/pkg/request"
)

// Config is what the rules need to know.
type Config struct {
	// Options are the settings that a person gives.
	Options Options
	// Find is asked for the logical cluster of a request that would be allowed,
	// and never before.
	Find FindLogicalCluster
	// Rules decides by roles and bindings, of the logical cluster, of the
	// system and global ones.
	Rules authorizer.Authorizer
	// MaximalPermission bounds what bound APIs allow; see
	// WithMaximalPermission. Nil bounds nothing.
	MaximalPermission MaximalPermission
	// CatchUp waits for what may bound a request that was allowed before it was known, and
	// reports whether there is something. Nil is that all is known.
	CatchUp func(ctx context.Context, a authorizer.Attributes) (bool, error)
	// Views decide on requests through views; nil denies them.
	VirtualWorkspaces VirtualWorkspaces
	// Metrics decides who may read the metrics of the process, beside administrators;
	// nil is nobody.
	Metrics authorizer.Authorizer
	// Webhook is the external authorizer; nil leaves it out.
	Webhook authorizer.Authorizer
}

// New assembles the authorization chain of a shard. Its errors are by Unavailable.
func New(c Config) (authorizer.Authorizer, error) {
	open, err := path.NewAuthorizer(c.Options.AlwaysAllowPaths)
	if err != nil {
		return nil, fmt.Errorf("--authorization-always-allow-paths: %w", err)
	}

	rules := WithMaximalPermission(c.Rules, c.MaximalPermission)
	rules = WithProtectedStatus(rules)
	rules = WithRequiredGroups(rules, c.Find)
	rules = WithWorkspaceContent(rules, c.Rules, c.Find)

	var chain []authorizer.Authorizer
	for _, step := range c.Options.Order {
		switch step {
		case StepPaths:
			// Below a logical cluster they would tell everybody that it is there.
			chain = append(chain, OnProcess(open))
		case StepGroups:
			chain = append(chain, Privileged(c.Options.AlwaysAllowGroups...), WithoutCluster(Privileged(request.GroupAdmin)), Shards())
		case StepRBAC:
			if c.Metrics != nil {
				chain = append(chain, OnProcess(onMetrics(c.Metrics)))
			}
			chain = append(chain, rules)
		case StepWebhook:
			if c.Webhook != nil {
				chain = append(chain, explained(WithClusterName(c.Webhook), rules))
			}
		default:
			return nil, fmt.Errorf("--authorization-order: %q is not one of %s", step, strings.Join(Steps(), ", "))
		}
	}
	return withUnavailable(WithAdminGate(WithWildcardGate(WithImpersonationGuard(WithVirtualWorkspaces(entering(withCatchUp(FirstOf(chain...), c.CatchUp)), c.VirtualWorkspaces))))), nil
}

// withCatchUp asks next again about what it has allowed before something was known. To
// impersonate somebody is no access to objects, which users and groups are not.
func withCatchUp(next authorizer.Authorizer, catchUp func(context.Context, authorizer.Attributes) (bool, error)) authorizer.Authorizer {
	if catchUp == nil {
		return next
	}
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		decision, reason, err := next.Authorize(ctx, a)
		if decision != authorizer.DecisionAllow || impersonates(a) {
			return decision, reason, err
		}
		switch more, err := catchUp(ctx, a); {
		case err != nil:
			return authorizer.DecisionNoOpinion, "", err
		case more:
			return next.Authorize(ctx, a)
		}
		return decision, reason, err
	})
}

// entering lets the server know of whom next allows anything that they have
// entered the logical cluster, whoever of the chain has let them.
func entering(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		decision, reason, err := next.Authorize(ctx, a)
		if decision == authorizer.DecisionAllow {
			request.AccessAuthorized(ctx)
		}
		return decision, reason, err
	})
}

// explained asks rules about those whom next denies, not for a decision, but so
// that the server knows whether they may enter, and so learn why.
func explained(next, rules authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		decision, reason, err := next.Authorize(ctx, a)
		if decision == authorizer.DecisionDeny {
			_, _, _ = rules.Authorize(ctx, a)
		}
		return decision, reason, err
	})
}

// FirstOf asks authorizers in order until one allows or denies. Their reasons
// are joined, so that the user learns all of them, each once.
func FirstOf(chain ...authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		var reasons []string
		var errs []error
		for _, next := range chain {
			decision, reason, err := next.Authorize(ctx, a)
			if decision != authorizer.DecisionNoOpinion {
				return decision, reason, err
			}
			if reason != "" {
				reasons = append(reasons, reason)
			}
			if err != nil {
				errs = append(errs, err)
			}
		}
		return authorizer.DecisionNoOpinion, strings.Join(reasons, "\n"), errors.Join(errs...)
	})
}
