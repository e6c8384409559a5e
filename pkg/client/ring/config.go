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
	defaultLeaseDuration  = 15 * time.Second
	defaultRebalanceDelay = 2 * time.Second

	// randomLength is the length of the random suffix of ids.
	randomLength = 8
)

// Config configures a member of a ring. LeaseDuration, RenewDeadline, GracePeriod and Key must be the same for all
// members. Zero values mean defaults.
type Config struct {
	// Name is the name of the ring, and of its Lease.
	Name string
	// ID identifies the member for users; the default is the host name. It need not be unique.
	ID string
	// Leases is the logical cluster of the Leases, and Namespace their namespace.
	Leases    client.Scope
	Namespace string
	// Key is the property by which objects are divided: client.ByCluster for controllers.
	Key client.ShardKey
	// Weight is the relative capacity of the member; 1 by default.
	Weight int
	// LeaseDuration is the time after which others expel a member that does not renew its Lease; 15 s by default.
	LeaseDuration time.Duration
	// RenewDeadline is the time for which a member continues to work after it sent the last successful
	// renewal; 3/5 of LeaseDuration (9 s) by default. RenewDeadline and GracePeriod must not exceed 4/5 of
	// LeaseDuration.
	RenewDeadline time.Duration
	// RenewInterval is the time between renewals, at most RenewDeadline/2; 1/5 of LeaseDuration (3 s) by default.
	RenewInterval time.Duration
	// GracePeriod is the time in which work must end after its context; 1/5 of LeaseDuration (3 s) by default.
	GracePeriod time.Duration
	// RebalanceDelay is the time for which joins and leaves are collected into one change; 2 s by default.
	RebalanceDelay time.Duration
	// LoadTimeout limits the time for which a member continues work in slots that move to another member;
	// LeaseDuration by default.
	LoadTimeout time.Duration
	// ContinueIfIsolated continues the work of a member that cannot renew its Lease until the member observes that
	// others own it, instead of stopping it after RenewDeadline. Two members may then work on one hash.
	ContinueIfIsolated bool
	// Metrics registers the metrics of the ring while it runs, unless it is nil.
	Metrics prometheus.Registerer
}

// ErrOverrun is wrapped by the error of Run if work did not end within GracePeriod after its context. The process must
// exit immediately.
var ErrOverrun = errors.New("work did not end in time")

var errConfig = errors.New("invalid configuration of ring")

func (c Config) complete() (Config, error) {
	if c.ID == "" {
		host, err := os.Hostname()
		if err != nil {
			return c, fmt.Errorf("%w %q: set ID, because the host name cannot be determined: %w", errConfig, c.Name, err)
		}
		c.ID = strings.ToLower(host)
	}
	c.Weight = cmp.Or(c.Weight, 1)
	c.LeaseDuration = cmp.Or(c.LeaseDuration, defaultLeaseDuration)
	c.RenewDeadline = cmp.Or(c.RenewDeadline, c.LeaseDuration/5*3)
	c.RenewInterval = cmp.Or(c.RenewInterval, c.LeaseDuration/5)
	c.GracePeriod = cmp.Or(c.GracePeriod, c.LeaseDuration/5)
	c.RebalanceDelay = cmp.Or(c.RebalanceDelay, defaultRebalanceDelay)
	c.LoadTimeout = cmp.Or(c.LoadTimeout, c.LeaseDuration)
	if problem := c.problem(); problem != "" {
		return c, fmt.Errorf("%w %q: %s", errConfig, c.Name, problem)
	}
	return c, nil
}

func (c Config) problem() string {
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
			return fmt.Sprintf("%s is %s: must be positive, or 0 for the default", d.name, d.d)
		}
	}
	switch {
	case c.Name == "":
		return "Name is required, and must be the same for all members of the ring"
	case len(validation.IsDNS1123Label(c.Name)) > 0:
		return "Name must be valid as the name of a Lease and as a label: " + validation.IsDNS1123Label(c.Name)[0]
	case len(validation.IsDNS1123Subdomain(leaseName(c.Name, c.ID+"-"+strings.Repeat("x", randomLength)))) > 0:
		return fmt.Sprintf("ID %q is part of the name of a Lease: use only lower-case letters, digits, - and .", c.ID)
	case c.Leases == client.Scope{}:
		return "Leases is required: set the logical cluster with the Leases of all members, e.g. factory.Cluster(path)"
	case c.Leases.String() == "*":
		return "Leases must not be all logical clusters: set the one with the Leases of all members, e.g. factory.Cluster(path)"
	case c.Namespace == "":
		return "Namespace is required, and all members must be allowed to write Leases in it"
	case c.Weight < 0 || c.Weight > maxWeight:
		return fmt.Sprintf("Weight is %d: must be 1 to %d, relative to other members", c.Weight, maxWeight)
	case c.RenewDeadline >= c.LeaseDuration:
		return fmt.Sprintf("RenewDeadline is %s and LeaseDuration is %s: RenewDeadline must be lower, because a member must stop before others take over", c.RenewDeadline, c.LeaseDuration)
	case c.RenewDeadline+c.GracePeriod > c.LeaseDuration/5*4:
		return fmt.Sprintf("RenewDeadline plus GracePeriod is %s and LeaseDuration is %s: LeaseDuration must be at least %s, so that work ends before members with faster clocks take over", c.RenewDeadline+c.GracePeriod, c.LeaseDuration, (c.RenewDeadline+c.GracePeriod)/4*5)
	case c.RenewInterval > c.RenewDeadline/2:
		return fmt.Sprintf("RenewInterval is %s: must be at most half of RenewDeadline, which is %s, so that one renewal may fail", c.RenewInterval, c.RenewDeadline)
	}
	return ""
}

// digest returns the settings that all members must share. Its format must not change between releases.
func (c Config) digest() string {
	return fmt.Sprintf("1 %s lease=%s deadline=%s grace=%s", c.Key.Path(), c.LeaseDuration, c.RenewDeadline, c.GracePeriod)
}

// requestTimeout limits the duration of a request, so that there is time for other requests before
// RenewDeadline.
func (c Config) requestTimeout() time.Duration { return c.RenewDeadline / 4 }
