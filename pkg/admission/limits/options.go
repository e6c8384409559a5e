package limits

import (
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
)

// defaultMaxBytes is a sixteenth of the quota of an embedded etcd.
const defaultMaxBytes = "512Mi"

// Options are the limits of logical clusters that have no annotations of their own.
type Options struct {
	// MaxObjects is how many objects a logical cluster may hold, without Events; 0
	// means any number.
	MaxObjects int64
	// MaxBytes is how much a logical cluster may store; 0 means any amount.
	MaxBytes resource.QuantityValue
}

// NewOptions returns the defaults.
func NewOptions() Options {
	return Options{MaxBytes: resource.QuantityValue{Quantity: resource.MustParse(defaultMaxBytes)}}
}

// The flags that set them.
const (
	objectsFlag = "logical-cluster-total-object-limit"
	bytesFlag   = "logical-cluster-total-bytes-limit"
)

// AddFlags adds the flags of o to fs.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.Int64Var(&o.MaxObjects, objectsFlag, o.MaxObjects, "how many objects a logical cluster may hold, all kinds together but without Events; 0 means any number. The annotation core.kcp.io/max-total-objects of a LogicalCluster wins; root and system:* have no limit by default")
	fs.Var(&o.MaxBytes, bytesFlag, "how much a logical cluster may store in etcd; 0 means any amount. The annotation core.shardplane.io/max-total-bytes of a LogicalCluster wins; root and system:* have no limit by default")
}

// Validate returns what is wrong with o.
func (o *Options) Validate() []error {
	var errs []error
	if o.MaxObjects < 0 {
		errs = append(errs, fmt.Errorf("--%s %d is negative: use 0 for any number", objectsFlag, o.MaxObjects))
	}
	if o.MaxBytes.Sign() < 0 {
		errs = append(errs, fmt.Errorf("--%s %s is negative: use 0 for any amount", bytesFlag, o.MaxBytes.String()))
	}
	return errs
}
