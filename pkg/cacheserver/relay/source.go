package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/replication/digest"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

const (
	// checkTimeout limits a check of the identity of a source.
	checkTimeout = 10 * time.Second
	// repeatLogInterval is the interval of log messages about the same problem.
	repeatLogInterval = 10 * time.Minute
	// tolerableSkew is the accepted difference of clocks. The resolution of HTTP is one second.
	tolerableSkew = time.Minute
)

var errRefused = errors.New("not relaying from this cache server")

// source is a cache server that is relayed from.
type source struct {
	From

	self        Self
	metrics     metrics
	factory     *client.Factory
	checkpoints *client.Informer[*replicationcheckpoints.ReplicationCheckpoint]

	mu sync.Mutex
	// known is set while its identity is confirmed. trouble is the current problem and the time since which it exists.
	known   bool
	trouble error
	since   time.Time
	logged  time.Time
	skewed  bool
}

func newSource(from From, self Self, m metrics, options ...client.FactoryOption) (*source, error) {
	config, err := from.client()
	if err != nil {
		return nil, err
	}
	factory, err := client.NewFactory(config, options...)
	if err != nil {
		return nil, err
	}
	everything := factory.Shard(request.Wildcard).Wildcard()
	return &source{From: from, self: self, metrics: m, factory: factory, checkpoints: replicationcheckpoints.Checkpoints.Informer(everything, client.InformerOptions[*replicationcheckpoints.ReplicationCheckpoint]{})}, nil
}

// run checks the source and follows the checkpoints of its shards until ctx is done. changed is called when usable may
// have changed.
func (s *source) run(ctx context.Context, changed func()) error {
	defer s.factory.CloseIdleConnections()
	defer s.metrics.delete(s.Name)
	var following sync.WaitGroup
	defer following.Wait()
	started := false
	for {
		wait := s.self.Timing.Check
		if err := s.check(ctx); err != nil {
			wait = s.self.Timing.Retry
			s.failed(ctx, err)
		} else {
			s.succeeded(ctx)
			if !started {
				started = true
				following.Go(func() { _ = s.checkpoints.Run(ctx) }) // it only fails if it is already running
			}
		}
		changed()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// check checks the identity of the source. The error wraps errRefused if it is not the expected one.
func (s *source) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	response, err := digest.Identify(ctx, s.factory, corev1alpha1.RootShard)
	switch {
	case errors.Is(err, digest.ErrRefused):
		return fmt.Errorf("%w: %w: if %s is for a cache server, its certificate must be for the group %s or %s", errRefused, err, s.Kubeconfig, request.GroupCacheReaders, user.SystemPrivilegedGroup)
	case errors.Is(err, digest.ErrNoCacheServer):
		return fmt.Errorf("%w: the server of %s is not a cache server of this version: correct the kubeconfig, or upgrade the other cache servers first", errRefused, s.Kubeconfig)
	case err != nil:
		return err
	}
	s.measureSkew(ctx, response.Date)
	switch {
	case response.DataID == s.self.DataID:
		return fmt.Errorf("%w: %s is for this cache server itself, or for another one with the same data: specify another cache server", errRefused, s.Kubeconfig)
	case response.Name == s.self.Name:
		return fmt.Errorf("%w: it has the same name as this cache server, %q, but other data: specify unique names with --%s", errRefused, response.Name, NameFlag)
	case response.Name != s.Name:
		return fmt.Errorf("%w: its name is %q instead of %q as in the relay configuration: correct the file, the kubeconfig %s, or its --%s", errRefused, response.Name, s.Name, s.Kubeconfig, NameFlag)
	}
	return nil
}

func (s *source) measureSkew(ctx context.Context, date time.Time) {
	if date.IsZero() {
		return
	}
	apart := time.Since(date)
	s.metrics.skew.WithLabelValues(s.Name).Set(apart.Seconds())
	s.mu.Lock()
	defer s.mu.Unlock()
	skewed := apart.Abs() > tolerableSkew
	if skewed && !s.skewed {
		klog.FromContext(ctx).Info("The clock of a source cache server differs: synchronize both clocks",
			"cache", s.Name, "behind", apart.Round(time.Second).String())
	}
	s.skewed = skewed
}

func (s *source) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	other := s.trouble == nil || errors.Is(err, errRefused) != errors.Is(s.trouble, errRefused)
	if s.trouble == nil {
		s.since = time.Now()
	}
	if s.trouble = err; errors.Is(err, errRefused) {
		s.known = false
	}
	s.metrics.up.WithLabelValues(s.Name).Set(0)
	if other || time.Since(s.logged) >= repeatLogInterval {
		s.logged = time.Now()
		klog.FromContext(ctx).Error(err, "Failed to relay from a cache server, keeping the replicas", "cache", s.Name)
	}
}

func (s *source) succeeded(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trouble != nil || !s.known {
		klog.FromContext(ctx).Info("Relaying from a cache server", "cache", s.Name)
	}
	s.known, s.trouble = true, nil
	s.metrics.up.WithLabelValues(s.Name).Set(1)
}

// usable reports whether the source may be relayed from, and how long it has been unreachable.
func (s *source) usable() (ok bool, unreachable time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trouble != nil {
		unreachable = time.Since(s.since)
	}
	return s.known && s.checkpoints.HasSynced(), unreachable
}

type metrics struct {
	up      *prometheus.GaugeVec
	relayed *prometheus.GaugeVec
	skew    *prometheus.GaugeVec
}

func newMetrics(registerer prometheus.Registerer) metrics {
	return metrics{
		up: instruments.NewGaugeVec(registerer, "shardplane_relay_up",
			"1 if the source cache server responds and is the expected one, by its name. Otherwise the log contains the reason.", "from"),
		relayed: instruments.NewGaugeVec(registerer, "shardplane_relay_shards",
			"Shards whose replicas are relayed, by the name of the source cache server.", "from"),
		skew: instruments.NewGaugeVec(registerer, "shardplane_relay_clock_skew_seconds",
			"Time by which the clock of the source cache server is behind, to the second, by its name.", "from"),
	}
}

func (m metrics) delete(from string) {
	for _, gauge := range []*prometheus.GaugeVec{m.up, m.relayed, m.skew} {
		gauge.Delete(map[string]string{"from": from})
	}
}
