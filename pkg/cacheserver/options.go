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
	// defaultPrefix starts all keys. It differs from a shard's, so that a cache
	// server can share an external etcd with a shard.
	defaultPrefix = "/shardplane-cache"
	// defaultGracePeriod is for those who delete a Shard by mistake.
	defaultGracePeriod = time.Hour
	gracePeriodFlag    = "removed-shard-grace-period"
	// defaultName is also what shards call their cache server.
	defaultName        = "cache"
	relayConfigFlag    = "relay-config"
	syntheticDelayFlag = "synthetic-delay"
)

// Options are the cache server's settings as a person gives them on the command
// line. Complete makes them usable.
type Options struct {
	// Serving are the listener, the API behind it and its audit log.
	Serving serving.APIOptions
	// Authentication says who may connect: nobody but the holders of client
	// certificates talks to a cache server.
	Authentication authn.ClientCertificateOptions
	// Etcd says where the data is kept.
	Etcd etcd.Options
	// Encryption says which resources are encrypted in etcd.
	Encryption encryption.Options
	// RemovedShardGracePeriod is how long after the deletion of a Shard the replicas of that
	// shard are deleted.
	RemovedShardGracePeriod time.Duration
	// Name is how other cache servers call this one, and RelayConfig a file that lists those from
	// which it relays what is meant for the whole installation.
	Name, RelayConfig string
	// SyntheticDelay is for how long each request is held back, to test what happens if it takes so long.
	SyntheticDelay time.Duration
	// Relays are the intervals of relays, which no flag sets.
	Relays relay.Timing
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	return &Options{
		Serving: serving.NewAPIOptions(defaultPort), Etcd: etcd.NewOptions(defaultDataDir, defaultPrefix),
		RemovedShardGracePeriod: defaultGracePeriod, Name: defaultName,
	}
}

// Flags returns the flags of all options, by the sections of the help.
func (o *Options) Flags() (fss cliflag.NamedFlagSets) {
	o.Serving.AddFlags(fss.FlagSet("Serving"))
	o.Authentication.AddFlags(fss.FlagSet("Authentication"))
	o.Serving.Audit.AddFlags(fss.FlagSet("Audit"))
	fs := fss.FlagSet("Storage")
	o.Etcd.AddFlags(fs)
	o.Encryption.AddFlags(fs)
	fs.DurationVar(&o.RemovedShardGracePeriod, gracePeriodFlag, o.RemovedShardGracePeriod, "how long after its Shard was deleted in root the replicas of a shard are deleted; until then the Shard can be made anew without a gap")
	fs = fss.FlagSet("Relays")
	fs.StringVar(&o.Name, relay.NameFlag, o.Name, "the name of this cache server, and of its replicas, among those that relay from each other, each of which needs another one")
	fs.StringVar(&o.RelayConfig, relayConfigFlag, o.RelayConfig, "a file that lists the cache servers of other regions from which this one relays what is meant for the whole installation; see docs/cacheserver.md")
	fs = fss.FlagSet("Development")
	fs.DurationVar(&o.SyntheticDelay, syntheticDelayFlag, o.SyntheticDelay, "hold each request back for so long before it is served, to test what a slow cache server does to shards; 0 is for all other use")
	return fss
}

// CompletedOptions are options whose defaults are filled in. Only Complete
// makes them, and nothing changes them.
type CompletedOptions struct{ completedOptions }

type completedOptions struct{ Options }

// Complete fills in what is not set: nothing is derived here. It leaves o as it
// is.
func (o *Options) Complete() CompletedOptions { return CompletedOptions{completedOptions{*o}} }

// Warnings returns what the cache server lacks without flags that are optional: nothing.
func (o CompletedOptions) Warnings() []string { return nil }

// relays are those of the flag.
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

// Validate returns all that is wrong with the options, in the order of their
// fields, naming the flags.
func (o CompletedOptions) Validate() error {
	var durations []error
	if o.RemovedShardGracePeriod < 0 {
		durations = append(durations, fmt.Errorf("--%s %s is negative: use 0 to delete replicas at once", gracePeriodFlag, o.RemovedShardGracePeriod))
	}
	if o.SyntheticDelay < 0 {
		durations = append(durations, fmt.Errorf("--%s %s is negative: use 0 to serve requests at once", syntheticDelayFlag, o.SyntheticDelay))
	}
	var relays []error
	if !request.ValidName(o.Name) {
		relays = append(relays, fmt.Errorf("--%s %q is none: use up to %d lower-case letters, digits and hyphens", relay.NameFlag, o.Name, request.MaxNameLength))
	}
	if _, err := o.relays(); err != nil {
		relays = append(relays, err)
	}
	if o.RelayConfig != "" && !o.Serving.FeatureGates.Enabled(features.CacheRelays) {
		relays = append(relays, fmt.Errorf("--%s needs --feature-gates=%s=true", relayConfigFlag, features.CacheRelays))
	}
	return errors.Join(slices.Concat(o.Serving.Validate(), o.Authentication.Validate(), o.Etcd.Validate(), durations, relays)...)
}
