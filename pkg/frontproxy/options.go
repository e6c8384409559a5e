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
	//reference:none
	maxIndexTimeout = 10 * time.Second
	//reference:limit request --workspace-ready-timeout | new workspace: time that a request waits for it | 503
	defaultReadyTimeout = 10 * time.Second
	//reference:none
	maxReadyTimeout = 30 * time.Second
)

// Options are the command line options of the front-proxy, which Flags describes. Complete makes them usable.
type Options struct {
	RootKubeconfig                          string
	OtherShards                             []string
	ShardCAFile                             string
	ShardClientCertFile, ShardClientKeyFile string
	ProxyClientCertFile, ProxyClientKeyFile string
	MappingFile                             string
	Mounts                                  MountOptions
	IndexDirectory                          string
	IndexTimeout                            time.Duration
	WorkspaceReadyTimeout                   time.Duration
	ShutdownDelay                           time.Duration
	// Serving configures the listener, and the audit log of the front-proxy's own responses.
	Serving        serving.Options
	Authentication authn.UserOptions
	// PassOnGroups are the groups in forwarded requests, except Authentication.DropGroups; see authn.GroupFilter.
	PassOnGroups []string
}

// NewOptions returns the default options.
func NewOptions() *Options {
	o := &Options{
		IndexTimeout:          defaultIndexTimeout,
		WorkspaceReadyTimeout: defaultReadyTimeout,
		Serving:               serving.NewOptions(defaultPort),
		Authentication:        authn.NewUserOptions(),
	}
	// These limits are higher than those of a shard, which also limits each logical cluster.
	o.Serving.Limits[ledger.RequestsPerUser], o.Serving.Limits[ledger.WatchesPerUser] = 3000, 15000
	return o
}

// Flags returns the flags of all options by section.
func (o *Options) Flags() (fss cliflag.NamedFlagSets) {
	fs := fss.FlagSet("Other components")
	fs.StringVar(&o.RootKubeconfig, "root-kubeconfig", o.RootKubeconfig, "kubeconfig for the root shard, whose user must be in system:masters; Shard objects are read from it")
	fs.StringSliceVar(&o.OtherShards, "other-shards", o.OtherShards, "URLs of shards, e.g. https://shard-1.example.com:6443, from which the list of shards is read, in this order, if root is unreachable at startup and --index-directory contains no files")
	fs.StringVar(&o.ShardCAFile, "shard-ca-file", o.ShardCAFile, "PEM file of the CAs of the shards' serving certificates")
	fs.StringVar(&o.ShardClientCertFile, "shard-client-cert-file", o.ShardClientCertFile, "PEM file of the client certificate, in system:masters, for reading the index from the shards")
	fs.StringVar(&o.ShardClientKeyFile, "shard-client-key-file", o.ShardClientKeyFile, "PEM file of the private key of --shard-client-cert-file")
	fs.StringVar(&o.ProxyClientCertFile, "proxy-client-cert-file", o.ProxyClientCertFile, "PEM file of the client certificate for forwarded requests, signed by the shards' request header CA")
	fs.StringVar(&o.ProxyClientKeyFile, "proxy-client-key-file", o.ProxyClientKeyFile, "PEM file of the private key of --proxy-client-cert-file")
	fs.StringVar(&o.MappingFile, "mapping-file", o.MappingFile, "YAML file with a list of additional servers and their paths; an entry for /clusters/ replaces --shard-ca-file, --proxy-client-cert-file and --proxy-client-key-file")
	o.Mounts.addFlags(fss.FlagSet("Mounts"))
	fs = fss.FlagSet("Serving")
	o.Serving.AddFlags(fs)
	fs.StringVar(&o.IndexDirectory, "index-directory", o.IndexDirectory, "directory for snapshots of the index, which allow the next start to serve before shards have responded; must not be shared between processes. If unset, no snapshots are saved")
	fs.DurationVar(&o.IndexTimeout, "index-timeout", o.IndexTimeout, "maximum time that a request for an unknown logical cluster waits for it to appear before it is rejected")
	fs.DurationVar(&o.WorkspaceReadyTimeout, "workspace-ready-timeout", o.WorkspaceReadyTimeout, "maximum time that a request of a user with access to a new workspace, e.g. its owner, waits for the workspace to become ready before it is rejected with Retry-After")
	fs.DurationVar(&o.ShutdownDelay, "shutdown-delay-duration", o.ShutdownDelay, "time for which requests are still served during shutdown, while /readyz fails and connections are closed after each response; should be at least the time in which a load balancer detects that /readyz fails")
	fs = fss.FlagSet("Authentication")
	o.Authentication.AddFlags(fs)
	fs.StringSliceVar(&o.PassOnGroups, "authentication-pass-on-groups", o.PassOnGroups, "groups that users keep in forwarded requests, \"prefix*\" for all groups with a prefix; if empty, all except those of --authentication-drop-groups, which are removed from all users, including system:masters")
	o.Serving.Audit.AddFlags(fss.FlagSet("Audit"))
	return fss
}

// CompletedOptions are options with defaults. Only Complete creates them, and they must not be changed.
type CompletedOptions struct{ completedOptions }

type completedOptions struct{ Options }

