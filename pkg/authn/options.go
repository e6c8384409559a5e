package authn

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	apiserverserviceaccount "k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/authn/serviceaccount"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

const (
	// DefaultServiceAccountIssuer is the issuer that kcp uses.
	DefaultServiceAccountIssuer = "https://kcp.default.svc"

	defaultWebhookCacheTTL    = 2 * time.Minute
	minServiceAccountLifetime = time.Hour // of MaxTokenLifetime
)

// Options configure the authentication of a shard. Other servers use parts of them. AddFlags describes them.
type Options struct {
	UserOptions
	RequestHeaderCAFile       string
	RequestHeaderAllowedNames []string
	SigningKeyFile            string
	//reference:limit shard --service-account-max-token-expiration | lifetime of a service account token | a shorter lifetime
	MaxTokenLifetime time.Duration
}

// UserOptions configure users that connect directly, without a front-proxy.
type UserOptions struct {
	ClientCertificateOptions
	DevTokens         bool
	ConfigFile        string
	WebhookConfigFile string
	// WebhookCacheTTL is the lifetime of cached reviews.
	WebhookCacheTTL time.Duration
	ServiceAccounts ServiceAccountOptions
	APIAudiences    []string
	Workspaces      WorkspaceOptions
}

// WorkspaceOptions configure issuers in WorkspaceAuthenticationConfigurations.
type WorkspaceOptions struct {
	// Enabled is set by a feature gate.
	Enabled bool
	// AllowedCIDRs are permitted for issuers in addition to public addresses.
	//
	//reference:limit server --workspace-issuer-allowed-cidrs =public | addresses of issuers of workspaces | 401
	AllowedCIDRs []string
}

const flagIssuerCIDRs = "--workspace-issuer-allowed-cidrs"

// ClientCertificateOptions configure client certificates.
type ClientCertificateOptions struct {
	ClientCAFile string
	// DropGroups are groups that external users must not have; nil means DefaultDropGroups. See GroupFilter.
	// Client certificates may contain system:masters nevertheless.
	DropGroups []string
}

// externalGroups filters the groups of OIDC issuers and webhooks. It also removes groups that servers derive from the
// logical cluster of a user. These are not part of DropGroups, because front-proxies apply it to service accounts too.
func (o *ClientCertificateOptions) externalGroups() GroupFilter {
	drop := o.DropGroups
	if drop == nil {
		drop = DefaultDropGroups()
	}
	derived := []string{apiserverserviceaccount.AllServiceAccountsGroup, apiserverserviceaccount.ServiceAccountGroupPrefix + "*", identity.ClusterGroupPrefix + "*"}
	return GroupFilter{Drop: append(derived, drop...)}
}

// certificateGroups filters the groups of client certificates, which may contain those of shards and system:masters.
func (o *ClientCertificateOptions) certificateGroups() GroupFilter {
	return GroupFilter{Drop: append(slices.Clone(o.externalGroups().Drop), "!"+user.SystemPrivilegedGroup, "!"+request.GroupShards)}
}

// ServiceAccountOptions configure tokens of service accounts.
type ServiceAccountOptions struct {
	// Issuers are the accepted iss claims; the first is used for new tokens.
	Issuers []string
	// KeyFiles are PEM files of keys whose signatures are accepted in addition to the signing key.
	KeyFiles []string
}

// NewOptions returns the defaults.
func NewOptions() Options { return Options{UserOptions: NewUserOptions()} }

// NewUserOptions returns the defaults.
func NewUserOptions() UserOptions {
	return UserOptions{
		ClientCertificateOptions: ClientCertificateOptions{DropGroups: DefaultDropGroups()},
		WebhookCacheTTL:          defaultWebhookCacheTTL,
		ServiceAccounts:          ServiceAccountOptions{Issuers: []string{DefaultServiceAccountIssuer}},
		Workspaces:               WorkspaceOptions{Enabled: true},
	}
}

