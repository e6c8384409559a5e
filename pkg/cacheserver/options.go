package cacheserver

import (
	"errors"
	"slices"

	"github.com/spf13/pflag"

	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/serving"
	"github.com/shardplane/shardplane/pkg/storage/encryption"
)

const (
	defaultPort    = 8012
	defaultDataDir = ".shardplane-cache"
	// defaultPrefix starts all keys. It differs from a shard's, so that a cache
	// server can share an external etcd with a shard.
	defaultPrefix = "/shardplane-cache"
)

// notForCacheServers are flags of the shared options for which the cache server
// has no use: nobody but the holders of client certificates talks to it.
var notForCacheServers = []string{
	"requestheader-client-ca-file", "requestheader-allowed-names", "dev-tokens",
	"authentication-config", "authentication-token-webhook-config-file", "authentication-token-webhook-version",
	"authentication-token-webhook-cache-ttl", "api-audiences", "service-account-issuer", "service-account-key-file",
	"service-account-signing-key-file", "service-account-max-token-expiration",
}

// Options are the cache server's settings as a person gives them on the command
// line. Complete makes them usable.
type Options struct {
	// Serving are the listener and its certificates.
	Serving *serving.Options
	// Etcd says where the data is kept.
	Etcd *etcd.Options
	// Encryption says which resources are encrypted in etcd.
	Encryption encryption.Options
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	return &Options{Serving: serving.NewOptions(defaultPort), Etcd: etcd.NewOptions(defaultDataDir, defaultPrefix)}
}

// AddFlags adds the flags of all options to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	shared := pflag.NewFlagSet("serving", pflag.ContinueOnError)
	o.Serving.AddFlags(shared)
	shared.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(notForCacheServers, f.Name) {
			fs.AddFlag(f)
		}
	})
	o.Etcd.AddFlags(fs)
	o.Encryption.AddFlags(fs)
}

// completedOptions can only be made by Complete.
type completedOptions struct {
	*Options
}

// CompletedOptions are options whose defaults are filled in.
type CompletedOptions struct {
	*completedOptions
}

// Complete fills in what is not set. It leaves o as it is.
func (o *Options) Complete() CompletedOptions {
	c := *o
	if c.Serving == nil {
		c.Serving = serving.NewOptions(defaultPort)
	}
	if c.Etcd == nil {
		c.Etcd = etcd.NewOptions(defaultDataDir, defaultPrefix)
	}
	return CompletedOptions{&completedOptions{Options: &c}}
}

// Validate says what is wrong with the options, all of it, naming the flags.
func (o CompletedOptions) Validate() error {
	errs := append(o.Serving.Validate(), o.Etcd.Validate()...)
	return errors.Join(append(errs, o.Encryption.Validate()...)...)
}
