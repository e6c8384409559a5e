package frontproxy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/features"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

const (
	defaultPort         = 6443
	defaultIndexTimeout = 500 * time.Millisecond
	maxIndexTimeout     = 10 * time.Second
	defaultReadyTimeout = 10 * time.Second
	maxReadyTimeout     = 30 * time.Second
)

// Options are the front-proxy's settings as a person gives them on the command
// line. Complete makes them usable.
type Options struct {
	// RootKubeconfig leads to the root shard, as a member of system:masters.
	RootKubeconfig string
	// OtherShards are the URLs of shards that say which shards there are, at a start while root
	// does not answer.
	OtherShards []string
	// ShardCAFile holds the CAs of the shards' serving certificates.
	ShardCAFile string
	// ShardClientCertFile and ShardClientKeyFile are the certificate for
	// reading the index from shards; its group is system:masters.
	ShardClientCertFile, ShardClientKeyFile string
	// ProxyClientCertFile and ProxyClientKeyFile are the certificate with which
	// requests are forwarded: the shards' request header CA signed it.
	ProxyClientCertFile, ProxyClientKeyFile string
	// MappingFile names servers beside the shards, by the paths that they serve.
	MappingFile string
	// Mounts say how servers are reached that tenants mount.
	Mounts MountOptions
	// IndexDirectory is where the index is kept for the next start; empty for nowhere.
	IndexDirectory string
	// IndexTimeout is for how long a request for an unknown logical cluster
	// waits for the index to learn of it.
	IndexTimeout time.Duration
	// WorkspaceReadyTimeout is for how long a request for a new workspace, of who may
	// enter it, waits for it to become ready.
	WorkspaceReadyTimeout time.Duration
	// ShutdownDelay is for how long the front-proxy still serves when it is to stop, and is
	// not ready any more.
	ShutdownDelay time.Duration
	// Serving are the listener and the audit log of what the front-proxy
	// answers itself.
	Serving serving.Options
	// Authentication says who may connect.
	Authentication authn.UserOptions
	// PassOnGroups are the groups that users keep on their way to a shard, except
	// for those of Authentication.DropGroups; see authn.GroupFilter.
	PassOnGroups []string
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	o := &Options{
		IndexTimeout:          defaultIndexTimeout,
		WorkspaceReadyTimeout: defaultReadyTimeout,
		Serving:               serving.NewOptions(defaultPort),
		Authentication:        authn.NewUserOptions(),
	}
	// More than at one shard, which limits logical clusters as well.
	o.Serving.Limits[ledger.RequestsPerUser], o.Serving.Limits[ledger.WatchesPerUser] = 3000, 15000
	return o
}

// Flags returns the flags of all options, by the sections of the help.
func (o *Options) Flags() (fss cliflag.NamedFlagSets) {
	fs := fss.FlagSet("Other components")
	fs.StringVar(&o.RootKubeconfig, "root-kubeconfig", o.RootKubeconfig, "kubeconfig for the root shard whose user is in system:masters; the Shard objects are read there")
	fs.StringSliceVar(&o.OtherShards, "other-shards", o.OtherShards, "URLs of shards, such as https://shard-1.example.com:6443, that are asked in this order which shards there are, at a start without files of --index-directory while root does not answer")
	fs.StringVar(&o.ShardCAFile, "shard-ca-file", o.ShardCAFile, "PEM file of the CAs of the shards' serving certificates")
	fs.StringVar(&o.ShardClientCertFile, "shard-client-cert-file", o.ShardClientCertFile, "PEM file of the client certificate, in system:masters, with which the index is read from the shards")
	fs.StringVar(&o.ShardClientKeyFile, "shard-client-key-file", o.ShardClientKeyFile, "PEM file of the private key of --shard-client-cert-file")
	fs.StringVar(&o.ProxyClientCertFile, "proxy-client-cert-file", o.ProxyClientCertFile, "PEM file of the client certificate, signed by the shards' request header CA, with which requests are forwarded")
	fs.StringVar(&o.ProxyClientKeyFile, "proxy-client-key-file", o.ProxyClientKeyFile, "PEM file of the private key of --proxy-client-cert-file")
	fs.StringVar(&o.MappingFile, "mapping-file", o.MappingFile, "YAML file with a list of servers beside the shards, and of the paths that they serve; an entry for /clusters/ stands for --shard-ca-file, --proxy-client-cert-file and --proxy-client-key-file")
	o.Mounts.addFlags(fss.FlagSet("Mounts"))
	fs = fss.FlagSet("Serving")
	o.Serving.AddFlags(fs)
	fs.StringVar(&o.IndexDirectory, "index-directory", o.IndexDirectory, "directory for files of what is known of each shard, with which the next start serves at once, before shards have answered; of this process alone. Nothing is kept without it")
	fs.DurationVar(&o.IndexTimeout, "index-timeout", o.IndexTimeout, "for how long a request for an unknown logical cluster waits for it to appear, before it is refused")
	fs.DurationVar(&o.WorkspaceReadyTimeout, "workspace-ready-timeout", o.WorkspaceReadyTimeout, "for how long a request for a new workspace, of its owner or of others who may enter it, waits for the workspace to become ready, before it is told to come again")
	fs.DurationVar(&o.ShutdownDelay, "shutdown-delay-duration", o.ShutdownDelay, "for how long requests are still served when the front-proxy is to stop, while /readyz fails and clients are asked to connect elsewhere; as long as what stands before it takes to notice")
	fs = fss.FlagSet("Authentication")
	o.Authentication.AddFlags(fs)
	fs.StringSliceVar(&o.PassOnGroups, "authentication-pass-on-groups", o.PassOnGroups, "groups that users keep when their requests are forwarded to a shard, \"prefix*\" for all that begin so; empty for all but those of --authentication-drop-groups, which are taken from all users here, system:masters included")
	o.Serving.Audit.AddFlags(fss.FlagSet("Audit"))
	return fss
}

