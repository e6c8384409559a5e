// Package shards combines the objects of a resource on all shards of an installation:
//
//	Shard objects ── Source ──► Multi ──► informer and connection of shard-1 ──┐
//	(root, a cache server,        │  └──► informer and connection of shard-2 ──┼──► client.Union:
//	any shard, or a table)        └─────► …                                    ┘    lookups, handlers
//
// Informers start, move and stop according to the Shard objects. The objects of an unreachable shard are kept, and
// Missing reports it. When its Shard object is deleted, its objects leave (OnLeave).
package shards

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
)

// Options configure a Multi. The zero value selects all objects, with the credentials of the source.
type Options[T client.Object] struct {
	// Dial returns the client configuration of a shard; by default that of the source with spec.baseURL.
	Dial Dial
	// Partition selects shards by the labels of their Shard objects; nil selects all.
	Partition labels.Selector
	// Ranges returns the ranges of a shard; nil selects all objects.
	Ranges func(shard string) client.RangeSource
	// Informer contains the options of the informers of shards. Name and ranges are overwritten.
	Informer client.InformerOptions[T]
	// Metrics registers the metrics, unless it is nil.
	Metrics prometheus.Registerer
	// Name is used in logs and metrics; by default the resource.
	Name string
}

// Open returns the informer of a shard.
type Open[T client.Object] func(scope client.Scope, options client.InformerOptions[T]) (*client.Informer[T], error)

// Multi combines the objects of a resource on all shards, while Run runs. Handlers may be added before.
type Multi[T client.Object] struct {
	name     string
	open     Open[T]
	options  Options[T]
	registry *registry
	union    *client.Union[T]
	factory  []client.FactoryOption
	metrics  []prometheus.Collector
	// wake wakes Run when Shard objects have changed.
	wake chan struct{}

	// indexing protects indexers, and is held while an informer is added.
	indexing sync.Mutex
	indexers map[string]client.IndexFunc[T]

	mu     sync.Mutex
	shards map[string]*shard[T]
	// complete is set when the Shard objects were read once and shards contains them.
	complete bool
	// changed is closed and replaced when the result of missingFor may have changed.
	changed chan struct{}
}

func (m *Multi[T]) all() []*shard[T] {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.SortedFunc(maps.Values(m.shards), func(a, b *shard[T]) int { return strings.Compare(a.name, b.name) })
}

// Name returns the name of the set of shards.
func (m *Multi[T]) Name() string { return m.name }

// AddEventHandler adds a handler (see client.Union), which is Synced when all reachable shards were read.
func (m *Multi[T]) AddEventHandler(h client.Handler[T], options ...client.HandlerOption) *client.Registration {
	return m.union.AddEventHandler(h, options...)
}

// AddKeyHandler adds a handler of keys, which contain the shard.
func (m *Multi[T]) AddKeyHandler(changed, removed func(client.Key), options ...client.HandlerOption) *client.Registration {
	return m.union.AddKeyHandler(changed, removed, options...)
}

// AddIndexers adds indexes of the objects of all present and future shards. It fails if an index of that name exists.
func (m *Multi[T]) AddIndexers(indexers map[string]client.IndexFunc[T]) error {
	m.indexing.Lock()
	defer m.indexing.Unlock()
	for name := range indexers {
		if m.indexers[name] != nil {
			return fmt.Errorf("%s already has an index %q", m.name, name)
		}
	}
	for _, shard := range m.union.Shards() {
		if err := m.union.Of(shard).AddIndexers(indexers); err != nil {
			return err
		}
	}
	maps.Copy(m.indexers, indexers)
	return nil
}

// Pause calls f while no handler runs, as client.Union.Pause does.
func (m *Multi[T]) Pause(f func()) { m.union.Pause(f) }

// Lister returns the lister of the objects of all shards.
func (m *Multi[T]) Lister() client.UnionLister[T] { return m.union.Lister() }

// Of returns the informer of one shard, or nil.
func (m *Multi[T]) Of(shard string) *client.Informer[T] { return m.union.Of(shard) }

// shard is a shard. All methods except unusable and unreachable must be called on the goroutine of Multi.Run.
type shard[T client.Object] struct {
	name  string
	of    *Multi[T]
	since time.Time

	// address is the address that clients use.
	address string
	clients *client.Factory
	end     func()

	mu sync.Mutex
	// err is the reason why the Shard object cannot be used, since errSince.
	err      error
	errSince time.Time
}

var errNotRead = errors.New("not read yet")

// closeDelay is the time after which the connection of a canceled stream is idle.
const closeDelay = time.Second

// follow makes the informer follow the address in the Shard object. If that fails, the informer keeps its address.
func (s *shard[T]) follow(ctx context.Context, obj *corev1alpha1.Shard) {
	err := s.reach(ctx, obj)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && (s.err == nil || s.err.Error() != err.Error()) {
		s.errSince = time.Now()
		klog.FromContext(ctx).Error(err, "Failed to use a Shard object", "set", s.of.name, "shard", s.name)
	}
	s.err = err
}

func (s *shard[T]) reach(ctx context.Context, obj *corev1alpha1.Shard) error {
	config, err := s.of.options.Dial(obj)
	if err != nil {
		return err
	}
	if s.end != nil && s.address == config.Host {
		return nil
	}
	clients, err := client.NewFactory(config, s.of.factory...)
	if err != nil {
		return err
	}
	informer := s.of.Of(s.name)
	if informer == nil {
		if informer, err = s.open(clients); err != nil {
			return err
		}
	} else {
		klog.FromContext(ctx).Info("Shard address has changed", "set", s.of.name, "shard", s.name, "before", s.address, "now", config.Host)
		s.stop()
		if err := informer.MoveTo(clients.Wildcard()); err != nil {
			return err
		}
	}
	s.address, s.clients = config.Host, clients
	s.start(ctx, informer)
	return nil
}

