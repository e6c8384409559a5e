package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication/digest"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

const (
	// checkTimeout limits a check of the identity of a source.
	checkTimeout = 10 * time.Second
	// sameTroubleInterval is how often the log says the same.
	sameTroubleInterval = 10 * time.Minute
	// tolerableSkew is how far clocks may be apart, of which one second is that of HTTP.
	tolerableSkew = time.Minute
)

// errRefused says that nothing is relayed from a cache server.
var errRefused = errors.New("nothing is relayed from it")

// source is a cache server that is relayed from.
type source struct {
	From

	self    Self
	metrics metrics
	factory *client.Factory
	marks   *client.Informer[*replicationcheckpoints.ReplicationCheckpoint]

	mu sync.Mutex
	// known is set while it is the right one, as far as is known. trouble is why it is not, or does not answer,
	// and since when.
	known   bool
	trouble error
	since   time.Time
	told    time.Time
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
	return &source{From: from, self: self, metrics: m, factory: factory, marks: replicationcheckpoints.Checkpoints.Informer(everything, client.InformerOptions[*replicationcheckpoints.ReplicationCheckpoint]{})}, nil
}

// run asks who the source is, and follows the marks of its shards, until ctx is done. changed is
// called when it may count for more or less.
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
				following.Go(func() { _ = s.marks.Run(ctx) }) // it fails only if it runs already
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

// check asks the source who it is. The error wraps errRefused where it is not the one that it should be.
func (s *source) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	answer, err := digest.Identify(ctx, s.factory, corev1alpha1.RootShard)
	switch {
	case errors.Is(err, digest.ErrRefused):
		return fmt.Errorf("%w: %w: that of %s has to be one of group %s, or %s, if it leads to a cache server", errRefused, err, s.Kubeconfig, request.GroupCacheReaders, user.SystemPrivilegedGroup)
	case errors.Is(err, digest.ErrNoCacheServer):
		return fmt.Errorf("%w: what %s leads to is no cache server of this version: correct the kubeconfig, or replace the cache servers that are relayed from first", errRefused, s.Kubeconfig)
	case err != nil:
		return err
	}
	s.measureSkew(ctx, answer.Date)
	switch {
	case answer.DataID == s.self.DataID:
		return fmt.Errorf("%w: %s leads to this cache server itself, or to another one with its data: a relay reads from others", errRefused, s.Kubeconfig)
	case answer.Name == s.self.Name:
		return fmt.Errorf("%w: it has the name of this cache server, %q, and other data: give each a name of its own with --%s", errRefused, answer.Name, NameFlag)
	case answer.Name != s.Name:
		return fmt.Errorf("%w: it is called %q, and not %q as in the file of relays: correct that, or the kubeconfig %s, or its --%s", errRefused, answer.Name, s.Name, s.Kubeconfig, NameFlag)
	}
	return nil
}

// measureSkew compares clocks.
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
		klog.FromContext(ctx).Info("The clock of a cache server that is relayed from is another one: set both by one source",
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
	if other || time.Since(s.told) >= sameTroubleInterval {
		s.told = time.Now()
		klog.FromContext(ctx).Error(err, "Cannot relay from a cache server for now, what is known of its shards stays", "cache", s.Name)
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

// usable reports whether something may be relayed from the source, and for how long it is away.
func (s *source) usable() (ok bool, away time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.trouble != nil {
		away = time.Since(s.since)
	}
	return s.known && s.marks.HasSynced(), away
}