// CompletedOptions are options whose defaults are filled in. Only Complete
// makes them, and nothing changes them.
type CompletedOptions struct{ completedOptions }

type completedOptions struct{ Options }

// Complete fills in what is not set. It leaves o as it is.
func (o *Options) Complete() CompletedOptions {
	c := *o
	c.Authentication.Workspaces.Enabled = c.Authentication.Workspaces.Enabled && c.Serving.FeatureGates.Enabled(features.WorkspaceAuthentication)
	c.Serving.BindAddress = cmp.Or(c.Serving.BindAddress, NewOptions().Serving.BindAddress)
	return CompletedOptions{completedOptions{c}}
}

// Warnings returns what the front-proxy lacks without flags that are optional.
func (o CompletedOptions) Warnings() []string { return o.Authentication.Warnings() }

// Validate returns all that is wrong with the options, in the order of their
// fields, naming the flags.
func (o CompletedOptions) Validate() error {
	errs := o.validateFiles()
	if _, others, _ := o.Serving.FeatureGates.Split(); len(others) > 0 {
		errs = append(errs, fmt.Errorf("--feature-gates: the front-proxy has no features %s: it serves no API of Kubernetes", strings.Join(slices.Sorted(maps.Keys(others)), ", ")))
	}
	for _, shard := range o.OtherShards {
		if at, err := url.Parse(shard); err != nil || at.Scheme != "https" || at.Host == "" {
			errs = append(errs, fmt.Errorf("--other-shards %q is no https URL", shard))
		}
	}
	if o.IndexTimeout < 0 || o.IndexTimeout > maxIndexTimeout {
		errs = append(errs, fmt.Errorf("--index-timeout %s is not between 0 and %s", o.IndexTimeout, maxIndexTimeout))
	}
	if o.ShutdownDelay < 0 {
		errs = append(errs, fmt.Errorf("--shutdown-delay-duration %s is negative", o.ShutdownDelay))
	}
	if o.WorkspaceReadyTimeout < 0 || o.WorkspaceReadyTimeout > maxReadyTimeout {
		errs = append(errs, fmt.Errorf("--workspace-ready-timeout %s is not between 0 and %s", o.WorkspaceReadyTimeout, maxReadyTimeout))
	}
	if file := o.Mounts.ClientCertFile; file != "" && samePath(file, o.ProxyClientCertFile) {
		errs = append(errs, errors.New("--mount-client-cert-file is that of --proxy-client-cert-file, which shards believe: mounted servers must not see it"))
	}
	return errors.Join(slices.Concat(errs, o.Mounts.validate(), o.Serving.Validate(), o.Authentication.Validate())...)
}

// validateFiles returns which files are missing. What the mapping file may give is missing
// for certain once that has been read.
func (o CompletedOptions) validateFiles() (errs []error) {
	for _, required := range []struct{ flag, value, why string }{
		{"root-kubeconfig", o.RootKubeconfig, "the shards are found through the root shard"},
		{"shard-ca-file", o.ShardCAFile, "the shards could not be told from impostors without it"},
		{"shard-client-cert-file", o.ShardClientCertFile, "the index is read from the shards with it"},
		{"shard-client-key-file", o.ShardClientKeyFile, "the index is read from the shards with it"},
		{"proxy-client-cert-file", o.ProxyClientCertFile, "the shards believe the front-proxy's word about users because of it"},
		{"proxy-client-key-file", o.ProxyClientKeyFile, "the shards believe the front-proxy's word about users because of it"},
	} {
		mayBeMapped := slices.Contains([]string{"shard-ca-file", "proxy-client-cert-file", "proxy-client-key-file"}, required.flag)
		if required.value == "" && (o.MappingFile == "" || !mayBeMapped) {
			errs = append(errs, fmt.Errorf("--%s is required: %s", required.flag, required.why))
		}
	}
	return errs
}

