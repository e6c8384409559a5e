// Package authz authorizes requests in logical clusters by a chain of decorators, which NewAuthorizer assembles.
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
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/pkg/authorization/path"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// Config configures New.
type Config struct {
	Options Options
	// Find is called only for requests that the rules would allow.
	Find FindLogicalCluster
	// Rules authorizes by the roles and bindings of the logical cluster and of the system, and by global ones.
	Rules authorizer.Authorizer
	// MaximalPermission restricts access to bound APIs; may be nil. See WithMaximalPermission.
	MaximalPermission authorizer.AuthorizerFunc
	// CatchUp waits for data that may restrict an allowed request, and reports whether there is any; may be nil.
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
// the logical cluster, and thus see the reason.
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

// Steps of Options.Order.
const (
	// StepPaths allows all users to read some paths.
	StepPaths = "AlwaysAllowPaths"
	// StepGroups allows all requests of some groups.
	StepGroups = "AlwaysAllowGroups"
	// StepRBAC applies roles and bindings, and their restrictions.
	StepRBAC = "RBAC"
	// StepWebhook calls an external authorizer.
	StepWebhook = "Webhook"
)

// Steps returns all steps in their default order.
func Steps() []string { return []string{StepPaths, StepGroups, StepRBAC, StepWebhook} }

// Options configure authorization. AddFlags describes them.
type Options struct {
	Order             []string
	AlwaysAllowPaths  []string
	AlwaysAllowGroups []string
	WebhookConfigFile string
	// The lifetimes of cached decisions of the webhook.
	WebhookAuthorizedTTL, WebhookUnauthorizedTTL time.Duration
}

// NewOptions returns the defaults with the given AlwaysAllowPaths.
func NewOptions(openPaths ...string) Options {
	return Options{
		Order:                  Steps(),
		AlwaysAllowPaths:       openPaths,
		AlwaysAllowGroups:      []string{user.SystemPrivilegedGroup},
		WebhookAuthorizedTTL:   5 * time.Minute,
		WebhookUnauthorizedTTL: 30 * time.Second,
	}
}

// AddFlags adds the flags of o to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.Order, "authorization-order", o.Order,
		"ordered authorization steps; the first step that allows or denies decides, omitted steps are disabled")
	fs.StringSliceVar(&o.AlwaysAllowPaths, "authorization-always-allow-paths", o.AlwaysAllowPaths,
		"paths that all users may read, e.g. health probes; a trailing * matches any suffix")
	fs.StringSliceVar(&o.AlwaysAllowGroups, "authorization-always-allow-groups", o.AlwaysAllowGroups,
		"groups whose members are allowed all requests in all logical clusters")
	fs.StringVar(&o.WebhookConfigFile, "authorization-webhook-config-file", o.WebhookConfigFile,
		"kubeconfig of an external authorizer, in the format of kube-apiserver; the extra attribute authorization.kcp.io/cluster-name contains the logical cluster")
}

// Validate returns the errors in o.
func (o *Options) Validate() []error {
	var errs []error
	seen := map[string]bool{}
	for _, step := range o.Order {
		if !slices.Contains(Steps(), step) {
			errs = append(errs, fmt.Errorf("--authorization-order: %q is not one of %s", step, strings.Join(Steps(), ", ")))
		}
		if seen[step] {
			errs = append(errs, fmt.Errorf("--authorization-order: %s is duplicated", step))
		}
		seen[step] = true
	}
	if !seen[StepGroups] {
		errs = append(errs, errors.New("--authorization-order: "+StepGroups+" is required, because the servers themselves are members of system:masters"))
	}
	if !slices.Contains(o.AlwaysAllowGroups, user.SystemPrivilegedGroup) {
		errs = append(errs, errors.New("--authorization-always-allow-groups: system:masters is required, because the servers themselves are members"))
	}
	if o.WebhookConfigFile == "" {
		return errs
	}
	if !seen[StepWebhook] {
		errs = append(errs, errors.New("--authorization-webhook-config-file is set, but --authorization-order omits "+StepWebhook))
	}
	if _, err := os.Stat(o.WebhookConfigFile); err != nil {
		errs = append(errs, fmt.Errorf("--authorization-webhook-config-file: %w", err))
	}
	return errs
}

// NewWebhook returns the external authorizer, or nil. It caches decisions, and has no opinion if it is unreachable.
func NewWebhook(o Options) (authorizer.Authorizer, error) {
	if o.WebhookConfigFile == "" {
		return nil, nil //nolint:nilnil // not configured
	}
	config, err := webhookutil.LoadKubeconfig(o.WebhookConfigFile, nil)
	if err != nil {
		return nil, fmt.Errorf("--authorization-webhook-config-file: %w", err)
	}
	webhooktransport.Operator(config)
	hook, err := webhook.New(config, "v1", o.WebhookAuthorizedTTL, o.WebhookUnauthorizedTTL, *webhook.DefaultRetryBackoff(),
		authorizer.DecisionNoOpinion, nil, "webhook", metrics.NoopAuthorizerMetrics{}, authorizationcel.NewDefaultCompiler())
	if err != nil {
		return nil, fmt.Errorf("--authorization-webhook-config-file: %w", err)
	}
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		decision, reason, err := hook.Authorize(ctx, a)
		if err != nil { // upstream has logged it, with the address and response of the webhook
			err = errors.New("the authorization webhook has failed; see the log of the server")
		}
		return decision, reason, err
	}), nil
}

// WithClusterName adds the logical cluster of the request to the extra attributes of the user.
// External authorizers need it because they do not have the context, and caches of decisions because
// they must distinguish logical clusters.
func WithClusterName(next authorizer.Authorizer) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		u := a.GetUser()
		if u == nil {
			return authorizer.DecisionNoOpinion, "", nil
		}
		extra := map[string][]string{}
		maps.Copy(extra, u.GetExtra())
		extra[request.ExtraAuthorizationClusterName] = []string{clusterName(ctx).String()}
		return next.Authorize(ctx, As(a, &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra}))
	})
}