// AddFlags adds the flags of o to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.UserOptions.AddFlags(fs)
	fs.StringVar(&o.RequestHeaderCAFile, "requestheader-client-ca-file", o.RequestHeaderCAFile,
		"PEM file of the CAs whose client certificates may name the user in X-Remote-* headers; only the front-proxy should hold such a certificate")
	fs.StringSliceVar(&o.RequestHeaderAllowedNames, "requestheader-allowed-names", o.RequestHeaderAllowedNames,
		"common names that certificates of --requestheader-client-ca-file must have; empty allows any")
	fs.StringVar(&o.SigningKeyFile, "service-account-signing-key-file", o.SigningKeyFile,
		"PEM file of the private key that signs the tokens of service accounts; all shards must use the same key, or accept the keys of other shards with --service-account-key-file")
	fs.DurationVar(&o.MaxTokenLifetime, "service-account-max-token-expiration", o.MaxTokenLifetime,
		"maximum lifetime of a service account token; longer requests are reduced, 0 means no limit")
}

// AddFlags adds the flags of o to fs.
func (o *UserOptions) AddFlags(fs *pflag.FlagSet) {
	o.ClientCertificateOptions.AddFlags(fs)
	fs.BoolVar(&o.DevTokens, "dev-tokens", o.DevTokens,
		"accept the well-known bearer tokens user-1-token to user-5-token and admin-token; for development only")
	fs.StringVar(&o.ConfigFile, "authentication-config", o.ConfigFile,
		"file with an AuthenticationConfiguration of apiserver.config.k8s.io: the OIDC issuers whose tokens are accepted; read again when it changes")
	fs.StringVar(&o.WebhookConfigFile, "authentication-token-webhook-config-file", o.WebhookConfigFile,
		"kubeconfig of a service that authenticates bearer tokens by TokenReviews")
	fs.StringSliceVar(&o.APIAudiences, "api-audiences", o.APIAudiences,
		"audiences of this API; a service account token must have one of them; defaults to the values of --service-account-issuer")
	fs.StringArrayVar(&o.ServiceAccounts.Issuers, "service-account-issuer", o.ServiceAccounts.Issuers,
		"issuer of service account tokens; if specified several times, the first is used for new tokens and all are accepted")
	fs.StringArrayVar(&o.ServiceAccounts.KeyFiles, "service-account-key-file", o.ServiceAccounts.KeyFiles,
		"PEM file of public or private keys that verify service account tokens, in addition to the signing key; may be specified several times, read again when it changes")
	fs.StringSliceVar(&o.Workspaces.AllowedCIDRs, strings.TrimPrefix(flagIssuerCIDRs, "--"), o.Workspaces.AllowedCIDRs,
		"CIDRs, e.g. 10.96.0.0/12, that issuers of WorkspaceAuthenticationConfigurations may use in addition to public addresses; "+
			"loopback, link-local, private and reserved addresses are rejected otherwise. Every tenant can make the server send requests to these addresses")
}

// AddFlags adds the flag of o to fs.
func (o *ClientCertificateOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ClientCAFile, "client-ca-file", o.ClientCAFile,
		"PEM file of the CAs whose client certificates are accepted; the common name is the user, the organizations are the groups")
	if o.DropGroups == nil {
		o.DropGroups = DefaultDropGroups()
	}
	fs.StringSliceVar(&o.DropGroups, "authentication-drop-groups", o.DropGroups,
		"groups that are removed from external users (client certificates, OIDC, webhook), except system:masters in client certificates of servers; "+
			"\"prefix*\" matches all groups with the prefix, \"!group\" excludes a group. See docs/authentication.md for the risks of a shorter list")
}

// Validate returns the errors in o.
func (o *Options) Validate() []error {
	errs := o.UserOptions.Validate()
	if o.SigningKeyFile != "" && len(o.ServiceAccounts.KeyFiles) == 0 { // otherwise they have been validated
		errs = append(errs, o.ServiceAccounts.validateIssuers()...)
	}
	if o.MaxTokenLifetime != 0 && o.MaxTokenLifetime < minServiceAccountLifetime {
		errs = append(errs, fmt.Errorf("--service-account-max-token-expiration %s is shorter than %s", o.MaxTokenLifetime, minServiceAccountLifetime))
	}
	return errs
}