// MountOptions say how servers are reached that tenants mount.
type MountOptions struct {
	// CAFile holds the CAs of their serving certificates; empty for those of the system.
	CAFile string
	// AllowedCIDRs are the ranges that they may have addresses in beside public ones.
	AllowedCIDRs []string
	// TrustedHosts are told who users are, and may be at any address.
	TrustedHosts []string
	// ClientCertFile and ClientKeyFile are the certificate for them.
	ClientCertFile, ClientKeyFile string
}

func (o *MountOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.CAFile, "mount-ca-file", o.CAFile, "PEM file of the CAs of the serving certificates of servers that workspaces mount; those of the system by default")
	fs.StringSliceVar(&o.AllowedCIDRs, "mount-allowed-cidrs", o.AllowedCIDRs,
		"ranges of addresses, such as 10.96.0.0/12, in which servers that workspaces mount may be beside public addresses; loopback, link-local, private and reserved ones are refused otherwise. Every tenant can send requests to what is in them")
	fs.StringSliceVar(&o.TrustedHosts, "mount-trusted-hosts", o.TrustedHosts,
		"hosts, such as example.com:6443, of servers that are told in X-Remote-* headers who users are when workspaces mount them; they may have any address, and must believe nobody without the certificate of --mount-client-cert-file. No other server is told")
	fs.StringVar(&o.ClientCertFile, "mount-client-cert-file", o.ClientCertFile, "PEM file of the client certificate for --mount-trusted-hosts; not the one of --proxy-client-cert-file, which shards believe")
	fs.StringVar(&o.ClientKeyFile, "mount-client-key-file", o.ClientKeyFile, "PEM file of the private key of --mount-client-cert-file")
}

// take fills in the certificates for shards that the entry for /clusters/ names.
func (o *CompletedOptions) take(clusters *mappingEntry) error {
	for _, give := range []struct {
		field, flag, value string
		to                 *string
	}{
		{"backend_server_ca", "shard-ca-file", clusters.serverCA, &o.ShardCAFile},
		{"proxy_client_cert", "proxy-client-cert-file", clusters.clientCert, &o.ProxyClientCertFile},
		{"proxy_client_key", "proxy-client-key-file", clusters.clientKey, &o.ProxyClientKeyFile},
	} {
		if *give.to != "" && !samePath(*give.to, give.value) {
			return fmt.Errorf("the entry for /clusters/ gives %s %q, and --%s is %q: leave one of the two out", give.field, give.value, give.flag, *give.to)
		}
		*give.to = give.value
	}
	return nil
}

// samePath reports whether two names are of the same file, as they are written.
func samePath(a, b string) bool {
	a, errA := filepath.Abs(a)
	b, errB := filepath.Abs(b)
	return errA == nil && errB == nil && a == b
}

const flagMountCIDRs = "--mount-allowed-cidrs"

// validate returns what is wrong with the options.
func (o *MountOptions) validate() (errs []error) {
	if _, err := webhooktransport.NewDialer(flagMountCIDRs, o.AllowedCIDRs); err != nil {
		errs = append(errs, err)
	}
	for _, host := range o.TrustedHosts {
		if at, err := url.Parse("https://" + host); err != nil || at.Hostname() == "" || at.Host != host {
			errs = append(errs, fmt.Errorf("--mount-trusted-hosts: %q is not a host such as example.com or example.com:6443", host))
		}
	}
	switch {
	case (o.ClientCertFile == "") != (o.ClientKeyFile == ""):
		errs = append(errs, errors.New("--mount-client-cert-file and --mount-client-key-file belong together"))
	case len(o.TrustedHosts) > 0 && o.ClientCertFile == "":
		errs = append(errs, errors.New("--mount-trusted-hosts needs --mount-client-cert-file: these servers could not tell the front-proxy from anybody else"))
	case len(o.TrustedHosts) == 0 && o.ClientCertFile != "":
		errs = append(errs, errors.New("--mount-client-cert-file is for --mount-trusted-hosts, and there are none"))
	}
	return errs
}
