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

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apiserver/pkg/authentication/user"
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

// RootName is the name of the shard that contains the logical cluster root.
const RootName = "root"

const defaultPort = 6444

// defaultSnapshotMaxAge limits how long revoked permissions of another shard remain effective if this shard restarts
// without the cache server.
const defaultSnapshotMaxAge = 24 * time.Hour

// defaultMaxCachedObjects protects the capacity of the cache server.
//
//reference:limit cluster --max-cached-objects | objects of all CachedResources | condition `ReplicationStarted`
const defaultMaxCachedObjects = 10_000

// defaultMaxCachedBytes protects the memory of the shards with consumers.
//
//reference:limit cluster --max-cached-bytes | size of the objects of all CachedResources | condition `ReplicationStarted`
const defaultMaxCachedBytes = 64 << 20

// Options are the command line options of a shard, which Flags describes.
type Options struct {
	Name                                                 string
	LeaderElect                                          bool
	ExternalURL, BaseURL, VirtualWorkspaceURL            string
	RootKubeconfig, CacheKubeconfig                      string
	ReplicaSnapshotMaxAge                                time.Duration
	MaxCachedObjects                                     int
	MaxCachedBytes                                       int64
	ShardClientCertFile, ShardClientKeyFile, ShardCAFile string
	RootCAFile                                           string

	Serving        serving.APIOptions
	Fairness       fairness.Options
	Authentication authn.Options
	Authorization  authz.Options
	Webhooks       webhooktransport.Options
	Etcd           etcd.Options
	Limits         limits.Options
	Capacity       CapacityOptions
	Encryption     encryption.Options
	Garbage        GarbageOptions
	Homes          HomeOptions
}

// NewOptions returns the default options of the root shard.
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
		Authorization:  authz.NewOptions(authn.OpenPaths()...),
		Etcd:           etcd.NewOptions(".shardplane", storage.DefaultPrefix),
		Limits:         limits.NewOptions(),
		Garbage:        GarbageOptions{Enabled: true, InitialDelay: defaultGarbageDelay},
		Homes:          HomeOptions{Enabled: true, CreatorGroups: []string{user.AllAuthenticated}, Limits: limits.NewHomeLimits()},
	}
	maps.Copy(o.Serving.Limits, ledger.Limits{
		ledger.RequestsPerCluster: 1000, ledger.RequestsPerUser: 1000,
		ledger.WatchesPerCluster: 5000, ledger.WatchesPerUser: 5000,
		ledger.WatchBytesPerCluster: 1 << 30, ledger.WatchBytesPerUser: 1 << 30,
		ledger.WebhookCallsPerCluster: webhooktransport.DefaultCallsPerCluster,
	})
	return o
}

