package authn

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/authn/serviceaccount"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

const (
	// DefaultServiceAccountIssuer is kcp's.
	DefaultServiceAccountIssuer = "https://kcp.default.svc"

	defaultWebhookCacheTTL = 2 * time.Minute
	// minServiceAccountLifetime is the shortest bound on the life of tokens.
	minServiceAccountLifetime = time.Hour
)

// Options are all ways to authenticate, those of a shard. Other servers have
// some of the parts.
type Options struct {
	UserOptions
	RequestHeaderOptions
	SigningOptions
}

// UserOptions are about users that connect themselves, and not through a
// front-proxy.
type UserOptions struct {
	ClientCertificateOptions
	TokenOptions
	// Workspaces is about users whom issuers of tenants name, in their workspaces.
	Workspaces WorkspaceOptions
}

// WorkspaceOptions are about issuers that tenants name in WorkspaceAuthenticationConfigurations.
type WorkspaceOptions struct {
	// Enabled is whether tokens of theirs are accepted; a feature gate, and no flag, sets it.
	Enabled bool
	// AllowedCIDRs are the ranges that they may have addresses in beside public ones.
	AllowedCIDRs []string
}

// flagIssuerCIDRs is the flag that errors name.
const flagIssuerCIDRs = "--workspace-issuer-allowed-cidrs"

// AddFlags adds the flags of o to fs.
func (o *WorkspaceOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.AllowedCIDRs, strings.TrimPrefix(flagIssuerCIDRs, "--"), o.AllowedCIDRs,
		"ranges of addresses, such as 10.96.0.0/12, in which issuers of WorkspaceAuthenticationConfigurations may be beside public addresses; "+
			"loopback, link-local, private and reserved ones are refused otherwise. Every tenant can have the server send requests to what is in them")
}

// Validate returns what is wrong with o.
func (o *WorkspaceOptions) Validate() []error {
	if _, err := webhooktransport.NewDocuments(flagIssuerCIDRs, o.AllowedCIDRs); err != nil {
		return []error{err}
	}
	return nil
}

// ClientCertificateOptions are about users with client certificates.
type ClientCertificateOptions struct {
	// ClientCAFile is a PEM bundle of the CAs whose client certificates are
	// accepted: common name is the user, organizations are the groups.
	ClientCAFile string
	// DropGroups are the groups that nobody from outside has, by certificate, OIDC
	// or webhook; see GroupFilter. Certificates may name members of system:masters
	// all the same. Nil: DefaultDropGroups.
	DropGroups []string
}

// outsideGroups filters what OIDC issuers and webhooks say.
func (o *ClientCertificateOptions) outsideGroups() GroupFilter {
	drop := o.DropGroups
	if drop == nil {
		drop = DefaultDropGroups()
	}
	return GroupFilter{Drop: append(homeGroups(), drop...)}
}

// certificateGroups filters what client certificates say. They name shards, and members of
// system:masters.
func (o *ClientCertificateOptions) certificateGroups() GroupFilter {
	return GroupFilter{Drop: append(slices.Clone(o.outsideGroups().Drop), "!"+user.SystemPrivilegedGroup, "!"+request.GroupShards)}
}

// TokenOptions say which bearer tokens are accepted.
type TokenOptions struct {
	// DevTokens accepts the well-known tokens of the development cluster. Never
	// for production: everybody knows them.
	DevTokens bool
	// ConfigFile is Kubernetes' structured authentication configuration: the
	// OIDC issuers whose tokens are accepted. Read again when it changes.
	ConfigFile string
	// WebhookConfigFile is a kubeconfig for a service that reviews tokens.
	WebhookConfigFile string
	// WebhookCacheTTL is for how long its answers are kept.
	WebhookCacheTTL time.Duration
	// ServiceAccounts are about the tokens of service accounts.
	ServiceAccounts ServiceAccountOptions
	// APIAudiences are the audiences that a token must have one of; those of
	// service accounts are issued for them. Empty: the issuers.
	APIAudiences []string
}

// ServiceAccountOptions say which tokens of service accounts are accepted.
type ServiceAccountOptions struct {
	// Issuers are the accepted iss claims; the first is that of new tokens.
	Issuers []string
	// KeyFiles are PEM files of keys whose signatures are accepted, besides the
	// signing key.
	KeyFiles []string
}

