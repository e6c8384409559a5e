package cacheserver

import (
	"errors"
	"slices"

	cliflag "k8s.io/component-base/cli/flag"

	"github.com/shardplane/shardplane/pkg/authn"
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
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	return &Options{Serving: serving.NewAPIOptions(defaultPort), Etcd: etcd.NewOptions(defaultDataDir, defaultPrefix)}
}

// Flags returns the flags of all options, by the sections of the help.
func (o *Options) Flags() (fss cliflag.NamedFlagSets) {
	o.Serving.AddFlags(fss.FlagSet("Serving"))
	o.Authentication.AddFlags(fss.FlagSet("Authentication"))
	o.Serving.Audit.AddFlags(fss.FlagSet("Audit"))
	fs := fss.FlagSet("Storage")
	o.Etcd.AddFlags(fs)
	o.Encryption.AddFlags(fs)
	return fss
}

// CompletedOptions are options whose defaults are filled in. Only Complete
// makes them, and nothing changes them.
type CompletedOptions struct{ completedOptions }

type completedOptions struct{ Options }

// Complete fills in what is not set: nothing is derived here. It leaves o as it
// is.
func (o *Options) Complete() CompletedOptions { return CompletedOptions{completedOptions{*o}} }

// Validate returns all that is wrong with the options, in the order of their
// fields, naming the flags.
func (o CompletedOptions) Validate() error {
	return errors.Join(slices.Concat(o.Serving.Validate(), o.Authentication.Validate(), o.Etcd.Validate(), o.Encryption.Validate())...)
}