// Flags returns the flags of all options by section.
func (o *Options) Flags() (fss cliflag.NamedFlagSets) {
	fs := fss.FlagSet("Identity")
	fs.StringVar(&o.Name, "name", o.Name, "name of the shard; the shard named root stores the logical cluster root")
	fs.BoolVar(&o.LeaderElect, "leader-elect", o.LeaderElect, "elect one of the replicas that share an external etcd to run the controllers; if a shard has one replica, false avoids waiting up to 15 s for its own lease after a crash")
	fs.StringVar(&o.ExternalURL, "external-url", o.ExternalURL, "URL of the front-proxy, the prefix of the URLs of workspaces; the URL of the shard by default")
	fs.StringVar(&o.BaseURL, "base-url", o.BaseURL, "URL of this shard for other shards and the front-proxy; derived from --bind-address and --secure-port by default")
	fs.StringVar(&o.VirtualWorkspaceURL, "virtual-workspace-url", o.VirtualWorkspaceURL, "URL of the virtual workspaces of this shard for clients, the prefix of the URLs in endpoint slices and workspace types, e.g. https://<front-proxy>/shards/<name> to go through a front-proxy; --base-url by default")
	fs = fss.FlagSet("Other components")
	fs.StringVar(&o.RootKubeconfig, "root-kubeconfig", o.RootKubeconfig, "kubeconfig for the root shard, with the user and group of --shard-client-cert-file; required for all shards except root")
	fs.StringVar(&o.CacheKubeconfig, "cache-kubeconfig", o.CacheKubeconfig, "kubeconfig for the cache server, with the user and group of --shard-client-cert-file; if empty, nothing is replicated")
	fs.DurationVar(&o.ReplicaSnapshotMaxAge, "replica-snapshot-max-age", o.ReplicaSnapshotMaxAge, "maximum age of the replica snapshot in <data-dir>/replicas that may be used if the cache server is unreachable at startup; 0 means no limit")
	fs.IntVar(&o.MaxCachedObjects, "max-cached-objects", o.MaxCachedObjects, "maximum number of objects that all CachedResources of a logical cluster replicate to the cache server; 0 means no limit")
	fs.Var(limits.Quantity{To: &o.MaxCachedBytes}, "max-cached-bytes", "maximum size of the objects that all CachedResources of a logical cluster replicate to the cache server; 0 means no limit")
	fs.StringVar(&o.ShardClientCertFile, "shard-client-cert-file", o.ShardClientCertFile, "PEM file of the client certificate for other shards: user system:shard:<name>, group system:kcp:shards")
	fs.StringVar(&o.ShardClientKeyFile, "shard-client-key-file", o.ShardClientKeyFile, "PEM file of the private key of --shard-client-cert-file")
	fs.StringVar(&o.ShardCAFile, "shard-ca-file", o.ShardCAFile, "PEM file of the CAs of other shards' serving certificates")
	o.Serving.AddFlags(fss.FlagSet("Serving"))
	fs = fss.FlagSet("Fairness")
	o.Fairness.AddFlags(fs)
	fs = fss.FlagSet("Authentication")
	o.Authentication.AddFlags(fs)
	fs.StringVar(&o.RootCAFile, "root-ca-file", o.RootCAFile, "PEM file of the CAs of the front-proxy's serving certificate, published in the ConfigMap kube-root-ca.crt of each namespace and as ca.crt in the token secrets of service accounts; if empty, there are no such ConfigMaps")
	o.Authorization.AddFlags(fss.FlagSet("Authorization"))
	o.Webhooks.AddFlags(fss.FlagSet("Webhooks of tenants"))
	o.Serving.Audit.AddFlags(fss.FlagSet("Audit"))
	fs = fss.FlagSet("Garbage collection")
	fs.BoolVar(&o.Garbage.Enabled, "enable-garbage-collector", o.Garbage.Enabled, "delete objects whose owners no longer exist, and support the propagation policies of deletions; all replicas of a shard must have the same value")
	fs.DurationVar(&o.Garbage.InitialDelay, "garbage-collector-initial-delay", o.Garbage.InitialDelay, "delay before the deletion of objects without existing owners that the shard finds at its first start with --enable-garbage-collector; their number is logged")
	fs = fss.FlagSet("Home workspaces")
	fs.StringSliceVar(&o.Homes.CreatorGroups, "home-workspaces-home-creator-groups", o.Homes.CreatorGroups, "groups whose members may create their home workspace; existing home workspaces of other users remain")
	o.Homes.Limits.AddFlags(fs)
	fs = fss.FlagSet("Storage")
	o.Etcd.AddFlags(fs)
	o.Limits.AddFlags(fs)
	o.Capacity.AddFlags(fs)
	o.Encryption.AddFlags(fs)
	return fss
}

// CompletedOptions are options with defaults. They must not be changed after Complete.
type CompletedOptions struct{ completedOptions }

type completedOptions struct{ Options }

// Complete sets the defaults that depend on other options. URLs that depend on the listener are set later.
func (o *Options) Complete() CompletedOptions {
	c := *o
	gates := c.Serving.FeatureGates
	if c.Homes.Enabled = c.Homes.Enabled && gates.Enabled(features.HomeWorkspaces); !c.Homes.Enabled {
		c.Homes.CreatorGroups = nil
	}
	c.Authentication.Workspaces.Enabled = c.Authentication.Workspaces.Enabled && gates.Enabled(features.WorkspaceAuthentication)
	return CompletedOptions{completedOptions{c}}
}

// urls returns the URLs of the shard and of the front-proxy, given the URL of the listener.
func (o CompletedOptions) urls(own string) (base, external string) {
	base = cmp.Or(o.BaseURL, own)
	return base, cmp.Or(o.ExternalURL, base)
}

// Warnings returns the consequences of missing optional flags.
func (o CompletedOptions) Warnings() []string {
	var warnings []string
	if o.CacheKubeconfig == "" {
		warnings = append(warnings, "--cache-kubeconfig is not set: nothing is replicated. "+
			"APIExports, WorkspaceTypes and permissions are not available across shards, so that bindings between shards are forbidden")
	}
	if o.RootCAFile == "" {
		warnings = append(warnings, "--root-ca-file is not set: namespaces have no ConfigMap kube-root-ca.crt, and token secrets no ca.crt")
	}
	if o.ExternalURL == "" {
		warnings = append(warnings, "--external-url is not set: the URLs of workspaces use this shard instead of a front-proxy")
	}
	if o.ExternalURL != "" && o.VirtualWorkspaceURL == "" {
		warnings = append(warnings, "--virtual-workspace-url is not set: the URLs in endpoint slices and workspace types use this shard, so that providers "+
			"that can only reach the front-proxy cannot use them")
	}
	return append(warnings, o.Authentication.Warnings()...)
}

// Root reports whether this is the root shard.
func (o CompletedOptions) Root() bool { return o.Name == RootName }

