// Package health checks the cache server of a shard (CacheCheck), and measures the staleness of replicas (Observer).
package health

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/replication"
	"github.com/shardplane/shardplane/pkg/replication/digest"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

const (
	// checkInterval is the interval of checks, and recheckInterval the interval while there is a
	// problem.
	checkInterval   = 15 * time.Second
	recheckInterval = 2 * time.Second
	checkTimeout    = 10 * time.Second
	// repeatLogInterval is the interval of log messages about the same problem.
	repeatLogInterval = 10 * time.Minute
)

// The reasons why a cache server cannot be used.
const (
	reasonUnreachable = "Unreachable"
	reasonRefused     = "Refused"
	reasonNoCache     = "NotACacheServer"
	reasonFull        = "Full"
)

// CheckedCache is the cache server of a shard.
type CheckedCache struct {
	// Shard is the name of the shard, and Kubeconfig the file for the cache server.
	Shard, Kubeconfig string
	Cache             *client.Factory
	// Metrics registers metrics. Nil registers none.
	Metrics prometheus.Registerer
}

// CacheCheck checks the cache server of a shard periodically and reports problems with their remedies, because the
// replication itself only retries. A nil CacheCheck belongs to a shard without a cache server.
type CacheCheck struct {
	CheckedCache

	unavailable *prometheus.GaugeVec

	mu sync.Mutex
	// reason is empty if the cache server can be used. checked is set after the first check.
	reason  string
	checked bool

	// logged is the time of the last log message.
	logged time.Time
}

// NewCacheCheck returns the check of a cache server, which does nothing until it runs.
func NewCacheCheck(cache CheckedCache) *CacheCheck {
	return &CacheCheck{CheckedCache: cache, unavailable: instruments.NewGaugeVec(cache.Metrics, "shardplane_replication_cache_unavailable",
		"1 if the cache server of the shard cannot be used, by cache and reason (Unreachable, Refused, NotACacheServer, Full). Otherwise there is no series. The log of the shard contains the remedy.", "cache", "reason")}
}

