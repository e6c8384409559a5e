package limits

import (
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
)

// defaultMaxBytes is a sixteenth of the quota of an embedded etcd.
const defaultMaxBytes = 512 << 20

const (
	// defaultMaxReplicated and defaultMaxReplicatedBytes are what a logical cluster may have on the cache server of
	// what it selects itself, too.
	defaultMaxReplicated      = 10000
	defaultMaxReplicatedBytes = 64 << 20
)

// Options are the limits of logical clusters that have no annotations of their own.
type Options struct {
	// MaxObjects is how many objects a logical cluster may hold, without Events; 0
	// means any number.
	MaxObjects int64
	// MaxBytes is how many bytes a logical cluster may store; 0 means any amount.
	MaxBytes int64
	// MaxReplicated is how many objects a logical cluster may hold of each kind that is replicated to the cache
	// server, and MaxReplicatedBytes how much these may be; 0 means any.
	MaxReplicated, MaxReplicatedBytes int64
}

// NewOptions returns the defaults.
func NewOptions() Options {
	return Options{MaxBytes: defaultMaxBytes, MaxReplicated: defaultMaxReplicated, MaxReplicatedBytes: defaultMaxReplicatedBytes}
}

// The flags that set them.
const (
	objectsFlag = "logical-cluster-total-object-limit"
	bytesFlag   = "logical-cluster-total-bytes-limit"

	replicatedFlag      = "max-replicated-objects"
	replicatedBytesFlag = "max-replicated-bytes"
)

// AddFlags adds the flags of o to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.Int64Var(&o.MaxObjects, objectsFlag, o.MaxObjects, "how many objects a logical cluster may hold, all kinds together but without Events; 0 means any number. The annotation core.kcp.io/max-total-objects of a LogicalCluster wins; root and system:* have no limit by default")
	fs.Var(Quantity{&o.MaxBytes}, bytesFlag, "how much a logical cluster may store in etcd; 0 means any amount. The annotation core.shardplane.io/max-total-bytes of a LogicalCluster wins; root and system:* have no limit by default")
	fs.Int64Var(&o.MaxReplicated, replicatedFlag, o.MaxReplicated, "how many objects a logical cluster may hold of each kind that is replicated to the cache server, such as APIExports, replicated or not; 0 means any number. root and system:* have no limit")
	fs.Var(Quantity{&o.MaxReplicatedBytes}, replicatedBytesFlag, "how much a logical cluster may store of each kind that is replicated to the cache server, such as APIExports; 0 means any amount. root and system:* have no limit")
}

// Validate returns what is wrong with o.
func (o *Options) Validate() []error {
	var errs []error
	if o.MaxObjects < 0 {
		errs = append(errs, fmt.Errorf("--%s %d is negative: use 0 for any number", objectsFlag, o.MaxObjects))
	}
	if o.MaxBytes < 0 {
		errs = append(errs, fmt.Errorf("--%s %d is negative: use 0 for any amount", bytesFlag, o.MaxBytes))
	}
	if o.MaxReplicated < 0 {
		errs = append(errs, fmt.Errorf("--%s %d is negative: use 0 for any number", replicatedFlag, o.MaxReplicated))
	}
	if o.MaxReplicatedBytes < 0 {
		errs = append(errs, fmt.Errorf("--%s %d is negative: use 0 for any amount", replicatedBytesFlag, o.MaxReplicatedBytes))
	}
	return errs
}

// Quantity is a flag for a number that is written as a Kubernetes quantity.
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
