package cacheserver

import (
	"errors"
	"fmt"
	"slices"
	"time"

	cliflag "k8s.io/component-base/cli/flag"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/cacheserver/relay"
	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/serving/features"
	"github.com/shardplane/shardplane/pkg/storage/encryption"
)

const (
	defaultPort    = 8012
	defaultDataDir = ".shardplane-cache"
	// defaultPrefix differs from that of a shard, so that both can share an external etcd.
	defaultPrefix = "/shardplane-cache"
	// defaultGracePeriod allows administrators to restore a Shard that was deleted by mistake.
	defaultGracePeriod = time.Hour
	gracePeriodFlag    = "removed-shard-grace-period"
	// defaultName is also the name in the logs of shards.
	defaultName        = "cache"
	relayConfigFlag    = "relay-config"
	syntheticDelayFlag = "synthetic-delay"
)

// Options are the command line options of a cache server.
type Options struct {
	Serving serving.APIOptions
	// Authentication configures client certificates, which all clients need.
	Authentication authn.ClientCertificateOptions
	Etcd           etcd.Options
	Encryption     encryption.Options
	// RemovedShardGracePeriod is the delay between the deletion of a Shard and the deletion of its
	// replicas.
	RemovedShardGracePeriod time.Duration
	// RelayConfig is a file with the cache servers that this one relays from. These know it by Name.
	Name, RelayConfig string
	// SyntheticDelay delays each request, for tests.
	SyntheticDelay time.Duration
	// Relays are the intervals of relays, which no flag sets.
	Relays relay.Timing
}

// NewOptions returns the default options.
func NewOptions() *Options {
	return &Options{
		Serving: serving.NewAPIOptions(defaultPort), Etcd: etcd.NewOptions(defaultDataDir, defaultPrefix),
		RemovedShardGracePeriod: defaultGracePeriod, Name: defaultName,
	}
}

// Flags returns the flags of all options by section.
func (o *Options) Flags() (fss cliflag.NamedFlagSets) {
	o.Serving.AddFlags(fss.FlagSet("Serving"))
	o.Authentication.AddFlags(fss.FlagSet("Authentication"))
	o.Serving.Audit.AddFlags(fss.FlagSet("Audit"))
	fs := fss.FlagSet("Storage")
	o.Etcd.AddFlags(fs)
	o.Encryption.AddFlags(fs)
	fs.DurationVar(&o.RemovedShardGracePeriod, gracePeriodFlag, o.RemovedShardGracePeriod, "delay between the deletion of a Shard in root and the deletion of its replicas, in which the Shard can be recreated without interruption")
	fs = fss.FlagSet("Relays")
	fs.StringVar(&o.Name, relay.NameFlag, o.Name, "unique name of this cache server and of its replicas among cache servers that relay from each other")
	fs.StringVar(&o.RelayConfig, relayConfigFlag, o.RelayConfig, "file with the cache servers of other regions from which objects for the whole installation are relayed; see docs/cacheserver.md")
	fs = fss.FlagSet("Development")
	fs.DurationVar(&o.SyntheticDelay, syntheticDelayFlag, o.SyntheticDelay, "delay of each request, to test the effects of a slow cache server on shards; must be 0 otherwise")
	return fss
}

// CompletedOptions are options with defaults. They must not be changed after Complete.
type CompletedOptions struct{ completedOptions }

type completedOptions struct{ Options }

// Complete returns completed options. No default depends on another option.
func (o *Options) Complete() CompletedOptions { return CompletedOptions{completedOptions{*o}} }

// Warnings returns the consequences of missing optional flags, of which there are none.
func (o CompletedOptions) Warnings() []string { return nil }

func (o CompletedOptions) relays() (relay.Config, error) {
	if o.RelayConfig == "" {
		return relay.Config{}, nil
	}
	config, err := relay.Load(o.RelayConfig, o.Name)
	if err != nil {
		return config, fmt.Errorf("--%s: %w", relayConfigFlag, err)
	}
	return config, nil
}

// Validate returns the errors of all options.
func (o CompletedOptions) Validate() error {
	errs := slices.Concat(o.Serving.Validate(), o.Authentication.Validate(), o.Etcd.Validate())
	if o.RemovedShardGracePeriod < 0 {
		errs = append(errs, fmt.Errorf("--%s %s is negative: use 0 to delete replicas immediately", gracePeriodFlag, o.RemovedShardGracePeriod))
	}
	if o.SyntheticDelay < 0 {
		errs = append(errs, fmt.Errorf("--%s %s is negative: use 0 for no delay", syntheticDelayFlag, o.SyntheticDelay))
	}
	if !request.ValidName(o.Name) {
		errs = append(errs, fmt.Errorf("--%s %q is not a valid name: use up to %d lower-case letters, digits and hyphens", relay.NameFlag, o.Name, request.MaxNameLength))
	}
	if _, err := o.relays(); err != nil {
		errs = append(errs, err)
	}
	if o.RelayConfig != "" && !o.Serving.FeatureGates.Enabled(features.CacheRelays) {
		errs = append(errs, fmt.Errorf("--%s needs --feature-gates=%s=true", relayConfigFlag, features.CacheRelays))
	}
	return errors.Join(errs...)
}
