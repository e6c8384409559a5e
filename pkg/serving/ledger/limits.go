package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/shardplane/shardplane/pkg/instruments"
)

// Limits that operators set.
const (
	AnonymousConnections   = "anonymous-connections"
	ConnectionsPerUser     = "connections-per-user"
	BodyBytes              = "body-bytes"
	BodyBytesPerUser       = "body-bytes-per-user"
	RequestsPerCluster     = "requests-per-cluster"
	RequestsPerUser        = "requests-per-user"
	WatchesPerCluster      = "watches-per-cluster"
	WatchesPerUser         = "watches-per-user"
	WatchBytesPerCluster   = "watch-bytes-per-cluster"
	WatchBytesPerUser      = "watch-bytes-per-user"
	WebhookCallsPerCluster = "webhook-calls-per-cluster"
)

// Resources that have limits.
const (
	BodyBytesResource   = BodyBytes
	ConnectionsResource = "connections"
	RequestsResource    = "requests"
	WatchesResource     = "watches"
	WatchBytesResource  = "watch-bytes"
)

// descriptions say in the help what a limit counts.
var descriptions = map[string]string{
	AnonymousConnections:   "connections on which nobody has authenticated; for one more, the oldest connection of the address that has most is closed",
	ConnectionsPerUser:     "connections",
	BodyBytes:              "bytes of request bodies in memory that arrive or wait for a seat, of all users",
	BodyBytesPerUser:       "the same of one user",
	RequestsPerCluster:     "requests in flight, including those that wait and without watches; one more for each 16 KiB of headers",
	RequestsPerUser:        "the same",
	WatchesPerCluster:      "open watches and upgraded connections; one more for each 16 KiB of headers, and for each four requirements, values and ranges of selectors",
	WatchesPerUser:         "the same",
	WatchBytesPerCluster:   "the sum of the largest event of each open watch, at least 64 KiB each",
	WatchBytesPerUser:      "the same",
	WebhookCallsPerCluster: "calls of admission webhooks, and of conversion webhooks, at a time; others wait for up to 10 s",
}

// Limits are the limits of a server by their names. 0 is no limit. They are a flag's value.
type Limits map[string]int64

// AddFlags adds the flag of all limits that l has to fs.
func (l Limits) AddFlags(fs *pflag.FlagSet) {
	usage := "limits, as <name>=<quantity> with commas between them; 0 is no limit. What exceeds one is answered with 429 and Retry-After. " +
		"One user gets at most as much of a logical cluster's limit as is left for others, the service accounts of a logical cluster count as one user, and Shardplane's own components are not counted. The names are:"
	for _, name := range l.names() {
		usage += fmt.Sprintf("\n%s: %s", name, descriptions[name])
	}
	fs.Var(l, "limit", usage)
}

func (l Limits) names() []string { return slices.Sorted(maps.Keys(l)) }

// String implements pflag.Value.
func (l Limits) String() string {
	pairs := make([]string, 0, len(l))
	for _, name := range l.names() {
		pairs = append(pairs, fmt.Sprintf("%s=%d", name, l[name]))
	}
	return strings.Join(pairs, ",")
}

// Type implements pflag.Value.
func (l Limits) Type() string { return "limits" }

// Set implements pflag.Value. It changes the limits that value names.
func (l Limits) Set(value string) error {
	for pair := range strings.SplitSeq(value, ",") {
		name, text, _ := strings.Cut(pair, "=")
		if _, ok := l[name]; !ok {
			return fmt.Errorf("%q is not one of the limits %s", name, strings.Join(l.names(), ", "))
		}
		quantity, err := resource.ParseQuantity(text)
		if err != nil || quantity.Sign() < 0 {
			return fmt.Errorf("limit %s must be a quantity of at least 0, such as %s=1000 or %s=64Mi, not %q", name, name, name, text)
		}
		l[name] = quantity.Value()
	}
	return nil
}

// Max returns a limit, and the largest number instead of 0.
func (l Limits) Max(name string) int { return cmp.Or(int(l[name]), math.MaxInt) }

// Ledger returns the ledger of a resource within the limits of l, of which each user gets own of the
// total in any case. What it refuses is counted in a metric. registerer may be nil.
func (l Limits) Ledger(resource string, own int64, registerer prometheus.Registerer) *Ledger {
	ledger := New(Bounds{Total: l[resource], Cluster: l[resource+perCluster], User: l[resource+perUser], Own: own})
	ledger.name, ledger.rejected = resource, NewRejected(registerer)
	return ledger
}

// NewRejected returns the counter of what the limits of a server refuse.
func NewRejected(registerer prometheus.Registerer) *prometheus.CounterVec {
	return instruments.Register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "shardplane", Subsystem: "limits", Name: "rejected_total",
		Help: "[ALPHA] Requests answered with 429, and watches that ended, because of a limit, by the limit's name: one of --limit, or max-requests-inflight.",
	}, []string{"limit"}))
}
