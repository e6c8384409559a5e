package shard

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"time"

	cliflag "k8s.io/component-base/cli/flag"

	"github.com/shardplane/shardplane/pkg/admission/limits"
	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/authz"
	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/fairness"
	"github.com/shardplane/shardplane/pkg/serving/features"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/encryption"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// RootName is the name of the shard that holds the logical cluster root.
const RootName = "root"

const defaultPort = 6444

// defaultSnapshotMaxAge is how long somebody may keep rights that were taken from them on
// another shard, where this one restarts without the cache server.
const defaultSnapshotMaxAge = 24 * time.Hour

// defaultMaxCachedObjects keeps one logical cluster from filling a cache server.
const defaultMaxCachedObjects = 10_000

// defaultMaxCachedBytes keeps one logical cluster from filling the memory of the shards on which it has
// consumers.
const defaultMaxCachedBytes = 64 << 20

// Options are the settings of a shard as a person gives them on the command
// line. Complete makes them usable.
type Options struct {
	// Name is the name of the shard and of its Shard object in root.
	Name string
	// LeaderElect has one of the replicas that share an external etcd run the
	// controllers.
	LeaderElect bool
	// ExternalURL is the address that users know, the front-proxy's; workspace
	// URLs start with it.
	ExternalURL string
	// BaseURL is where other shards and the front-proxy reach this shard.
	BaseURL string
	// VirtualWorkspaceURL is where clients reach the virtual workspaces of this shard.
	VirtualWorkspaceURL string
	// RootKubeconfig reaches the root shard. The root shard itself needs none.
	RootKubeconfig string
	// ReplicaSnapshotMaxAge is how old what was known of other shards may be that the
	// shard starts with; 0: any age.
	ReplicaSnapshotMaxAge time.Duration
	// CacheKubeconfig reaches the cache server. Without it nothing is replicated.
	CacheKubeconfig string
	// MaxCachedObjects is how many objects of a logical cluster cached resources replicate; 0 is
	// any number.
	MaxCachedObjects int
	// MaxCachedBytes is how many bytes these have; 0 is any number.
	MaxCachedBytes int64
	// ShardClientCertFile, ShardClientKeyFile and ShardCAFile are how this shard
	// reaches others.
	ShardClientCertFile, ShardClientKeyFile, ShardCAFile string
	// RootCAFile is what clients verify the front-proxy with. It is put into the
	// ConfigMap kube-root-ca.crt of each namespace, and into the secrets of service
	// accounts, as ca.crt.
	RootCAFile string
	// Serving are the listener, the API behind it and its audit log.
	Serving serving.APIOptions
	// Fairness says how the shard is shared among logical clusters.
	Fairness fairness.Options
	// Authentication says who may connect.
	Authentication authn.Options
	// Authorization says what decides who may do what.
	Authorization authz.Options
	// Webhooks say where tenants' webhooks may be, and how many are called.
	Webhooks webhooktransport.Options
	// Etcd says where the data is kept.
	Etcd etcd.Options
	// Limits say how much a logical cluster may store.
	Limits limits.Options
	// Capacity says how much the shard takes in all.
	Capacity CapacityOptions
	// Encryption says which resources are encrypted in etcd.
	Encryption encryption.Options
	// Garbage is for the deletion of objects whose owners are gone.
	Garbage GarbageOptions
	// Homes say who has a home workspace.
	Homes HomeOptions
}

// NewOptions returns the defaults of the root shard.
func NewOptions() *Options {
	o := &Options{
		Name:        RootName,
		LeaderElect: true,

		ReplicaSnapshotMaxAge: defaultSnapshotMaxAge,
		MaxCachedObjects:      defaultMaxCachedObjects,
		MaxCachedBytes:        defaultMaxCachedBytes,

		Serving:        serving.NewAPIOptions(defaultPort),
		Fairness:       fairness.NewOptions(),
		Authentication: authn.NewOptions(),
		Authorization:  authorizationOptions(),
		Etcd:           etcd.NewOptions(".shardplane", storage.DefaultPrefix),
		Limits:         limits.NewOptions(),
		Garbage:        newGarbageOptions(),
		Homes:          newHomeOptions(),
	}
	maps.Copy(o.Serving.Limits, ledger.Limits{
		ledger.RequestsPerCluster: 1000, ledger.RequestsPerUser: 1000,
		ledger.WatchesPerCluster: 5000, ledger.WatchesPerUser: 5000,
		ledger.WatchBytesPerCluster: 1 << 30, ledger.WatchBytesPerUser: 1 << 30,
		ledger.WebhookCallsPerCluster: webhooktransport.DefaultCallsPerCluster,
	})
	return o
}

