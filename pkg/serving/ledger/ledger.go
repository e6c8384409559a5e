// Package ledger limits the resources of a server that logical clusters and users may use at a
// time. Examples are requests in flight, watches, connections, and bytes in memory.
//
//	--limit name=n ─► Limits ─► Ledger ─► Take … Give
//
// Each resource has a Ledger. Some limits can be configured by name, the others are constants.
//
//	authorization ─► Ledger.Wrap ─► fairness ─► Executing.Wrap ─► handler
//	                 by logical      queue        of the server
//	                 cluster, user
//
// Executing does not count requests that are queued or wait for a webhook, because they use no shared resources. The
// Ledger also counts such requests. Therefore, a logical cluster with hanging requests reaches its own limits, not
// the limits of others.
package ledger

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/wait"
	apimetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

const (
	perCluster = "-per-cluster"
	perUser    = "-per-user"
)

// Bounds are the limits of a resource. 0 means no limit.
type Bounds struct {
	// Total applies to the sum of all holders, and Cluster to each logical cluster. A user gets at most as much of
	// them as remains for others.
	Total, Cluster int64
	// User applies to each user, in all logical clusters.
	User int64
	// Own is the part of Total that each user gets in any case. Total can therefore be exceeded.
	Own int64
}

// Holder is a user, in a logical cluster or in none.
type Holder struct {
	Cluster logicalcluster.Name
	User    identity.Flow
}

// HolderOf returns the holder that is charged for the request of ctx.
func HolderOf(ctx context.Context) Holder {
	cluster, _ := request.ClusterFrom(ctx)
	return Holder{Cluster: cluster.Name, User: identity.FlowFrom(ctx)}
}

// Ledger counts the use of a resource by holder. It is safe for concurrent use.
type Ledger struct {
	bounds   Bounds
	name     string
	rejected *prometheus.CounterVec

	mu       sync.Mutex
	total    int64
	clusters map[logicalcluster.Name]int64
	users    map[identity.Flow]int64
	holders  map[Holder]int64
}

// NewLedger returns an empty ledger with constant limits.
func NewLedger(bounds Bounds) *Ledger {
	return &Ledger{bounds: bounds, clusters: map[logicalcluster.Name]int64{}, users: map[identity.Flow]int64{}, holders: map[Holder]int64{}}
}

// Take counts n for h until Give is called. If this would exceed a limit, it returns an error for the client.
func (l *Ledger) Take(h Holder, n int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch b, has := l.bounds, l.users[h.User]+n; {
	case b.User > 0 && has > b.User:
		return l.excess("of this user", perUser, b.User)
	case b.Cluster > 0 && h.Cluster != "" && l.holders[h]+n > b.Cluster-l.clusters[h.Cluster]:
		return l.excess("in this logical cluster", perCluster, b.Cluster)
	case b.Total > 0 && has > b.Own && has > b.Total-l.total:
		return l.excess("of all users", "", b.Total)
	default:
		l.add(h, n)
		return nil
	}
}

func (l *Ledger) excess(scope, suffix string, limit int64) error {
	if l.rejected != nil {
		l.rejected.WithLabelValues(l.name + suffix).Inc()
	}
	return fmt.Errorf("the %s %s would exceed --limit %s%s=%d", l.name, scope, l.name, suffix, limit)
}

// Give returns n that was taken by h.
func (l *Ledger) Give(h Holder, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(h, -n)
}

func (l *Ledger) add(h Holder, n int64) {
	l.total += n
	change(l.clusters, h.Cluster, n)
	change(l.users, h.User, n)
	change(l.holders, h, n)
}

func change[K comparable](counts map[K]int64, key K, n int64) {
	if counts[key] += n; counts[key] == 0 {
		delete(counts, key)
	}
}

// HeldBy returns the use of the user of h, and that of its logical cluster.
func (l *Ledger) HeldBy(h Holder) (user, cluster int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.users[h.User], l.clusters[h.Cluster]
}

// Held returns the total use.
func (l *Ledger) Held() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// Refuse rejects a request with 429 and Retry-After, for the given reason.
type Refuse func(w http.ResponseWriter, r *http.Request, why string)

//reference:limit request | headers and query of a request or watch | counts as another request or watch
const headerBytes = 16 << 10

// OfHeaders returns the additional count of a request for its headers and query, which may have up to a megabyte.
func OfHeaders(r *http.Request) int64 {
	bytes := len(r.URL.RawQuery)
	for name, values := range r.Header {
		for _, value := range values {
			bytes += len(name) + len(value)
		}
	}
	return int64(bytes / headerBytes)
}

