package shard

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/controllers/garbagecollector"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/usage"
)

// defaultGarbageDelay leaves an operator the time to read what is to be deleted.
const defaultGarbageDelay = time.Hour

// GarbageOptions are for the deletion of objects whose owners are gone.
type GarbageOptions struct {
	Enabled bool
	// InitialDelay is how long those wait that were there before it was ever enabled.
	InitialDelay time.Duration
}

func newGarbageOptions() GarbageOptions {
	return GarbageOptions{Enabled: true, InitialDelay: defaultGarbageDelay}
}

// AddFlags adds the flags.
func (o *GarbageOptions) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.Enabled, "enable-garbage-collector", o.Enabled, "delete objects whose owners are gone, by their owner references, and let deletions orphan dependents or wait for them; all replicas of a shard must have the same value")
	fs.DurationVar(&o.InitialDelay, "garbage-collector-initial-delay", o.InitialDelay, "how long objects whose owners are gone are kept that the shard finds when it first runs with --enable-garbage-collector; it says in its log how many there are")
}

// Validate returns what is wrong with the options.
func (o *GarbageOptions) Validate() []error {
	if o.InitialDelay < 0 {
		return []error{errors.New("--garbage-collector-initial-delay must not be negative")}
	}
	return nil
}

// garbage is what the garbage collector works with, or nil if there is none.
func (s *Server) garbage(loopback *rest.Config) (*garbagecollector.Config, error) {
	if !s.options.Garbage.Enabled {
		return nil, nil //nolint:nilnil // there is none
	}
	as := rest.CopyConfig(loopback)
	as.Impersonate = rest.ImpersonationConfig{UserName: garbagecollector.Username, Groups: []string{user.SystemPrivilegedGroup}}
	deleting, err := s.factory(as)
	if err != nil {
		return nil, fmt.Errorf("client of the garbage collector: %w", err)
	}
	return &garbagecollector.Config{
		Local: s.sources.Local, Deleting: deleting, InitialDelay: s.options.Garbage.InitialDelay,
		Store: storedObjects{s.usage, s.backend}, Kinds: s.customResources, Metrics: s.metrics,
	}, nil
}

// storedObjects implements garbagecollector.Store.
type storedObjects struct {
	*usage.Counter
	*storage.Backend
}