// RequestHeaderOptions are about the front-proxies that are trusted.
type RequestHeaderOptions struct {
	// RequestHeaderCAFile is a PEM bundle of the CAs whose client certificates
	// may name any user in the X-Remote-* headers. Empty: nobody may.
	RequestHeaderCAFile string
	// RequestHeaderAllowedNames restricts those certificates to these common
	// names; empty allows any.
	RequestHeaderAllowedNames []string
}

// SigningOptions are about making tokens of service accounts.
type SigningOptions struct {
	// SigningKeyFile is the PEM file of the key that signs. Empty: no tokens
	// are made.
	SigningKeyFile string
	// MaxTokenLifetime bounds the life of new tokens; 0 is no bound.
	MaxTokenLifetime time.Duration
}

// NewOptions returns the defaults.
func NewOptions() Options { return Options{UserOptions: NewUserOptions()} }

// NewUserOptions returns the defaults.
func NewUserOptions() UserOptions {
	return UserOptions{Workspaces: WorkspaceOptions{Enabled: true}, ClientCertificateOptions: ClientCertificateOptions{DropGroups: DefaultDropGroups()}, TokenOptions: TokenOptions{
		WebhookCacheTTL: defaultWebhookCacheTTL,
		ServiceAccounts: ServiceAccountOptions{Issuers: []string{DefaultServiceAccountIssuer}},
	}}
}

// AddFlags adds the flags of o to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.UserOptions.AddFlags(fs)
	fs.StringVar(&o.RequestHeaderCAFile, "requestheader-client-ca-file", o.RequestHeaderCAFile,
		"PEM file of the CAs whose client certificates may name the user in X-Remote-* headers; only the front-proxy should hold such a certificate")
	fs.StringSliceVar(&o.RequestHeaderAllowedNames, "requestheader-allowed-names", o.RequestHeaderAllowedNames,
		"common names that certificates of --requestheader-client-ca-file must have; empty allows any")
	fs.StringVar(&o.SigningKeyFile, "service-account-signing-key-file", o.SigningKeyFile,
		"PEM file of the private key that signs the tokens of service accounts; all shards use the same, or know each other's with --service-account-key-file")
	fs.DurationVar(&o.MaxTokenLifetime, "service-account-max-token-expiration", o.MaxTokenLifetime,
		"longest life of a service account's token; longer requests are cut, 0 is no bound")
}

// AddFlags adds the flags of o to fs.
func (o *UserOptions) AddFlags(fs *pflag.FlagSet) {
	o.ClientCertificateOptions.AddFlags(fs)
	o.TokenOptions.AddFlags(fs)
	o.Workspaces.AddFlags(fs)
}

// AddFlags adds the flag of o to fs.
func (o *ClientCertificateOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ClientCAFile, "client-ca-file", o.ClientCAFile,
		"PEM file of the CAs whose client certificates are accepted; the common name is the user, the organizations are the groups")
	if o.DropGroups == nil {
		o.DropGroups = DefaultDropGroups()
	}
	fs.StringSliceVar(&o.DropGroups, "authentication-drop-groups", o.DropGroups,
		"groups that nobody from outside has, by client certificate, OIDC or webhook, but for system:masters in client certificates of servers; "+
			"\"prefix*\" for all that begin so, \"!group\" for one of these that stays. docs/authentication.md says what fewer give away")
}

// AddFlags adds the flags of o to fs.
func (o *TokenOptions) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.DevTokens, "dev-tokens", o.DevTokens,
		"accept the well-known bearer tokens user-1-token to user-5-token and admin-token; for development only")
	fs.StringVar(&o.ConfigFile, "authentication-config", o.ConfigFile,
		"file with an AuthenticationConfiguration of apiserver.config.k8s.io: the OIDC issuers whose tokens are accepted; read again when it changes")
	fs.StringVar(&o.WebhookConfigFile, "authentication-token-webhook-config-file", o.WebhookConfigFile,
		"kubeconfig for a service that is asked, with a TokenReview, whose a bearer token is")
	fs.StringSliceVar(&o.APIAudiences, "api-audiences", o.APIAudiences,
		"audiences of this API, one of which a service account's token must have; those of --service-account-issuer by default")
	fs.StringArrayVar(&o.ServiceAccounts.Issuers, "service-account-issuer", o.ServiceAccounts.Issuers,
		"issuer of service accounts' tokens; if given several times, the first issues and all are accepted")
	fs.StringArrayVar(&o.ServiceAccounts.KeyFiles, "service-account-key-file", o.ServiceAccounts.KeyFiles,
		"PEM file of keys, public or private, with which service accounts' tokens may be signed; besides the signing key; may be given several times, read again when it changes")
}

