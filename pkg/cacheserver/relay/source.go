// Package relay replicates objects for the whole installation from other cache servers, below the names of their shards.
// It chooses for each shard the cache server to relay from, if any. Package replication does the rest.
//
//	shard ─► cache server of its region ─► relay ─► cache server of another region
//	              via: nothing                          via: [the first one]
package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/replication/digest"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/tenancy/replicationcheckpoints"
)

// ScopeInstallation selects the objects that are replicated to all regions.
const ScopeInstallation = "installation"

// Relay is another cache server and the objects that are relayed from it.
type Relay struct {
	From   From   `json:"from"`
	Select Select `json:"select"`
}

// From identifies a cache server.
type From struct {
	// Name is the --cache-name of that server.
	Name string `json:"name"`
	// Kubeconfig is the path of its kubeconfig.
	Kubeconfig string `json:"kubeconfig"`
}

func (f From) client() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", f.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Kubeconfig, err)
	}
	return config, nil
}

// Select selects the relayed objects.
type Select struct {
	// Scope is ScopeInstallation, which is the default.
	Scope string `json:"scope,omitempty"`
}

// Config is the content of a file with relays in the order of preference.
type Config struct {
	Relays []Relay `json:"relays"`
}

// Load reads the file of the cache server self. Paths of kubeconfigs are relative to its directory.
func Load(file, self string) (Config, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return Config{}, err
	}
	var c Config
	if err := yaml.UnmarshalStrict(content, &c); err != nil {
		return Config{}, fmt.Errorf("%s: %w", file, err)
	}
	for i := range c.Relays {
		if path := &c.Relays[i].From.Kubeconfig; *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(filepath.Dir(file), *path)
		}
	}
	if err := c.validate(self); err != nil {
		return Config{}, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}

func (c Config) validate(self string) error {
	if len(c.Relays) == 0 {
		return errors.New("relays: no cache server is specified")
	}
	var errs []error
	names := map[string]int{}
	for i, relay := range c.Relays {
		wrong := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("relays[%d] (%q): %w", i, relay.From.Name, fmt.Errorf(format, args...)))
		}
		first, taken := names[relay.From.Name]
		switch {
		case taken:
			wrong("from.name: same as relays[%d]: names must be unique", first)
		case !request.ValidName(relay.From.Name):
			wrong("from.name: use up to %d lower-case letters, digits and hyphens", request.MaxNameLength)
		case relay.From.Name == self:
			wrong("from.name: must not be the name of this cache server, which cannot relay from itself: change its name with --%s", NameFlag)
		}
		names[relay.From.Name] = i
		if relay.From.Kubeconfig == "" {
			wrong("from.kubeconfig: must be specified")
		} else if _, err := relay.From.client(); err != nil {
			wrong("from.kubeconfig: %w", err)
		}
		if scope := relay.Select.Scope; scope != "" && scope != ScopeInstallation {
			wrong("select.scope: unsupported value %q: use %q or omit it; regional objects are not relayed", scope, ScopeInstallation)
		}
	}
	return errors.Join(errs...)
}

// NameFlag is the flag of the cache server's own name.
const NameFlag = "cache-name"

// Timing contains the intervals of relays. Zero fields have the defaults.
type Timing struct {
	// Look is the interval of the assignment of shards to sources (default 5s), in addition to events.
	Look time.Duration
	// Unreachable is the time for which a source without responses is kept (default 30s).
	Unreachable time.Duration
	// Check is the interval of checks of a source (default 10s), and Retry the one after a failure (default 1s).
	Check, Retry time.Duration
	// Checkpoint, Digest and Alert are the intervals of the replication (see push.Config).
	Checkpoint, Digest, Alert time.Duration
}

func (t Timing) withDefaults() Timing {
	t.Look, t.Unreachable = cmp.Or(t.Look, 5*time.Second), cmp.Or(t.Unreachable, 30*time.Second)
	t.Check, t.Retry = cmp.Or(t.Check, 10*time.Second), cmp.Or(t.Retry, time.Second)
	return t
}

// Self is the relaying cache server.
type Self struct {
	// DataID is the ID of its data.
	Name, DataID string
	// Replicas is the client that writes the relayed replicas.
	Replicas *client.Factory
	// Written are the resources that shards write to cache servers directly, except checkpoints.
	Written []schema.GroupVersionResource
	// Timing contains the intervals.
	Timing Timing
	// Metrics registers metrics. Nil registers none.
	Metrics prometheus.Registerer
}

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
	// known is set while its identity is confirmed. lastErr is the current problem, which exists since the time in
	// since.
	known   bool
	lastErr error
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

// run checks the source and follows its checkpoints until ctx is done. It calls changed when usable may have changed.
func (s *source) run(ctx context.Context, changed func()) error {
	defer s.factory.CloseIdleConnections()
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
	other := s.lastErr == nil || errors.Is(err, errRefused) != errors.Is(s.lastErr, errRefused)
	if s.lastErr == nil {
		s.since = time.Now()
	}
	if s.lastErr = err; errors.Is(err, errRefused) {
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
	if s.lastErr != nil || !s.known {
		klog.FromContext(ctx).Info("Relaying from a cache server", "cache", s.Name)
	}
	s.known, s.lastErr = true, nil
	s.metrics.up.WithLabelValues(s.Name).Set(1)
}

// usable reports whether the source may be relayed from, and how long it has been unreachable.
func (s *source) usable() (ok bool, unreachable time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastErr != nil {
		unreachable = time.Since(s.since)
	}
	return s.known && s.checkpoints.HasSynced(), unreachable
}

type metrics struct{ up, relayed, skew *prometheus.GaugeVec }

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