// TakeFor counts n for the request of ctx until give is called.
func (l *Ledger) TakeFor(ctx context.Context, n int64) (give func(), err error) {
	h := HolderOf(ctx)
	if err := l.Take(h, n); err != nil {
		return nil, err
	}
	return func() { l.Give(h, n) }, nil
}

// Wrap returns the filter that applies the limits. count returns how much of the resource a request uses, or 0. The
// request info is nil in the front-proxy. Exempt users are neither counted nor rejected, because their writes for one
// tenant do not affect others.
func (l *Ledger) Wrap(next http.Handler, count func(*http.Request, *apirequest.RequestInfo) int64, refuse Refuse) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if identity.IsExempt(r.Context()) {
			next.ServeHTTP(w, r)
			return
		}
		info, _ := apirequest.RequestInfoFrom(r.Context())
		if n := count(r, info); n > 0 {
			give, err := l.TakeFor(r.Context(), n)
			if err != nil {
				refuse(w, r, err.Error())
				return
			}
			defer give()
		}
		next.ServeHTTP(w, r)
	})
}

// Names of configurable limits.
const (
	//reference:limit server --limit:anonymous-connections | connections without an authenticated request | the oldest one of the address with most of them is closed
	AnonymousConnections = "anonymous-connections"
	//reference:limit user --limit:connections-per-user | connections | 429, and the connection is closed
	ConnectionsPerUser = "connections-per-user"
	//reference:limit server --limit:body-bytes | request bodies in memory | 429
	BodyBytes = "body-bytes"
	//reference:limit user --limit:body-bytes-per-user | request bodies in memory | 429
	BodyBytesPerUser = "body-bytes-per-user"
	//reference:limit cluster --limit:requests-per-cluster | requests in flight, without watches | 429
	RequestsPerCluster = "requests-per-cluster"
	//reference:limit user --limit:requests-per-user | requests in flight, without watches | 429
	RequestsPerUser = "requests-per-user"
	//reference:limit cluster --limit:watches-per-cluster | watches; every four requirements of selectors count as another one | 429
	WatchesPerCluster = "watches-per-cluster"
	//reference:limit user --limit:watches-per-user | watches; every four requirements of selectors count as another one | 429
	WatchesPerUser = "watches-per-user"
	//reference:limit cluster --limit:watch-bytes-per-cluster | largest events of all watches, at least 64 KiB each | 429, and watches end
	WatchBytesPerCluster = "watch-bytes-per-cluster"
	//reference:limit user --limit:watch-bytes-per-user | largest events of all watches, at least 64 KiB each | 429, and watches end
	WatchBytesPerUser = "watch-bytes-per-user"
	//reference:limit cluster --limit:webhook-calls-per-cluster | concurrent calls of admission webhooks, and of conversion webhooks; webhooks that match a write | 429; 403 if more match
	WebhookCallsPerCluster = "webhook-calls-per-cluster"
)

// Resources with configurable limits.
const (
	BodyBytesResource   = BodyBytes
	ConnectionsResource = "connections"
	RequestsResource    = "requests"
	WatchesResource     = "watches"
	WatchBytesResource  = "watch-bytes"
)

var descriptions = map[string]string{
	AnonymousConnections:   "connections without an authenticated request; above the limit, the oldest connection of the address with most of them is closed",
	ConnectionsPerUser:     "connections",
	BodyBytes:              "bytes of request bodies in memory that are being read or wait for a seat, of all users",
	BodyBytesPerUser:       "bytes of request bodies in memory, of one user",
	RequestsPerCluster:     "requests in flight, including queued ones and excluding watches; each 16 KiB of headers count as another request",
	RequestsPerUser:        "requests in flight, including queued ones and excluding watches; each 16 KiB of headers count as another request",
	WatchesPerCluster:      "open watches and upgraded connections; each 16 KiB of headers, and every four requirements, values and ranges of selectors, count as another watch",
	WatchesPerUser:         "open watches and upgraded connections; large headers and selectors count as several",
	WatchBytesPerCluster:   "the sum of the largest event of each open watch, at least 64 KiB each",
	WatchBytesPerUser:      "the sum of the largest event of each open watch, at least 64 KiB each",
	WebhookCallsPerCluster: "concurrent calls of admission webhooks, and of conversion webhooks; others wait for up to 10 s",
}

