package inflight

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/spf13/pflag"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// Limits bound the requests in flight of each logical cluster and of each payer,
// see identity.Payer; 0 bounds nothing. One payer may never take all that is left
// of a logical cluster's.
type Limits struct{ Cluster, User int }

// NewLimits returns the defaults.
func NewLimits() Limits {
	const cluster, user = 1000, 1000
	return Limits{Cluster: cluster, User: user}
}

// AddFlags adds the flags of l to fs.
func (l *Limits) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&l.Cluster, "max-requests-inflight-per-cluster", l.Cluster, "requests of one logical cluster in flight at a time, those that wait included and watches not, one user's at most as many as are left for others; more are answered with 429. 0 means any number")
	fs.IntVar(&l.User, "max-requests-inflight-per-user", l.User, "requests of one user in flight at a time, in all logical clusters together, those that wait included and watches not; the service accounts of a logical cluster count as one user. More are answered with 429. 0 means any number")
}

// Validate returns what is wrong with l.
func (l *Limits) Validate() []error {
	if l.Cluster < 0 || l.User < 0 {
		return []error{errors.New("--max-requests-inflight-per-cluster and --max-requests-inflight-per-user must not be negative")}
	}
	return nil
}

// Shares counts the requests in flight of logical clusters and users.
type Shares struct {
	limits Limits

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

// NewShares returns shares within those limits.
func NewShares(limits Limits) *Shares {
	registerMetrics()
	return &Shares{limits: limits, clusters: map[logicalcluster.Name]int{}, users: map[identity.Payer]int{}, members: map[member]int{}}
}

// Wrap returns next behind the shares.
func (s *Shares) Wrap(next http.Handler, longRunning apirequest.LongRunningRequestCheck, refuse Refuse) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		info, ok := apirequest.RequestInfoFrom(ctx)
		if !ok || longRunning(r, info) || identity.IsExempt(ctx) {
			next.ServeHTTP(w, r)
			return
		}
		m := memberOf(ctx)
		switch s.enter(m) {
		case "":
		case "cluster":
			rejected.WithLabelValues("cluster").Inc()
			refuse(w, r, "too many requests for this logical cluster are in flight, see --max-requests-inflight-per-cluster")
			return
		default:
			rejected.WithLabelValues("user").Inc()
			refuse(w, r, "too many requests of this user are in flight, see --max-requests-inflight-per-user")
			return
		}
		defer s.leave(m)
		next.ServeHTTP(w, r)
	})
}

// enter counts a request of m, or returns the limit that it would exceed.
func (s *Shares) enter(m member) (limit string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limits.User > 0 && s.users[m.payer] >= s.limits.User {
		return "user"
	}
	// What is for no logical cluster in particular is not counted for one.
	if left := s.limits.Cluster - s.clusters[m.cluster]; s.limits.Cluster > 0 && m.cluster != "" && (left <= 0 || s.members[m] >= left) {
		return "cluster"
	}
	s.users[m.payer]++
	s.clusters[m.cluster]++
	s.members[m]++
	return ""
}

func (s *Shares) leave(m member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	decrease(s.users, m.payer)
	decrease(s.clusters, m.cluster)
	decrease(s.members, m)
}

func decrease[K comparable](counts map[K]int, key K) {
	if counts[key]--; counts[key] <= 0 {
		delete(counts, key)
	}
}

// memberOf returns whose request it is, and for which logical cluster.
func memberOf(ctx context.Context) member {
	cluster, _ := request.ClusterFrom(ctx)
	return member{cluster: cluster.Name, payer: identity.PayerFrom(ctx)}
}