// Run checks the cache server until ctx is done.
func (c *CacheCheck) Run(ctx context.Context) error {
	defer c.report(ctx, "", nil)
	for ctx.Err() == nil {
		wait := checkInterval
		reason, err := c.check(ctx)
		if ctx.Err() != nil {
			break
		}
		if c.report(ctx, reason, err); reason != "" {
			wait = recheckInterval
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return nil
}

// Reasons returns by name why the cache server cannot be used, or "" if it can. It returns an empty map without a cache
// server, and nil before the first check.
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

func (c *CacheCheck) check(ctx context.Context) (reason string, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	response, err := digest.Identify(ctx, c.Cache, c.Shard)
	switch {
	case errors.Is(err, digest.ErrRefused):
		return reasonRefused, fmt.Errorf("%w: if %s is for a cache server, its certificate must be for the user %s in the group %s; otherwise correct the kubeconfig", err, c.Kubeconfig, request.ShardUserPrefix+c.Shard, request.GroupShards)
	case errors.Is(err, digest.ErrNoCacheServer):
		return reasonNoCache, fmt.Errorf("%w: %s is for another server, e.g. a shard, a front-proxy or a cache server of another version: correct its server, e.g. https://<cache server>/services/cache", err, c.Kubeconfig)
	case err != nil:
		return reasonUnreachable, fmt.Errorf("retrying, the existing replicas are used meanwhile: %w", err)
	case response.Full:
		return reasonFull, errors.New("its etcd is nearly full, so that it accepts no new replicas: free space or raise its quota; pending replicas are written automatically afterwards")
	}
	return "", nil
}

// report sets the metric, and logs a reason if it has changed and periodically.
func (c *CacheCheck) report(ctx context.Context, reason string, err error) {
	c.mu.Lock()
	before := c.reason
	c.reason, c.checked = reason, true
	c.mu.Unlock()
	changed := reason != before
	if changed && before != "" {
		c.unavailable.Delete(map[string]string{"cache": replication.DefaultCacheName, "reason": before})
	}
	if changed && reason == "" && ctx.Err() == nil {
		klog.FromContext(ctx).Info("The cache server is available again", "cache", replication.DefaultCacheName)
	}
	if reason == "" {
		return
	}
	c.unavailable.WithLabelValues(replication.DefaultCacheName, reason).Set(1)
	if changed || time.Since(c.logged) >= repeatLogInterval {
		c.logged = time.Now()
		klog.FromContext(ctx).Error(err, "The cache server cannot be used", "cache", replication.DefaultCacheName, "reason", reason)
	}
}

// ObserverName is the name of the observer in logs and metrics.
const ObserverName = "replication-observer"

// Observer measures the time since the last checkpoint of each other shard. It implements reconcile.Runnable.
type Observer struct {
	self        string
	checkpoints *client.Informer[*replicationcheckpoints.ReplicationCheckpoint]
	registered  func(shard string) bool
	registerer  prometheus.Registerer

	mu sync.Mutex
	// observed contains the last checkpoint of each shard.
	observed map[string]observation
}

type observation struct {
	epoch  string
	number int64
	at     time.Time
}

// NewObserver returns the observer of a shard. The informer of all checkpoints must be run by the caller. Shards that
// are not registered are ignored. registerer may be nil.
func NewObserver(self string, checkpoints *client.Informer[*replicationcheckpoints.ReplicationCheckpoint], registered func(shard string) bool, registerer prometheus.Registerer) *Observer {
	return &Observer{registerer: registerer, self: self, checkpoints: checkpoints, registered: registered, observed: map[string]observation{}}
}

// Name returns the name of the observer.
func (o *Observer) Name() string { return ObserverName }

// Run observes until ctx is done.
func (o *Observer) Run(ctx context.Context) error {
	defer o.checkpoints.AddEventHandler(client.Handler[*replicationcheckpoints.ReplicationCheckpoint]{
		OnAdd:    func(cp *replicationcheckpoints.ReplicationCheckpoint, _ bool) { o.observe(cp) },
		OnUpdate: func(_, cp *replicationcheckpoints.ReplicationCheckpoint) { o.observe(cp) },
	}).Remove()
	if o.registerer != nil {
		if err := o.registerer.Register(o); err != nil {
			return fmt.Errorf("metrics of %s: %w", ObserverName, err)
		}
		defer o.registerer.Unregister(o)
	}
	<-ctx.Done()
	return nil
}

// observe records the time of a checkpoint if it has changed, because a reconnection repeats the last one. A missing
// checkpoint is ignored, e.g. after the cache server lost its data, so that the staleness increases.
func (o *Observer) observe(cp *replicationcheckpoints.ReplicationCheckpoint) {
	shard := o.checkpoints.KeyOf(cp).Shard
	if shard == o.self || cp.Name != replicationcheckpoints.Name {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if last, ok := o.observed[shard]; !ok || last.epoch != cp.Epoch || last.number != cp.Number {
		o.observed[shard] = observation{cp.Epoch, cp.Number, time.Now()}
	}
}

var stalenessGauge = instruments.NewDesc("shardplane_replica_staleness_seconds",
	"Time since the last new checkpoint of another shard was observed on the cache server, by the name of that shard: the maximum age of its replicas.", "name")

// Describe implements prometheus.Collector.
func (o *Observer) Describe(ch chan<- *prometheus.Desc) { ch <- stalenessGauge }

// Collect implements prometheus.Collector.
func (o *Observer) Collect(ch chan<- prometheus.Metric) {
	o.mu.Lock()
	observed := maps.Clone(o.observed)
	o.mu.Unlock()
	for shard, last := range observed {
		if o.registered(shard) {
			ch <- prometheus.MustNewConstMetric(stalenessGauge, prometheus.GaugeValue, time.Since(last.at).Seconds(), shard)
		}
	}
}