func (s *shard[T]) open(clients *client.Factory) (*client.Informer[T], error) {
	options := s.of.options.Informer
	options.Name = s.of.name + "@" + s.name
	if s.of.options.Ranges != nil {
		options.Ranges = s.of.options.Ranges(s.name)
	}
	s.of.indexing.Lock()
	defer s.of.indexing.Unlock()
	options.Indexers = s.of.indexers
	informer, err := s.of.open(clients.Wildcard(), options)
	if err != nil {
		return nil, err
	}
	return informer, s.of.union.Add(s.name, informer)
}

func (s *shard[T]) start(ctx context.Context, informer *client.Informer[T]) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		defer cancel()
		if err := informer.Run(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to follow a shard", "set", s.of.name, "shard", s.name)
		}
	})
	running.Go(func() {
		synced := informer.Synced()
		for {
			select {
			case <-ctx.Done():
				return
			case <-synced:
				synced = nil
			case <-informer.Disconnected():
			}
			s.of.notify()
		}
	})
	s.end = func() {
		cancel()
		running.Wait()
	}
}

func (s *shard[T]) stop() {
	if s.end == nil {
		return
	}
	s.end()
	s.end = nil
	// The last stream of an HTTP/2 connection outlasts its cancellation by a moment.
	s.clients.CloseIdleConnections()
	time.AfterFunc(closeDelay, s.clients.CloseIdleConnections)
}

func (s *shard[T]) unusable() (since time.Time, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.errSince, s.err
}

func (s *shard[T]) unreachable() (since time.Time, why error) {
	if since, why = s.unusable(); why != nil {
		return since, why
	}
	informer := s.of.Of(s.name)
	if informer == nil {
		return s.since, errNotRead
	}
	if since, why = informer.Unreachable(); why != nil {
		if apierrors.IsNotFound(why) {
			why = fmt.Errorf("the shard does not serve %s: %w", s.of.name, why)
		}
		return since, why
	}
	if !informer.HasSynced() {
		return s.since, errNotRead
	}
	return time.Time{}, nil
}

// Which specifies a set of shards.
type Which string

const (
	// All means all shards.
	All Which = "All"
	// Reachable means the shards that respond.
	Reachable Which = "Reachable"
)

// Missing is a shard whose objects may be outdated or missing.
type Missing struct {
	// Shard is its name; empty for the Shard objects themselves.
	Shard string
	Since time.Time
	Why   error
}

// Missing returns the Shard objects and then the shards, sorted by name, that are unreachable or cannot be followed.
func (m *Multi[T]) Missing() []Missing {
	var missing []Missing
	if since, why := m.registry.unreachable(); why != nil {
		missing = append(missing, Missing{Since: since, Why: fmt.Errorf("the Shard objects: %w", why)})
	}
	for _, s := range m.all() {
		if since, why := s.unreachable(); why != nil {
			missing = append(missing, Missing{Shard: s.name, Since: since, Why: why})
		}
	}
	return missing
}

// WaitForSync waits until the Shard objects and the objects of all shards were read. With Reachable, it does not wait
// for shards that are found to be unreachable. The error names the missing shards, with reasons.
func (m *Multi[T]) WaitForSync(ctx context.Context, which Which) error {
	for {
		m.mu.Lock()
		changed := m.changed
		m.mu.Unlock()
		err := m.missingFor(which)
		if err == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%s has not synced: %w", m.name, errors.Join(err, context.Cause(ctx)))
		}
	}
}

// HasSynced reports whether WaitForSync would return immediately.
func (m *Multi[T]) HasSynced(which Which) bool { return m.missingFor(which) == nil }

// missingFor returns an error that names everything that was not read.
func (m *Multi[T]) missingFor(which Which) error {
	m.mu.Lock()
	complete := m.complete
	m.mu.Unlock()
	if !complete {
		_, why := m.registry.unreachable()
		return fmt.Errorf("the Shard objects: %w", errors.Join(errNotRead, why))
	}
	var errs []error
	for _, s := range m.all() {
		if informer := m.Of(s.name); informer != nil && informer.HasSynced() {
			continue
		}
		_, why := s.unreachable()
		if why == nil || which == Reachable && !errors.Is(why, errNotRead) {
			continue
		}
		errs = append(errs, fmt.Errorf("shard %s: %w", s.name, why))
	}
	return errors.Join(errs...)
}

// notify wakes callers of WaitForSync.
func (m *Multi[T]) notify() {
	if m.missingFor(Reachable) == nil {
		m.union.MarkSynced()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *Multi[T]) gauges() []prometheus.Collector {
	labels := prometheus.Labels{"set": m.name}
	count := func(connected bool) float64 {
		n := 0.0
		for _, s := range m.all() {
			if _, why := s.unreachable(); (why == nil) == connected {
				n++
			}
		}
		return n
	}
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "shardplane_shards_connected", Help: "Connected shards, by name of the set of shards.", ConstLabels: labels,
		}, func() float64 { return count(true) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "shardplane_shards_missing", ConstLabels: labels,
			Help: "Shards that are unreachable or cannot be watched, by name of the set of shards.",
		}, func() float64 { return count(false) }),
	}
}
