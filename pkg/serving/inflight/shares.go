package inflight

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// Limits bound what each logical cluster and each payer, see identity.Payer, has at
// a time: requests in flight, or places of watches; 0 bounds nothing. One payer may
// never take all that is left of a logical cluster's.
type Limits struct {
	Cluster, User int

	of subject
}

// subject is what is limited.
type subject struct {
	// flag starts the names of the flags, and metric the limits in metrics.
	flag, metric string
	// many says in messages what there is too much of.
	many string
	// counted says in the flags' help what counts.
	counted string
}

var (
	requests = subject{
		flag: "max-requests-inflight", many: "too many requests %s are in flight",
		counted: "requests of %s in flight at a time, those that wait included and watches not; one more for each 16 KiB of a request's headers",
	}
	watches = subject{
		flag: "max-watches", metric: "watches-", many: "too many watches %s are open, or their selectors are too large",
		counted: "places of the watches of %s that are open at a time: a watch has one, and one more for each four requirements, values and ranges of its selectors, and for each 16 KiB of its headers",
	}
	longRunning = subject{
		flag: "max-watches", metric: "watches-", many: "too many watches and upgraded connections %s are open",
		counted: "watches and upgraded connections of %s that are open at a time",
	}
)

// NewLimits returns the defaults of limits of requests.
func NewLimits() Limits {
	const cluster, user = 1000, 1000
	return Limits{Cluster: cluster, User: user, of: requests}
}

// NewWatchLimits returns the defaults of limits of watches.
func NewWatchLimits() Limits {
	const cluster, user = 5000, 5000
	return Limits{Cluster: cluster, User: user, of: watches}
}

// NewProxyLimits returns the defaults of limits of requests and of long-running ones at a server in front of
// several shards, which counts by users alone: more than at one shard, which counts by logical
// clusters, too.
func NewProxyLimits() (inFlight, open Limits) {
	const most, mostOpen = 3000, 15000
	return Limits{User: most, of: requests}, Limits{User: mostOpen, of: longRunning}
}

// AddFlags adds the flags of l to fs.
func (l *Limits) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&l.Cluster, l.of.flag+"-per-cluster", l.Cluster, fmt.Sprintf(l.of.counted, "one logical cluster")+", one user's at most as many as are left for others; more are answered with 429. 0 means any number")
	l.AddUserFlag(fs)
}

// AddUserFlag adds the flag of what users have, for who does not count by logical cluster, to fs.
func (l *Limits) AddUserFlag(fs *pflag.FlagSet) {
	fs.IntVar(&l.User, l.of.flag+"-per-user", l.User, fmt.Sprintf(l.of.counted, "one user, in all logical clusters together,")+"; the service accounts of a logical cluster count as one user. More are answered with 429. 0 means any number")
}

// Validate returns what is wrong with l.
func (l *Limits) Validate() []error {
	if l.Cluster < 0 || l.User < 0 {
		return []error{fmt.Errorf("--%s-per-cluster and --%s-per-user must not be negative", l.of.flag, l.of.flag)}
	}
	return nil
}

// Shares counts what logical clusters and users have.
type Shares struct {
	limits   Limits
	rejected *prometheus.CounterVec

	mu       sync.Mutex
	clusters map[logicalcluster.Name]int
	users    map[identity.Payer]int
	members  map[member]int
}

// member is a payer in a logical cluster.
type member struct {
	cluster logicalcluster.Name
	payer   identity.Payer
}

// NewShares returns shares within those limits. registerer may be nil.
func NewShares(limits Limits, registerer prometheus.Registerer) *Shares {
	return &Shares{limits: limits, rejected: newRejected(registerer), clusters: map[logicalcluster.Name]int{}, users: map[identity.Payer]int{}, members: map[member]int{}}
}

// Count returns how much a request counts, 0 for those that are not limited.
type Count func(r *http.Request, info *apirequest.RequestInfo) int

// headerBytes is how long the headers of a request may be that count as none.
const headerBytes = 16 << 10

// OfHeaders returns how much more a request counts for its headers and its URL, which are in memory for as
// long as it lasts, up to a megabyte: as one for each headerBytes.
func OfHeaders(r *http.Request) int {
	bytes := len(r.URL.RawQuery)
	for name, values := range r.Header {
		for _, value := range values {
			bytes += len(name) + len(value)
		}
	}
	return bytes / headerBytes
}

// Wrap returns next behind the shares.
func (s *Shares) Wrap(next http.Handler, count Count, refuse Refuse) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		info, ok := apirequest.RequestInfoFrom(ctx)
		if !ok || identity.IsExempt(ctx) {
			next.ServeHTTP(w, r)
			return
		}
		n := count(r, info)
		if n == 0 {
			next.ServeHTTP(w, r)
			return
		}
		leave, why := s.Take(ctx, n)
		if why != "" {
			refuse(w, r, why)
			return
		}
		defer leave()
		next.ServeHTTP(w, r)
	})
}

// Take counts n for the request of ctx until leave is called, or says why that is too much.
func (s *Shares) Take(ctx context.Context, n int) (leave func(), why string) {
	m := memberOf(ctx)
	if limit := s.enter(m, n); limit != "" {
		s.rejected.WithLabelValues(s.limits.of.metric + limit).Inc()
		whose := map[string]string{"cluster": "for this logical cluster", "user": "of this user"}[limit]
		return nil, fmt.Sprintf(s.limits.of.many+", see --%s-per-%s", whose, s.limits.of.flag, limit)
	}
	return func() { s.leave(m, n) }, ""
}

// enter counts n for m, or returns the limit that it would exceed.
func (s *Shares) enter(m member, n int) (limit string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limits.User > 0 && s.users[m.payer]+n > s.limits.User {
		return "user"
	}
	// What is for no logical cluster in particular is not counted for one.
	if left := s.limits.Cluster - s.clusters[m.cluster]; s.limits.Cluster > 0 && m.cluster != "" && s.members[m]+n > left {
		return "cluster"
	}
	s.users[m.payer] += n
	s.clusters[m.cluster] += n
	s.members[m] += n
	return ""
}

func (s *Shares) leave(m member, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	decrease(s.users, m.payer, n)
	decrease(s.clusters, m.cluster, n)
	decrease(s.members, m, n)
}

func decrease[K comparable](counts map[K]int, key K, n int) {
	if counts[key] -= n; counts[key] <= 0 {
		delete(counts, key)
	}
}

// memberOf returns whose request it is, and for which logical cluster.
func memberOf(ctx context.Context) member {
	cluster, _ := request.ClusterFrom(ctx)
	return member{cluster: cluster.Name, payer: identity.PayerFrom(ctx)}
}
