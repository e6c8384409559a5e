package authz

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/authentication/user"
)

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

// Options configure authorization.
type Options struct {
	// Order lists the steps; the first decision is used.
	Order []string
	// AlwaysAllowPaths can be read by all users. A trailing * matches any suffix.
	AlwaysAllowPaths []string
	// AlwaysAllowGroups are allowed all requests.
	AlwaysAllowGroups []string
	// WebhookConfigFile is the kubeconfig of an external authorizer.
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
