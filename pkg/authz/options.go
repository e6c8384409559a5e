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

// The steps of Options.Order.
const (
	// StepPaths lets everybody GET some paths.
	StepPaths = "AlwaysAllowPaths"
	// StepGroups lets the members of some groups do everything.
	StepGroups = "AlwaysAllowGroups"
	// StepRBAC decides by roles and bindings, and by what restricts them.
	StepRBAC = "RBAC"
	// StepWebhook asks an external authorizer, if there is one.
	StepWebhook = "Webhook"
)

// Steps returns all steps in their usual order.
func Steps() []string { return []string{StepPaths, StepGroups, StepRBAC, StepWebhook} }

// Options are the settings of authorization.
type Options struct {
	// Order lists the steps, the first to decide wins.
	Order []string
	// AlwaysAllowPaths may be read by everybody; a trailing * matches any rest.
	AlwaysAllowPaths []string
	// AlwaysAllowGroups are the groups whose members may do everything.
	AlwaysAllowGroups []string
	// WebhookConfigFile is a kubeconfig that leads to an external authorizer.
	WebhookConfigFile string
	// WebhookAuthorizedTTL and WebhookUnauthorizedTTL are for how long its
	// decisions are remembered.
	WebhookAuthorizedTTL, WebhookUnauthorizedTTL time.Duration
}

// NewOptions returns the defaults: everybody may read the paths given.
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
		"steps of authorization in their order; the first that allows or denies decides. A step that is left out is not taken")
	fs.StringSliceVar(&o.AlwaysAllowPaths, "authorization-always-allow-paths", o.AlwaysAllowPaths,
		"paths that everybody may read, as health probes; a trailing * matches any rest")
	fs.StringSliceVar(&o.AlwaysAllowGroups, "authorization-always-allow-groups", o.AlwaysAllowGroups,
		"groups whose members may do everything in all logical clusters")
	fs.StringVar(&o.WebhookConfigFile, "authorization-webhook-config-file", o.WebhookConfigFile,
		"kubeconfig of an external authorizer, in the format of kube-apiserver; it learns the logical cluster from the extra attribute authorization.kcp.io/cluster-name")
}

// Validate returns what is wrong with o.
func (o *Options) Validate() []error {
	var errs []error
	seen := map[string]bool{}
	for _, step := range o.Order {
		if !slices.Contains(Steps(), step) {
			errs = append(errs, fmt.Errorf("--authorization-order: %q is not one of %s", step, strings.Join(Steps(), ", ")))
		}
		if seen[step] {
			errs = append(errs, fmt.Errorf("--authorization-order: %s is there twice", step))
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
		errs = append(errs, errors.New("--authorization-webhook-config-file is set, but --authorization-order leaves "+StepWebhook+" out"))
	}
	if _, err := os.Stat(o.WebhookConfigFile); err != nil {
		errs = append(errs, fmt.Errorf("--authorization-webhook-config-file: %w", err))
	}
	return errs
}
