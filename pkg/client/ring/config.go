package ring

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/shardplane/shardplane/pkg/client"
)

const (
	defaultMaxRanges = 16

	defaultLeaseDuration  = 15 * time.Second
	defaultRebalanceDelay = 2 * time.Second

	// randomLength is how much of an id makes sure that it never comes back.
	randomLength = 8
)

// Isolation says what a member does that cannot renew its Lease.
type Isolation int

const (
	// Stop has it stop working after RenewDeadline.
	Stop Isolation = iota
	// Continue has it go on with what it had, until it learns that others have that now. So
	// two may work on one hash: for work where that is better than none.
	Continue
)

// Config describes a member of a ring. LeaseDuration, RenewDeadline, GracePeriod and Key have to be
// the same for all members of a ring. What is 0 has the default.
type Config struct {
	// Name is the name of the ring, and of its Lease.
	Name string
	// ID tells people which member it is; the name of the host by default. Each start adds
	// random characters, so that it need not be unique.
	ID string
	// Leases is the logical cluster whose Leases the members meet at, and Namespace the
	// namespace there, in which all of them may get, list, watch, create, update and delete
	// Leases.
	Leases    client.Scope
	Namespace string
	// Key says by what objects are divided: client.ByCluster for controllers.
	Key client.ShardKey
	// Weight is how much the member takes in comparison with others; 1 by default.
	Weight int
	// MaxRanges is how many ranges of hashes a member has at most, where that can be had by
	// moving one slot of 256 more with each change; 16 by default.
	MaxRanges int
	// LeaseDuration is how long others wait for a member that is not heard of, before they
	// take what it has; 15 s by default. The next three follow it, if they are not set.
	LeaseDuration time.Duration
	// RenewDeadline is how long a member works after it has sent the last renewal of its
	// Lease that succeeded; three fifths of LeaseDuration by default, which are 9 s. RenewDeadline and GracePeriod together are four fifths
	// of LeaseDuration at most.
	RenewDeadline time.Duration
	// RenewInterval is the time between two renewals; a fifth of LeaseDuration by default,
	// which are 3 s, and half of RenewDeadline at most.
	RenewInterval time.Duration
	// GracePeriod is how long work may take to end when its context has ended; a fifth of
	// LeaseDuration by default, which are 3 s.
	GracePeriod time.Duration
	// RebalanceDelay is how long joins and leaves wait for others, to be one change; 2 s by default.
	RebalanceDelay time.Duration
	// LoadTimeout is how long a member goes on working on what moves away from it, while the
	// one that it moves to has not loaded it; LeaseDuration by default.
	LoadTimeout time.Duration
	// Isolation says what to do while the Leases cannot be reached.
	Isolation Isolation
	// Metrics has the metrics of the ring registered while it runs, unless it is nil.
	Metrics prometheus.Registerer
}

var (
	// ErrConfig is wrapped by the error of New for a configuration that makes no sense, and
	// of Run for one that is not that of the other members.
	ErrConfig = errors.New("configuration of the ring")
	// ErrOverrun is wrapped by the error of Run when work did not end within GracePeriod after its
	// context. The process has to end at once: others are about to begin that work.
	ErrOverrun = errors.New("work did not end in time")
	// ErrNotOwned is the cause of the end of a context of work on what this member has no
	// more.
	ErrNotOwned = errors.New("the hash is not this member's any more")
)

// complete returns the configuration with all defaults, or what is wrong with it.
func (c Config) complete() (Config, error) {
	if c.ID == "" {
		host, err := os.Hostname()
		if err != nil {
			return c, fmt.Errorf("%w: set ID, since the host has no name: %w", ErrConfig, err)
		}
		c.ID = strings.ToLower(host)
	}
	c.Weight = cmp.Or(c.Weight, 1)
	c.MaxRanges = cmp.Or(c.MaxRanges, defaultMaxRanges)
	c.LeaseDuration = cmp.Or(c.LeaseDuration, defaultLeaseDuration)
	c.RenewDeadline = cmp.Or(c.RenewDeadline, c.LeaseDuration/5*3)
	c.RenewInterval = cmp.Or(c.RenewInterval, c.LeaseDuration/5)
	c.GracePeriod = cmp.Or(c.GracePeriod, c.LeaseDuration/5)
	c.RebalanceDelay = cmp.Or(c.RebalanceDelay, defaultRebalanceDelay)
	c.LoadTimeout = cmp.Or(c.LoadTimeout, c.LeaseDuration)
	if wrong := c.wrong(); wrong != "" {
		return c, fmt.Errorf("%w %q: %s", ErrConfig, c.Name, wrong)
	}
	return c, nil
}