// Complete returns a copy of o with defaults.
func (o *Options) Complete() CompletedOptions {
	c := *o
	c.Authentication.Workspaces.Enabled = c.Authentication.Workspaces.Enabled && c.Serving.FeatureGates.Enabled(features.WorkspaceAuthentication)
	c.Serving.BindAddress = cmp.Or(c.Serving.BindAddress, NewOptions().Serving.BindAddress)
	return CompletedOptions{completedOptions{c}}
}

// Warnings returns the consequences of optional flags that are not set.
func (o CompletedOptions) Warnings() []string { return o.Authentication.Warnings() }

// Validate returns all errors in the options, in the order of their fields.
func (o CompletedOptions) Validate() error {
	errs := o.validateFiles()
	if others, _ := o.Serving.FeatureGates.Others(); len(others) > 0 {
		errs = append(errs, fmt.Errorf("--feature-gates: the front-proxy has no features %s, because it serves no Kubernetes APIs", strings.Join(slices.Sorted(maps.Keys(others)), ", ")))
	}
	for _, shard := range o.OtherShards {
		if at, err := url.Parse(shard); err != nil || at.Scheme != "https" || at.Host == "" {
			errs = append(errs, fmt.Errorf("--other-shards %q is not an https URL", shard))
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
		errs = append(errs, errors.New("--mount-client-cert-file must not be --proxy-client-cert-file, because shards trust that certificate"))
	}
	return errors.Join(slices.Concat(errs, o.Mounts.validate(), o.Serving.Validate(), o.Authentication.Validate())...)
}

// validateFiles returns the missing files. Files that the mapping file may specify are checked again after it was read.
func (o CompletedOptions) validateFiles() (errs []error) {
	for _, required := range []struct{ flag, value, why string }{
		{"root-kubeconfig", o.RootKubeconfig, "the shards are found through the root shard"},
		{"shard-ca-file", o.ShardCAFile, "it is needed to verify the shards"},
		{"shard-client-cert-file", o.ShardClientCertFile, "the index is read from the shards with it"},
		{"shard-client-key-file", o.ShardClientKeyFile, "the index is read from the shards with it"},
		{"proxy-client-cert-file", o.ProxyClientCertFile, "it authorizes the front-proxy to identify users to the shards"},
		{"proxy-client-key-file", o.ProxyClientKeyFile, "it authorizes the front-proxy to identify users to the shards"},
	} {
		mayBeMapped := slices.Contains([]string{"shard-ca-file", "proxy-client-cert-file", "proxy-client-key-file"}, required.flag)
		if required.value == "" && (o.MappingFile == "" || !mayBeMapped) {
			errs = append(errs, fmt.Errorf("--%s is required: %s", required.flag, required.why))
		}
	}
	return errs
}

// MountOptions configure connections to servers that tenants mount; see addFlags.
type MountOptions struct {
	CAFile string
	// AllowedCIDRs are the address ranges that are allowed in addition to public addresses.
	//
	//reference:limit server --mount-allowed-cidrs =public | addresses of mounted servers, except --mount-trusted-hosts | 503
	AllowedCIDRs                  []string
	TrustedHosts                  []string
	ClientCertFile, ClientKeyFile string
}

func (o *MountOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.CAFile, "mount-ca-file", o.CAFile, "PEM file of the CAs of the serving certificates of servers that workspaces mount; the system's CAs by default")
	fs.StringSliceVar(&o.AllowedCIDRs, "mount-allowed-cidrs", o.AllowedCIDRs,
		"address ranges, e.g. 10.96.0.0/12, of mounted servers in addition to public addresses; loopback, link-local, private and reserved addresses are rejected otherwise. All tenants can send requests to these ranges")
	fs.StringSliceVar(&o.TrustedHosts, "mount-trusted-hosts", o.TrustedHosts,
		"hosts, e.g. example.com:6443, of mounted servers that receive the user in X-Remote-* headers; they may have any address, and must reject these headers without the certificate of --mount-client-cert-file. No other server receives them")
	fs.StringVar(&o.ClientCertFile, "mount-client-cert-file", o.ClientCertFile, "PEM file of the client certificate for --mount-trusted-hosts; must not be that of --proxy-client-cert-file, which shards trust")
	fs.StringVar(&o.ClientKeyFile, "mount-client-key-file", o.ClientKeyFile, "PEM file of the private key of --mount-client-cert-file")
}

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
			return fmt.Errorf("the entry for /clusters/ specifies %s %q, but --%s is %q: remove one of them", give.field, give.value, give.flag, *give.to)
		}
		*give.to = give.value
	}
	return nil
}

// samePath reports whether two file names are equal after cleaning. It does not resolve links.
func samePath(a, b string) bool {
	a, errA := filepath.Abs(a)
	b, errB := filepath.Abs(b)
	return errA == nil && errB == nil && a == b
}

const flagMountCIDRs = "--mount-allowed-cidrs"

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
		errs = append(errs, errors.New("--mount-client-cert-file and --mount-client-key-file must be specified together"))
	case len(o.TrustedHosts) > 0 && o.ClientCertFile == "":
		errs = append(errs, errors.New("--mount-trusted-hosts requires --mount-client-cert-file, because these servers must authenticate the front-proxy"))
	case len(o.TrustedHosts) == 0 && o.ClientCertFile != "":
		errs = append(errs, errors.New("--mount-client-cert-file requires --mount-trusted-hosts"))
	}
	return errs
}