// Validate returns the errors in o.
func (o *UserOptions) Validate() []error {
	errs := o.ClientCertificateOptions.Validate()
	if len(o.ServiceAccounts.KeyFiles) > 0 {
		errs = append(errs, o.ServiceAccounts.validateIssuers()...)
	}
	if _, err := webhooktransport.NewDocuments(flagIssuerCIDRs, o.Workspaces.AllowedCIDRs); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// Validate returns the errors in o.
func (o *ClientCertificateOptions) Validate() []error {
	if o.ClientCAFile == "" {
		return []error{errors.New("--client-ca-file is required: users cannot authenticate without it")}
	}
	return nil
}

func (o *ServiceAccountOptions) validateIssuers() []error {
	if len(o.Issuers) == 0 {
		return []error{errors.New("--service-account-issuer is required: service account tokens contain it")}
	}
	var errs []error
	for _, issuer := range o.Issuers {
		u, err := url.Parse(issuer)
		switch {
		case issuer == "" || issuer == serviceaccount.LegacyIssuer:
			errs = append(errs, fmt.Errorf("--service-account-issuer %q: must not be empty or the issuer of tokens in secrets: use a URL", issuer))
		case err != nil || u.Scheme != "https" && u.Scheme != "":
			errs = append(errs, fmt.Errorf("--service-account-issuer %q: must be a URL that starts with https://", issuer))
		}
	}
	return errs
}

// Warnings returns the consequences of unset optional flags of a shard.
func (o *Options) Warnings() []string {
	var warnings []string
	if o.SigningKeyFile == "" {
		warnings = append(warnings, "--service-account-signing-key-file is not set: no tokens of service accounts are issued, e.g. by kubectl create token")
	}
	if o.RequestHeaderCAFile == "" {
		warnings = append(warnings, "--requestheader-client-ca-file is not set: requests that front-proxies forward are rejected (401)")
	}
	return append(warnings, o.warnings(o.verificationKeyFiles())...)
}

// Warnings returns the consequences of unset optional flags of a front-proxy.
func (o *UserOptions) Warnings() []string { return o.warnings(o.ServiceAccounts.KeyFiles) }

func (o *UserOptions) warnings(keyFiles []string) (warnings []string) {
	if len(keyFiles) == 0 {
		warnings = append(warnings, "--service-account-key-file is not set: tokens of service accounts are rejected (401)")
	}
	if o.DevTokens {
		warnings = append(warnings, "--dev-tokens is set: the public tokens of the development cluster are accepted")
	}
	return warnings
}

func (o *UserOptions) audiences() []string {
	if len(o.APIAudiences) > 0 {
		return o.APIAudiences
	}
	return o.ServiceAccounts.Issuers
}

// verificationKeyFiles are the files of the keys that may have signed tokens.
func (o *Options) verificationKeyFiles() []string {
	if o.SigningKeyFile == "" {
		return o.ServiceAccounts.KeyFiles
	}
	return append([]string{o.SigningKeyFile}, o.ServiceAccounts.KeyFiles...)
}

// GroupFilter filters the groups of a user. In both lists "prefix*" matches all groups with the prefix, and
// "!group" excludes a group from the other entries of its list.
type GroupFilter struct {
	// PassOn are the permitted groups; empty permits all.
	PassOn []string
	// Drop are removed in any case.
	Drop []string
}

// DefaultDropGroups are groups that external users must not have, because the servers or the system assign
// them. Administrators are members of system:kcp:admin.
func DefaultDropGroups() []string {
	return []string{user.SystemPrivilegedGroup, request.GroupPrefix + "*", "!" + request.GroupAdmin, request.GroupBindingPrefix + "*"}
}

// withGroups returns a response with filtered groups.
func withGroups(response *authenticator.Response, groups GroupFilter) *authenticator.Response {
	u := response.User
	return &authenticator.Response{Audiences: response.Audiences, User: &user.DefaultInfo{
		Name: u.GetName(), UID: u.GetUID(), Groups: groups.Filter(u.GetGroups()), Extra: u.GetExtra(),
	}}
}

// Filter returns the remaining groups in their order.
func (f GroupFilter) Filter(groups []string) []string {
	return slices.DeleteFunc(slices.Clone(groups), func(name string) bool {
		return len(f.PassOn) > 0 && !matchesAny(f.PassOn, name) || matchesAny(f.Drop, name)
	})
}

func matchesAny(patterns []string, name string) bool {
	return !slices.Contains(patterns, "!"+name) && slices.ContainsFunc(patterns, func(pattern string) bool {
		if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
			return strings.HasPrefix(name, prefix)
		}
		return name == pattern
	})
}
