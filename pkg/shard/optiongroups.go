package shard

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/admission/limits"
	"github.com/shardplane/shardplane/pkg/etcd"
)

// CapacityOptions say how much a shard takes before new workspaces go to others. It keeps
// what it has, and what is written there.
type CapacityOptions struct {
	// MaxWorkspaces and MaxObjects are numbers, and MaxStorage are bytes that etcd has in use;
	// 0 means any.
	MaxWorkspaces, MaxObjects, MaxStorage int64
}

// The flags that set them.
const (
	maxWorkspacesFlag = "max-workspaces"
	maxObjectsFlag    = "max-objects"
	maxStorageFlag    = "max-storage"
)

// AddFlags adds the flags to fs.
func (o *CapacityOptions) AddFlags(fs *pflag.FlagSet) {
	fs.Int64Var(&o.MaxWorkspaces, maxWorkspacesFlag, o.MaxWorkspaces, "how many workspaces the shard holds before new ones go to other shards, and wait while there is none; 0 means any number. From nine tenths on it takes those that fit nowhere else")
	fs.Int64Var(&o.MaxObjects, maxObjectsFlag, o.MaxObjects, "how many objects all logical clusters of the shard have, without Events, before new workspaces go to other shards, and wait while there is none; 0 means any number")
	fs.Var(limits.Quantity{To: &o.MaxStorage}, maxStorageFlag, "how much etcd has in use, history included, before new workspaces go to other shards, and wait while there is none; 0 means as much as the quota of etcd allows")
}

// Validate returns what is wrong with o.
func (o *CapacityOptions) Validate(etcd etcd.Options) []error {
	var errs []error
	for _, option := range []struct {
		flag, any string
		value     int64
	}{{maxWorkspacesFlag, "any number", o.MaxWorkspaces}, {maxObjectsFlag, "any number", o.MaxObjects}, {maxStorageFlag, "as much as the quota of etcd allows", o.MaxStorage}} {
		if option.value < 0 {
			errs = append(errs, fmt.Errorf("--%s %d is negative: use 0 for %s", option.flag, option.value, option.any))
		}
	}
	if quota := etcd.QuotaBytes; len(etcd.Servers) == 0 && quota > 0 && o.MaxStorage > quota {
		errs = append(errs, fmt.Errorf("--%s %s is more than --etcd-quota-backend-bytes, %d: raise that, or use less", maxStorageFlag, resource.NewQuantity(o.MaxStorage, resource.BinarySI), quota))
	}
	return errs
}

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

// HomeOptions say who has a home workspace.
type HomeOptions struct {
	// Enabled is whether there are any; a feature gate, and no flag, sets it.
	Enabled bool
	// CreatorGroups are the groups whose members may have one.
	CreatorGroups []string
	// Limits are what each may have, with all workspaces below it.
	Limits limits.HomeLimits
}

func newHomeOptions() HomeOptions {
	return HomeOptions{Enabled: true, CreatorGroups: []string{user.AllAuthenticated}, Limits: limits.NewHomeLimits()}
}

// AddFlags adds the flags to fs.
func (o *HomeOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.CreatorGroups, "home-workspaces-home-creator-groups", o.CreatorGroups, "groups whose members may create their home workspace; those of others stay")
	o.Limits.AddFlags(fs)
}

// creators returns the groups whose members may create a home workspace.
func (o HomeOptions) creators() []string {
	if !o.Enabled {
		return nil
	}
	return o.CreatorGroups
}
