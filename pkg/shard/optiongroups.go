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

// CapacityOptions limit the load of a shard above which new workspaces are scheduled to other shards. Existing
// workspaces are not affected.
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

func newGarbageOptions() GarbageOptions {
	return GarbageOptions{Enabled: true, InitialDelay: defaultGarbageDelay}
}

// AddFlags adds the flags to fs.
func (o *GarbageOptions) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.Enabled, "enable-garbage-collector", o.Enabled, "delete objects whose owners no longer exist, and support the propagation policies of deletions; all replicas of a shard must have the same value")
	fs.DurationVar(&o.InitialDelay, "garbage-collector-initial-delay", o.InitialDelay, "delay before objects without existing owners are deleted that the shard finds when it first runs with --enable-garbage-collector; their number is logged")
}

// Validate returns the errors of o.
func (o *GarbageOptions) Validate() []error {
	if o.InitialDelay < 0 {
		return []error{errors.New("--garbage-collector-initial-delay must not be negative")}
	}
	return nil
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

func newHomeOptions() HomeOptions {
	return HomeOptions{Enabled: true, CreatorGroups: []string{user.AllAuthenticated}, Limits: limits.NewHomeLimits()}
}

// AddFlags adds the flags to fs.
func (o *HomeOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.CreatorGroups, "home-workspaces-home-creator-groups", o.CreatorGroups, "groups whose members may create their home workspace; existing home workspaces of other users remain")
	o.Limits.AddFlags(fs)
}

func (o HomeOptions) creators() []string {
	if !o.Enabled {
		return nil
	}
	return o.CreatorGroups
}