// Validate returns the errors of all options.
func (o CompletedOptions) Validate() error {
	var errs []error
	if !request.ValidName(o.Name) {
		errs = append(errs, fmt.Errorf("--name %q is not a valid shard name: use up to %d lower-case letters, digits and hyphens", o.Name, request.MaxNameLength))
	}
	for _, option := range []struct{ flag, value string }{{"--external-url", o.ExternalURL}, {"--base-url", o.BaseURL}, {"--virtual-workspace-url", o.VirtualWorkspaceURL}} {
		if u, err := url.Parse(option.value); option.value != "" && (err != nil || u.Scheme != "https" || u.Host == "") {
			errs = append(errs, fmt.Errorf("%s %q is not of the form https://host:port", option.flag, option.value))
		}
	}
	if o.Root() && o.RootKubeconfig != "" {
		errs = append(errs, errors.New("--root-kubeconfig is not used by the root shard: remove it or use another --name"))
	}
	if !o.Root() && o.RootKubeconfig == "" {
		errs = append(errs, fmt.Errorf("--root-kubeconfig is required: shard %q registers itself with the root shard", o.Name))
	}
	if o.ShardClientCertFile == "" || o.ShardClientKeyFile == "" || o.ShardCAFile == "" {
		errs = append(errs, errors.New("--shard-client-cert-file, --shard-client-key-file and --shard-ca-file are required: workspaces of one shard have logical clusters on others"))
	}
	errs = append(errs, notNegative("max-cached-objects", int64(o.MaxCachedObjects), "any number"), notNegative("max-cached-bytes", o.MaxCachedBytes, "any number"))
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
	if o.Garbage.InitialDelay < 0 {
		errs = append(errs, errors.New("--garbage-collector-initial-delay must not be negative"))
	}
	return errors.Join(slices.Concat(errs, o.Serving.Validate(), o.Fairness.Validate(), o.Authentication.Validate(),
		o.Authorization.Validate(), o.Webhooks.Validate(), o.Etcd.Validate(), o.Limits.Validate(), o.Homes.Limits.Validate(), o.Capacity.Validate(o.Etcd))...)
}

// notNegative returns an error if a limit is negative. unlimited is the meaning of 0.
func notNegative(flag string, value int64, unlimited string) error {
	if value >= 0 {
		return nil
	}
	return fmt.Errorf("--%s %d is negative: use 0 for %s", flag, value, unlimited)
}

// CapacityOptions limit the load of a shard above which new workspaces are scheduled to other shards.
type CapacityOptions struct {
	// MaxStorage is in bytes used in etcd. 0 means no limit.
	MaxWorkspaces, MaxObjects, MaxStorage int64
}

const (
	//reference:limit shard --max-workspaces | workspaces | new workspaces go to other shards, or wait
	maxWorkspacesFlag = "max-workspaces"
	//reference:limit shard --max-objects | objects | new workspaces go to other shards, or wait
	maxObjectsFlag = "max-objects"
	//reference:limit shard --max-storage | storage in etcd; 0: --etcd-quota-backend-bytes | new workspaces go to other shards, or wait
	maxStorageFlag = "max-storage"
)

// AddFlags adds the flags to fs.
func (o *CapacityOptions) AddFlags(fs *pflag.FlagSet) {
	fs.Int64Var(&o.MaxWorkspaces, maxWorkspacesFlag, o.MaxWorkspaces, "number of workspaces above which new workspaces are scheduled to other shards, or wait for one; 0 means no limit. From 90% on the shard accepts only workspaces that fit on no other shard")
	fs.Int64Var(&o.MaxObjects, maxObjectsFlag, o.MaxObjects, "number of objects of all logical clusters, except Events, above which new workspaces are scheduled to other shards, or wait for one; 0 means no limit")
	fs.Var(limits.Quantity{To: &o.MaxStorage}, maxStorageFlag, "storage used in etcd, including history, above which new workspaces are scheduled to other shards, or wait for one; 0 means the quota of etcd")
}

// Validate returns the errors of o.
func (o *CapacityOptions) Validate(etcd etcd.Options) []error {
	errs := []error{
		notNegative(maxWorkspacesFlag, o.MaxWorkspaces, "any number"), notNegative(maxObjectsFlag, o.MaxObjects, "any number"),
		notNegative(maxStorageFlag, o.MaxStorage, "as much as the quota of etcd allows"),
	}
	if quota := etcd.QuotaBytes; len(etcd.Servers) == 0 && quota > 0 && o.MaxStorage > quota {
		errs = append(errs, fmt.Errorf("--%s %s is more than --etcd-quota-backend-bytes, %d: raise the quota, or use a lower limit", maxStorageFlag, resource.NewQuantity(o.MaxStorage, resource.BinarySI), quota))
	}
	return errs
}

// defaultGarbageDelay allows an administrator to review the objects that will be deleted.
const defaultGarbageDelay = time.Hour

// GarbageOptions configure the garbage collector.
type GarbageOptions struct {
	Enabled bool
	// InitialDelay delays the deletion of objects that existed when the garbage collector was first enabled.
	InitialDelay time.Duration
}

// HomeOptions configure home workspaces.
type HomeOptions struct {
	// Enabled is set by a feature gate.
	Enabled bool
	// CreatorGroups are the groups whose members may create a home workspace.
	CreatorGroups []string
	// Limits apply to a home workspace with all workspaces below it.
	Limits limits.HomeLimits
}