// Limits are limits by name. 0 means no limit. They implement pflag.Value.
type Limits map[string]int64

// AddFlags adds the flag for all limits in l.
func (l Limits) AddFlags(fs *pflag.FlagSet) {
	var usage strings.Builder
	usage.WriteString("comma-separated limits <name>=<quantity>; 0 means no limit. Requests above a limit are rejected with 429 and Retry-After. " +
		"A user gets at most as much of the limit of a logical cluster as remains for others, the service accounts of a logical cluster count as one user, and Shardplane's own components are not counted. Names:")
	for _, name := range l.names() {
		fmt.Fprintf(&usage, "\n%s: %s", name, descriptions[name])
	}
	fs.Var(l, "limit", usage.String())
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

// Set implements pflag.Value. It only changes the limits in value.
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

// Max returns a limit, or the maximum integer instead of 0.
func (l Limits) Max(name string) int { return cmp.Or(int(l[name]), math.MaxInt) }

// Ledger returns the ledger of a resource with the limits in l. own is Bounds.Own. registerer may be nil.
func (l Limits) Ledger(resource string, own int64, registerer prometheus.Registerer) *Ledger {
	ledger := NewLedger(Bounds{Total: l[resource], Cluster: l[resource+perCluster], User: l[resource+perUser], Own: own})
	ledger.name, ledger.rejected = resource, newRejected(registerer)
	return ledger
}

func newRejected(registerer prometheus.Registerer) *prometheus.CounterVec {
	return instruments.NewCounterVec(registerer, "shardplane_limits_rejected_total",
		"Requests rejected with 429, and watches ended, because of a limit, by name of the limit: one of --limit, or max-requests-inflight.", "limit")
}

// Executing limits the concurrent requests of a server, except those of the installation's own components.
type Executing struct {
	reading, writing kind
	rejected         *prometheus.CounterVec
}

type kind struct {
	limit int64
	now   atomic.Int64
	// most is the maximum since the last report.
	most atomic.Int64
}

// NewExecuting returns limits for non-mutating and mutating requests; 0 means no limit. registerer may be nil.
func NewExecuting(reading, writing int, registerer prometheus.Registerer) *Executing {
	e := &Executing{rejected: newRejected(registerer)}
	e.reading.limit, e.writing.limit = int64(reading), int64(writing)
	return e
}

// Wrap returns the filter that applies the limits. Paused requests, see request.Pause, are not counted.
func (e *Executing) Wrap(next http.Handler, longRunning apirequest.LongRunningRequestCheck, refuse Refuse) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		info, ok := apirequest.RequestInfoFrom(ctx)
		if !ok || longRunning(r, info) || identity.IsExempt(ctx) {
			next.ServeHTTP(w, r)
			return
		}
		k := &e.writing
		if info.Verb == "get" || info.Verb == "list" || info.Verb == "watch" {
			k = &e.reading
		}
		if !k.acquire() {
			k.release()
			e.rejected.WithLabelValues("max-requests-inflight").Inc()
			apimetrics.RecordDroppedRequest(r, info, apimetrics.APIServerComponent, k == &e.writing)
			apimetrics.RecordRequestTermination(r, info, apimetrics.APIServerComponent, http.StatusTooManyRequests)
			refuse(w, r, "the number of requests in flight would exceed --max-requests-inflight or --max-mutating-requests-inflight")
			return
		}
		defer k.release()
		next.ServeHTTP(w, r.WithContext(request.WithPause(ctx, func() (resume func()) {
			resumeSeat := request.Pause(ctx)
			k.release()
			return func() {
				resumeSeat() // may block
				k.acquire()
			}
		})))
	})
}

// Report sets upstream's gauges of requests in flight every second until ctx is done.
func (e *Executing) Report(ctx context.Context) {
	wait.UntilWithContext(ctx, func(context.Context) {
		apimetrics.UpdateInflightRequestMetrics(apimetrics.ExecutingPhase, e.reading.highest(), e.writing.highest())
	}, time.Second)
}

func (k *kind) acquire() bool {
	now := k.now.Add(1)
	within := k.limit == 0 || now <= k.limit
	for within {
		if most := k.most.Load(); now <= most || k.most.CompareAndSwap(most, now) {
			break
		}
	}
	return within
}

func (k *kind) release() { k.now.Add(-1) }

func (k *kind) highest() int { return int(k.most.Swap(k.now.Load())) }