// wrong says what is wrong, and what to do about it.
func (c Config) wrong() string {
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"LeaseDuration", c.LeaseDuration},
		{"RenewDeadline", c.RenewDeadline},
		{"RenewInterval", c.RenewInterval},
		{"GracePeriod", c.GracePeriod},
		{"RebalanceDelay", c.RebalanceDelay},
		{"LoadTimeout", c.LoadTimeout},
	} {
		if d.d < 0 {
			return fmt.Sprintf("%s is %s: set a time above 0, or none for the default", d.name, d.d)
		}
	}
	switch {
	case c.Name == "":
		return "set Name, which all members of the ring share"
	case len(validation.IsDNS1123Label(c.Name)) > 0:
		return "Name is to be the name of a Lease, and a label: " + validation.IsDNS1123Label(c.Name)[0]
	case len(validation.IsDNS1123Subdomain(leaseName(c.Name, c.ID+"-"+strings.Repeat("x", randomLength)))) > 0:
		return fmt.Sprintf("ID %q is to be in the name of a Lease: set one of lower case letters, digits, - and .", c.ID)
	case c.Leases == client.Scope{}:
		return "set Leases to the logical cluster in which the members meet, such as factory.Cluster(path)"
	case c.Leases.String() == "*":
		return "Leases is all logical clusters: set the one in which the members meet, such as factory.Cluster(path)"
	case c.Namespace == "":
		return "set Namespace, in which all members may write Leases"
	case c.Weight < 0 || c.Weight > maxWeight:
		return fmt.Sprintf("Weight is %d: set 1 to %d, in comparison with other members", c.Weight, maxWeight)
	case c.MaxRanges < 0:
		return fmt.Sprintf("MaxRanges is %d: set 1 or more, or none for %d", c.MaxRanges, defaultMaxRanges)
	case c.RenewDeadline >= c.LeaseDuration:
		return fmt.Sprintf("RenewDeadline is %s and LeaseDuration %s: set RenewDeadline lower, since a member has to stop before others take over", c.RenewDeadline, c.LeaseDuration)
	case c.RenewDeadline+c.GracePeriod > c.LeaseDuration/5*4:
		return fmt.Sprintf("RenewDeadline and GracePeriod are %s, and LeaseDuration %s: make it %s at least, so that work has ended before others take over, whose clocks may run faster", c.RenewDeadline+c.GracePeriod, c.LeaseDuration, (c.RenewDeadline+c.GracePeriod)/4*5)
	case c.RenewInterval > c.RenewDeadline/2:
		return fmt.Sprintf("RenewInterval is %s: set half of RenewDeadline, which is %s, at most, so that one renewal may fail", c.RenewInterval, c.RenewDeadline)
	case c.Isolation != Stop && c.Isolation != Continue:
		return fmt.Sprintf("Isolation is %d: set Stop or Continue", c.Isolation)
	}
	return ""
}

// digest says in a few words what all members have to agree about. Those of another release
// have to write the same.
func (c Config) digest() string {
	return fmt.Sprintf("1 %s lease=%s deadline=%s grace=%s", c.Key.Path(), c.LeaseDuration, c.RenewDeadline, c.GracePeriod)
}

func (c Config) settings() settings {
	return settings{
		leaseDuration: c.LeaseDuration, renewDeadline: c.RenewDeadline, renewInterval: c.RenewInterval, gracePeriod: c.GracePeriod, rebalanceDelay: c.RebalanceDelay, loadTimeout: c.LoadTimeout,
		weight: c.Weight, maxRanges: c.MaxRanges, config: c.digest(), isolation: c.Isolation,
	}
}

// settings are what a member needs to know to take part.
type settings struct {
	leaseDuration, renewDeadline, renewInterval, gracePeriod, rebalanceDelay, loadTimeout time.Duration
	weight, maxRanges                                                                     int
	// config is the digest of what all members have to agree about.
	config string
	// isolation is what to do with the work while cut off.
	isolation Isolation
}

// retryInterval is when to try again what has failed.
func (s settings) retryInterval() time.Duration { return s.renewInterval / 6 }

// requestTimeout bounds a request, so that there is time for others before RenewDeadline.
func (s settings) requestTimeout() time.Duration { return s.renewDeadline / 4 }