// Flags returns the flags of all options, by the sections of the help.
func (o *Options) Flags() (fss cliflag.NamedFlagSets) {
	fs := fss.FlagSet("Identity")
	fs.StringVar(&o.Name, "name", o.Name, "name of the shard; the shard named root holds the logical cluster root")
	fs.BoolVar(&o.LeaderElect, "leader-elect", o.LeaderElect, "of the replicas that share an external etcd, let one run the controllers at a time; false spares a shard that has no replicas the wait for its own lease, 15 s, after a crash")
	fs.StringVar(&o.ExternalURL, "external-url", o.ExternalURL, "URL of the front-proxy, with which the URLs of workspaces start; the shard's own by default")
	fs.StringVar(&o.BaseURL, "base-url", o.BaseURL, "URL at which other shards and the front-proxy reach this shard; made of --bind-address and --secure-port by default")
	fs.StringVar(&o.VirtualWorkspaceURL, "virtual-workspace-url", o.VirtualWorkspaceURL, "URL at which clients reach the virtual workspaces of this shard, with which the URLs in endpoint slices and workspace types start; https://<front-proxy>/shards/<name> leads there through a front-proxy; --base-url by default")
	fs = fss.FlagSet("Other components")
	fs.StringVar(&o.RootKubeconfig, "root-kubeconfig", o.RootKubeconfig, "kubeconfig for the root shard, as the shard (see --shard-client-cert-file); required for every other shard")
	fs.StringVar(&o.CacheKubeconfig, "cache-kubeconfig", o.CacheKubeconfig, "kubeconfig for the cache server, as the shard (see --shard-client-cert-file); without it nothing is replicated")
	fs.DurationVar(&o.ReplicaSnapshotMaxAge, "replica-snapshot-max-age", o.ReplicaSnapshotMaxAge, "how old what was known of other shards may be, in <data-dir>/replicas, for the shard to start with it while the cache server is away; 0: any age")
	fs.IntVar(&o.MaxCachedObjects, "max-cached-objects", o.MaxCachedObjects, "how many objects of a logical cluster its CachedResources have on the cache server, all together; 0 means any number")
	fs.Var(limits.Quantity{To: &o.MaxCachedBytes}, "max-cached-bytes", "how many bytes the objects have that the CachedResources of a logical cluster have on the cache server, all together; 0 means any number")
	fs.StringVar(&o.ShardClientCertFile, "shard-client-cert-file", o.ShardClientCertFile, "PEM file of the client certificate for other shards: user system:shard:<name>, group system:kcp:shards")
	fs.StringVar(&o.ShardClientKeyFile, "shard-client-key-file", o.ShardClientKeyFile, "PEM file of the private key of --shard-client-cert-file")
	fs.StringVar(&o.ShardCAFile, "shard-ca-file", o.ShardCAFile, "PEM file of the CAs of other shards' serving certificates")
	o.Serving.AddFlags(fss.FlagSet("Serving"))
	fs = fss.FlagSet("Fairness")
	o.Fairness.AddFlags(fs)
	fs = fss.FlagSet("Authentication")
	o.Authentication.AddFlags(fs)
	fs.StringVar(&o.RootCAFile, "root-ca-file", o.RootCAFile, "PEM file of the CAs of the front-proxy's serving certificate, which goes into the ConfigMap kube-root-ca.crt of each namespace and into the token secrets of service accounts, as ca.crt; without it there are no such ConfigMaps")
	o.Authorization.AddFlags(fss.FlagSet("Authorization"))
	o.Webhooks.AddFlags(fss.FlagSet("Webhooks of tenants"))
	o.Serving.Audit.AddFlags(fss.FlagSet("Audit"))
	o.Garbage.AddFlags(fss.FlagSet("Garbage collection"))
	o.Homes.AddFlags(fss.FlagSet("Home workspaces"))
	fs = fss.FlagSet("Storage")
	o.Etcd.AddFlags(fs)
	o.Limits.AddFlags(fs)
	o.Capacity.AddFlags(fs)
	o.Encryption.AddFlags(fs)
	return fss
}

// CompletedOptions are options whose defaults are filled in. Only Complete
// makes them, and nothing changes them: what is opened later, as the listener,
// is handed along beside them.
type CompletedOptions struct{ completedOptions }

type completedOptions struct{ Options }

// Complete fills in what is not set. The URLs wait for the listener, whose port
// may be any free one.
func (o *Options) Complete() CompletedOptions {
	c := *o
	gates := c.Serving.FeatureGates
	c.Homes.Enabled = c.Homes.Enabled && gates.Enabled(features.HomeWorkspaces)
	c.Authentication.Workspaces.Enabled = c.Authentication.Workspaces.Enabled && gates.Enabled(features.WorkspaceAuthentication)
	return CompletedOptions{completedOptions{c}}
}

