// Package authz authorizes requests in logical clusters. Each rule is an authorizer.Authorizer, and most are
// decorators, which New assembles.
//
//	wildcard gate ─ impersonation guard ─┬ paths open to all users
//	                                     ├ groups that may do everything
//	                                     ├ RBAC: required groups ─ workspace content
//	                                     │       ─ status of system APIs
//	                                     │       ─ maximal permission policy ─ rules
//	                                     └ webhook
//
// Package rbac evaluates roles and bindings, and package policy contains the built-in ones. Package
// request/identity determines the identity of a user in a logical cluster.
package authz

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/path"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
)

// Config configures New.
type Config struct {
	Options Options
	// Find is called only for requests that the rules would allow.
	Find FindLogicalCluster
	// Rules authorizes by the roles and bindings of the logical cluster and of the system, and by global ones.
	Rules authorizer.Authorizer
	// MaximalPermission restricts access to bound APIs; may be nil. See WithMaximalPermission.
	MaximalPermission MaximalPermission
	// CatchUp waits for data that may restrict a request that has been allowed, and reports whether there is any; may
	// be nil.
	CatchUp func(ctx context.Context, a authorizer.Attributes) (bool, error)
	// VirtualWorkspaces authorizes requests to virtual workspaces; nil denies them.
	VirtualWorkspaces VirtualWorkspaces
	// Metrics authorizes reads of the metrics of the process by users that are not administrators; may be nil.
	Metrics authorizer.Authorizer
	// Webhook is the external authorizer; may be nil.
	Webhook authorizer.Authorizer
}

// NewAuthorizer assembles the authorization chain of a shard. Its errors are converted by Unavailable.
func NewAuthorizer(c Config) (authorizer.Authorizer, error) {
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
			// In a logical cluster they would disclose that it exists.
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
	gates := WithAdminGate(WithWildcardGate(WithImpersonationGuard(WithVirtualWorkspaces(withCatchUp(FirstOf(chain...), c.CatchUp), c.VirtualWorkspaces))))
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		decision, reason, err := gates.Authorize(ctx, a)
		return decision, reason, Unavailable(err)
	}), nil
}

// withCatchUp authorizes again if catchUp has found more data. Impersonation is exempt, because users and
// groups are not objects. It records that an allowed request has been authorized for the logical cluster.
func withCatchUp(next authorizer.Authorizer, catchUp func(context.Context, authorizer.Attributes) (bool, error)) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		decision, reason, err := next.Authorize(ctx, a)
		if catchUp != nil && decision == authorizer.DecisionAllow && !impersonates(a) {
			more, failed := catchUp(ctx, a)
			if failed != nil {
				return authorizer.DecisionNoOpinion, "", failed
			}
			if more {
				decision, reason, err = next.Authorize(ctx, a)
			}
		}
		if decision == authorizer.DecisionAllow {
			request.AccessAuthorized(ctx)
		}
		return decision, reason, err
	})
}

// explained calls rules if next denies a request. It ignores the decision, but rules record whether the user may access
// the logical cluster and so see the reason.
func explained(next, rules authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		decision, reason, err := next.Authorize(ctx, a)
		if decision == authorizer.DecisionDeny {
			_, _, _ = rules.Authorize(ctx, a)
		}
		return decision, reason, err
	})
}

// FirstOf calls authorizers in order until one allows or denies. Otherwise it joins all reasons.
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

// Unavailable returns a 503 error with Retry-After if err is due to incomplete data, and otherwise err.
func Unavailable(err error) error {
	if !errors.Is(err, client.ErrIncomplete) {
		return err
	}
	return request.Unavailable(err.Error())
}
