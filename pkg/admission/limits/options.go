package limits

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// defaultMaxBytes is a sixteenth of the quota of an embedded etcd.
	defaultMaxBytes           = 512 << 20
	defaultMaxReplicated      = 10000
	defaultMaxReplicatedBytes = 64 << 20

	//reference:limit cluster --logical-cluster-total-object-limit @core.kcp.io/max-total-objects | objects without Events | 403
	objectsFlag = "logical-cluster-total-object-limit"
	//reference:limit cluster --logical-cluster-total-bytes-limit @core.shardplane.io/max-total-bytes | stored bytes | 403
	bytesFlag = "logical-cluster-total-bytes-limit"
	//reference:limit cluster --max-replicated-objects | objects of each replicated kind, e.g. APIExports, except in `root` and `system:*` | 403
	replicatedFlag = "max-replicated-objects"
	//reference:limit cluster --max-replicated-bytes | size of the objects of each replicated kind in etcd | 403
	replicatedBytesFlag = "max-replicated-bytes"
)

// Options are the limits of logical clusters without limit annotations; 0 means no limit.
type Options struct {
	// MaxObjects is the number of objects of all kinds, without Events, and MaxBytes the number of stored bytes.
	MaxObjects, MaxBytes int64
	// MaxReplicated and MaxReplicatedBytes apply to each kind that is replicated to the cache server.
	MaxReplicated, MaxReplicatedBytes int64
}

// NewOptions returns the defaults.
func NewOptions() Options {
	return Options{MaxBytes: defaultMaxBytes, MaxReplicated: defaultMaxReplicated, MaxReplicatedBytes: defaultMaxReplicatedBytes}
}

// AddFlags adds the flags of o to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.Int64Var(&o.MaxObjects, objectsFlag, o.MaxObjects, "maximum number of objects of all kinds in a logical cluster, without Events; 0 means no limit. The annotation core.kcp.io/max-total-objects of a LogicalCluster takes precedence; root and system:* have no limit by default")
	fs.Var(Quantity{&o.MaxBytes}, bytesFlag, "maximum number of bytes that a logical cluster may store in etcd; 0 means no limit. The annotation core.shardplane.io/max-total-bytes of a LogicalCluster takes precedence; root and system:* have no limit by default")
	fs.Int64Var(&o.MaxReplicated, replicatedFlag, o.MaxReplicated, "maximum number of objects in a logical cluster of each kind that is replicated to the cache server, e.g. APIExports, whether or not the objects are replicated; 0 means no limit. root and system:* have no limit")
	fs.Var(Quantity{&o.MaxReplicatedBytes}, replicatedBytesFlag, "maximum number of bytes that a logical cluster may store of each kind that is replicated to the cache server, e.g. APIExports; 0 means no limit. root and system:* have no limit")
}

// Validate returns the errors in o.
func (o *Options) Validate() []error {
	var errs []error
	for _, limit := range []struct {
		flag  string
		value int64
	}{
		{objectsFlag, o.MaxObjects}, {bytesFlag, o.MaxBytes}, {replicatedFlag, o.MaxReplicated}, {replicatedBytesFlag, o.MaxReplicatedBytes},
	} {
		if limit.value < 0 {
			errs = append(errs, fmt.Errorf("--%s %d is negative: use 0 for no limit", limit.flag, limit.value))
		}
	}
	return errs
}

// Quantity is a flag whose value is a Kubernetes quantity.
type Quantity struct{ To *int64 }

// String implements pflag.Value.
func (q Quantity) String() string {
	if q.To == nil {
		return ""
	}
	return resource.NewQuantity(*q.To, resource.BinarySI).String()
}

// Set implements pflag.Value.
func (q Quantity) Set(text string) error {
	parsed, err := resource.ParseQuantity(text)
	if err != nil {
		return fmt.Errorf("write a quantity such as 512Mi: %w", err)
	}
	*q.To = parsed.Value()
	return nil
}

// Type implements pflag.Value.
func (Quantity) Type() string { return "quantity" }

// HomeLimits limit each home workspace, together with all workspaces below it, on one shard; 0 means no
// limit. They exist because every user who can log in has a home workspace.
type HomeLimits struct {
	Objects, Bytes, Workspaces int64
}

const (
	//reference:limit cluster --home-workspaces-max-objects | home workspace and all workspaces below it: objects, on each shard | 403
	homeObjectsFlag = "home-workspaces-max-objects"
	//reference:limit cluster --home-workspaces-max-bytes | home workspace and all workspaces below it: size of the objects, on each shard | 403
	homeBytesFlag = "home-workspaces-max-bytes"
	//reference:limit cluster --home-workspaces-max-workspaces | home workspace and all workspaces below it: Workspaces, on each shard | 403
	homeWorkspacesFlag = "home-workspaces-max-workspaces"
)

// NewHomeLimits returns the defaults.
func NewHomeLimits() HomeLimits {
	const objects, bytes, workspaces = 20_000, 128 << 20, 100
	return HomeLimits{Objects: objects, Bytes: bytes, Workspaces: workspaces}
}

// AddFlags adds the flags of l to fs.
func (l *HomeLimits) AddFlags(fs *pflag.FlagSet) {
	fs.Int64Var(&l.Objects, homeObjectsFlag, l.Objects, "maximum number of objects, without Events, that a home workspace and all workspaces below it may have together on this shard; 0 means no limit. The annotation core.shardplane.io/max-subtree-objects of the home's LogicalCluster takes precedence")
	fs.Var(Quantity{&l.Bytes}, homeBytesFlag, "maximum number of bytes that a home workspace and all workspaces below it may store together on this shard; 0 means no limit. The annotation core.shardplane.io/max-subtree-bytes of the home's LogicalCluster takes precedence")
	fs.Int64Var(&l.Workspaces, homeWorkspacesFlag, l.Workspaces, "maximum number of Workspaces in a home workspace and all workspaces below it on this shard; 0 means no limit")
}

// Validate returns the errors in l.
func (l *HomeLimits) Validate() []error {
	if l.Objects < 0 || l.Bytes < 0 || l.Workspaces < 0 {
		return []error{errors.New("--" + homeObjectsFlag + ", --" + homeBytesFlag + " and --" + homeWorkspacesFlag + " must not be negative: use 0 for no limit")}
	}
	return nil
}