// urls returns the shard's own URL and that of the front-proxy, of a shard that
// listens at own.
func (o CompletedOptions) urls(own string) (base, external string) {
	base = cmp.Or(o.BaseURL, own)
	return base, cmp.Or(o.ExternalURL, base)
}

// Warnings returns what the shard lacks without flags that are optional.
func (o CompletedOptions) Warnings() []string {
	var warnings []string
	if o.CacheKubeconfig == "" {
		warnings = append(warnings, "--cache-kubeconfig is not set: nothing is replicated. "+
			"APIExports, WorkspaceTypes and permissions of other shards are unknown here, and those of this shard there, so that bindings between shards are forbidden")
	}
	if o.RootCAFile == "" {
		warnings = append(warnings, "--root-ca-file is not set: namespaces have no ConfigMap kube-root-ca.crt, and token secrets no ca.crt")
	}
	if o.ExternalURL == "" {
		warnings = append(warnings, "--external-url is not set: the URLs of workspaces lead to this shard and not to a front-proxy")
	}
	if o.ExternalURL != "" && o.VirtualWorkspaceURL == "" {
		warnings = append(warnings, "--virtual-workspace-url is not set: the URLs in endpoint slices and workspace types lead to this shard, so that providers "+
			"which can connect to the front-proxy only cannot use them")
	}
	return append(warnings, o.Authentication.Warnings()...)
}

// Root reports whether this is the root shard.
func (o CompletedOptions) Root() bool { return o.Name == RootName }

// Validate returns all that is wrong with the options, in the order of their
// fields, naming the flags.
func (o CompletedOptions) Validate() error {
	var errs []error
	if !request.ValidName(o.Name) {
		errs = append(errs, fmt.Errorf("--name %q is not a shard's name: use up to %d lower-case letters, digits and hyphens", o.Name, request.MaxNameLength))
	}
	for _, option := range []struct{ flag, value string }{{"--external-url", o.ExternalURL}, {"--base-url", o.BaseURL}, {"--virtual-workspace-url", o.VirtualWorkspaceURL}} {
		if u, err := url.Parse(option.value); option.value != "" && (err != nil || u.Scheme != "https" || u.Host == "") {
			errs = append(errs, fmt.Errorf("%s %q is not of the form https://host:port", option.flag, option.value))
		}
	}
	if o.Root() && o.RootKubeconfig != "" {
		errs = append(errs, errors.New("--root-kubeconfig is for other shards than root: leave it out, or give the shard another --name"))
	}
	if !o.Root() && o.RootKubeconfig == "" {
		errs = append(errs, fmt.Errorf("--root-kubeconfig is required: shard %q registers itself with the root shard", o.Name))
	}
	if o.ShardClientCertFile == "" || o.ShardClientKeyFile == "" || o.ShardCAFile == "" {
		errs = append(errs, errors.New("--shard-client-cert-file, --shard-client-key-file and --shard-ca-file are required: workspaces of one shard have logical clusters on others"))
	}
	if o.MaxCachedObjects < 0 {
		errs = append(errs, fmt.Errorf("--max-cached-objects %d is negative: use 0 for any number", o.MaxCachedObjects))
	}
	if o.MaxCachedBytes < 0 {
		errs = append(errs, fmt.Errorf("--max-cached-bytes %d is negative: use 0 for any number", o.MaxCachedBytes))
	}
	for _, option := range []struct{ flag, file string }{
		{"--root-kubeconfig", o.RootKubeconfig},
		{"--cache-kubeconfig", o.CacheKubeconfig},
		{"--shard-client-cert-file", o.ShardClientCertFile},
		{"--shard-client-key-file", o.ShardClientKeyFile},
		{"--shard-ca-file", o.ShardCAFile},
		{"--root-ca-file", o.RootCAFile},
	} {
		if _, err := os.Stat(option.file); option.file != "" && err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", option.flag, err))
		}
	}
	return errors.Join(slices.Concat(errs, o.Serving.Validate(), o.Fairness.Validate(), o.Authentication.Validate(),
		o.Authorization.Validate(), o.Webhooks.Validate(), o.Etcd.Validate(), o.Limits.Validate(), o.Homes.Limits.Validate(), o.Capacity.Validate(o.Etcd), o.Garbage.Validate())...)
}

// authorizationOptions are the defaults: everybody may read the probes.
func authorizationOptions() authz.Options {
	paths := authn.ProbePaths()
	for _, path := range authn.ProbePaths() {
		paths = append(paths, path+"/*")
	}
	return authz.NewOptions(paths...)
}
