package health

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/replication/digest"
	"github.com/shardplane/shardplane/pkg/request"
)

const (
	// lookInterval is the time between two looks at a cache server, and lookAgainInterval while something is
	// wrong with it.
	lookInterval      = 15 * time.Second
	lookAgainInterval = 2 * time.Second
	lookTimeout       = 10 * time.Second
	// sameTroubleInterval is how often the log says the same.
	sameTroubleInterval = 10 * time.Minute
)

// Why a cache server cannot be used.
const (
	reasonUnreachable = "Unreachable"
	reasonRefused     = "Refused"
	reasonNoCache     = "NotACacheServer"
	reasonFull        = "Full"
)

// CheckedCache is the cache server of a shard.
type CheckedCache struct {
	// Shard is the name of the shard, and Kubeconfig the file that leads to the cache server.
	Shard, Kubeconfig string
	Cache             *client.Factory
	// Metrics registers metrics; nil registers none.
	Metrics prometheus.Registerer
}

// CacheCheck checks the cache server of a shard periodically, and reports what is wrong with it and what to do,
// because the replication itself only retries. A nil CacheCheck is that of a shard without a cache server.
type CacheCheck struct {
	CheckedCache

	troubles *prometheus.GaugeVec

	mu sync.Mutex
	// reason is why the cache server cannot be used, empty if it can. checked is set after the first check.
	reason  string
	checked bool

	// logged is when the reason was logged.
	logged time.Time
}

// NewCacheCheck returns the check of a cache server. It does nothing until it runs.
func NewCacheCheck(cache CheckedCache) *CacheCheck {
	return &CacheCheck{CheckedCache: cache, troubles: newTroubles(cache.Metrics)}
}

// Run checks the cache server until ctx is done.
func (c *CacheCheck) Run(ctx context.Context) error {
	defer c.report(ctx, "", nil)
	for ctx.Err() == nil {
		wait := lookInterval
		reason, err := c.look(ctx)
		if ctx.Err() != nil {
			break
		}
		if c.report(ctx, reason, err); reason != "" {
			wait = lookAgainInterval
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return nil
}

// Reasons returns why the cache server cannot be used, or "" if it can, by its name. It is empty without a cache
// server, and nil until the first check.
func (c *CacheCheck) Reasons() map[string]string {
	if c == nil {
		return map[string]string{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.checked {
		return nil
	}
	return map[string]string{replication.DefaultCacheName: c.reason}
}

// look returns why the cache server cannot be used, and what to do about it, or nothing if it can.
func (c *CacheCheck) look(ctx context.Context) (reason string, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	answer, err := digest.Identify(ctx, c.Cache, c.Shard)
	switch {
	case errors.Is(err, digest.ErrRefused):
		return reasonRefused, fmt.Errorf("%w: if %s leads to a cache server, its certificate has to be that of %s in group %s, and otherwise correct the kubeconfig", err, c.Kubeconfig, request.ShardUserPrefix+c.Shard, request.GroupShards)
	case errors.Is(err, digest.ErrNoCacheServer):
		return reasonNoCache, fmt.Errorf("%w: what %s leads to is something else, such as a shard, a front-proxy or a cache server of another version: correct its server, as https://<cache server>/services/cache", err, c.Kubeconfig)
	case err != nil:
		return reasonUnreachable, fmt.Errorf("it is tried again, and everything goes on with what is known: %w", err)
	case answer.Full:
		return reasonFull, errors.New("its etcd is nearly full, so that it takes no new replicas: make room there, or raise its quota; they wait until then, and arrive by themselves")
	}
	return "", nil
}

// report sets the metric, and logs a reason when it changes and periodically.
func (c *CacheCheck) report(ctx context.Context, reason string, err error) {
	c.mu.Lock()
	before := c.reason
	c.reason, c.checked = reason, true
	c.mu.Unlock()
	changed := reason != before
	if changed && before != "" {
		c.troubles.Delete(map[string]string{"cache": replication.DefaultCacheName, "reason": before})
	}
	if changed && reason == "" && ctx.Err() == nil {
		klog.FromContext(ctx).Info("The cache server can be used again", "cache", replication.DefaultCacheName)
	}
	if reason == "" {
		return
	}
	c.troubles.WithLabelValues(replication.DefaultCacheName, reason).Set(1)
	if changed || time.Since(c.logged) >= sameTroubleInterval {
		c.logged = time.Now()
		klog.FromContext(ctx).Error(err, "Something is wrong with a cache server", "cache", replication.DefaultCacheName, "reason", reason)
	}
}

func newTroubles(registerer prometheus.Registerer) *prometheus.GaugeVec {
	return instruments.Register(registerer, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "shardplane",
		Subsystem: "replication",
		Name:      "cache_trouble",
		Help:      "[ALPHA] 1 while something is wrong with a cache server that the shard uses, by cache and reason (Unreachable, Refused, NotACacheServer, Full); no series otherwise. The shard's log says what to do.",
	}, []string{"cache", "reason"}))
}