// Validate returns what is wrong with o, in the order of its fields.
func (o *Options) Validate() []error {
	errs := o.UserOptions.Validate()
	if o.SigningKeyFile != "" && len(o.ServiceAccounts.KeyFiles) == 0 { // else it was done
		errs = append(errs, o.ServiceAccounts.validateIssuers()...)
	}
	if o.MaxTokenLifetime != 0 && o.MaxTokenLifetime < minServiceAccountLifetime {
		errs = append(errs, fmt.Errorf("--service-account-max-token-expiration %s is shorter than %s", o.MaxTokenLifetime, minServiceAccountLifetime))
	}
	return errs
}

// Validate returns what is wrong with o, in the order of its fields.
func (o *UserOptions) Validate() []error {
	return slices.Concat(o.ClientCertificateOptions.Validate(), o.TokenOptions.Validate(), o.Workspaces.Validate())
}

// Validate returns what is wrong with o.
func (o *ClientCertificateOptions) Validate() []error {
	if o.ClientCAFile == "" {
		return []error{errors.New("--client-ca-file is required: nobody could authenticate without it")}
	}
	return nil
}

// Validate returns what is wrong with o, in the order of its fields.
func (o *TokenOptions) Validate() []error {
	var errs []error
	if len(o.ServiceAccounts.KeyFiles) > 0 {
		errs = append(errs, o.ServiceAccounts.validateIssuers()...)
	}
	return errs
}

func (o *ServiceAccountOptions) validateIssuers() []error {
	if len(o.Issuers) == 0 {
		return []error{errors.New("--service-account-issuer is required: tokens of service accounts name it")}
	}
	var errs []error
	for _, issuer := range o.Issuers {
		if err := checkIssuer(issuer); err != nil {
			errs = append(errs, fmt.Errorf("--service-account-issuer %q: %w", issuer, err))
		}
	}
	return errs
}

func checkIssuer(issuer string) error {
	if issuer == "" || issuer == serviceaccount.LegacyIssuer {
		return errors.New("it is empty, or the one of tokens in secrets: use a URL")
	}
	if u, err := url.Parse(issuer); err != nil || u.Scheme != "https" && u.Scheme != "" {
		return errors.New("it is not a URL that starts with https://")
	}
	return nil
}

// Warnings returns what a shard lacks without flags that are optional.
func (o *Options) Warnings() []string {
	var warnings []string
	if o.SigningKeyFile == "" {
		warnings = append(warnings, "--service-account-signing-key-file is not set: no tokens of service accounts are issued, e.g. by kubectl create token")
	}
	if len(o.verificationKeyFiles()) == 0 {
		warnings = append(warnings, noKeyFiles)
	}
	if o.RequestHeaderCAFile == "" {
		warnings = append(warnings, "--requestheader-client-ca-file is not set: requests that front-proxies forward are rejected (401)")
	}
	return append(warnings, o.warnings()...)
}

// Warnings returns what a front-proxy lacks without flags that are optional.
func (o *UserOptions) Warnings() []string {
	var warnings []string
	if len(o.ServiceAccounts.KeyFiles) == 0 {
		warnings = append(warnings, noKeyFiles)
	}
	return append(warnings, o.warnings()...)
}

const noKeyFiles = "--service-account-key-file is not set: tokens of service accounts are rejected (401)"

func (o *UserOptions) warnings() []string {
	if o.DevTokens {
		return []string{"--dev-tokens is set: the tokens of the development cluster are accepted, which every person knows"}
	}
	return nil
}

// audiences are those of the API.
func (o *TokenOptions) audiences() []string {
	if len(o.APIAudiences) > 0 {
		return o.APIAudiences
	}
	return o.ServiceAccounts.Issuers
}

// verificationKeyFiles are the files of the keys that tokens may be signed with.
func (o *Options) verificationKeyFiles() []string {
	if o.SigningKeyFile == "" {
		return o.ServiceAccounts.KeyFiles
	}
	return append([]string{o.SigningKeyFile}, o.ServiceAccounts.KeyFiles...)
}
