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
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
)

// Options say what a view is of, and how shards are reached. The zero value is of all, reached
// with the credentials of the source.
type Options[T client.Object] struct {
	// Dial says how to connect to a shard. By default that is at its spec.baseURL, with the
	// configuration by which the Shard objects are read.
	Dial Dial
	// Partition selects shards by the labels of their Shard objects; nil selects all.
	Partition labels.Selector
	// Ranges are those of each shard, by its name; nil selects all objects.
	Ranges func(shard string) client.RangeSource
	// Informer has the options of each shard's informer. Its name and ranges are set by the
	// view.
	Informer client.InformerOptions[T]
	// Metrics is where the metrics of the view and of its informers are registered; nil is
	// nowhere.
	Metrics prometheus.Registerer
	// Name is the name of the view in logs and metrics; the resource by default.
	Name string
}

// Open makes the informer of a shard.
type Open[T client.Object] func(scope client.Scope, options client.InformerOptions[T]) (*client.Informer[T], error)

// Multi is one view of what all shards have of a resource, while Run runs. Handlers may be added
// before.
type Multi[T client.Object] struct {
	name    string
	open    Open[T]
	options Options[T]
	known   *known
	union   *client.Union[T]
	factory []client.FactoryOption
	metrics *metrics
	// kick wakes Run up when Shard objects changed; it holds one wake-up.
	kick chan struct{}

	// indexers are the indexes of all informers, and indexing is held while some are added, and
	// while an informer is.
	indexing sync.Mutex
	indexers map[string]client.IndexFunc[T]

	mu     sync.Mutex
	shards map[string]*shard[T]
	// complete is set when the Shard objects have been read once, and shards has them.
	complete bool
	// news is closed, and made anew, when what WaitForSync waits for may have changed.
	news chan struct{}
}

// New returns the view of a resource; run it. It connects to nothing.
func New[T client.Object, L runtime.Object](source Source, resource client.Resource[T, L], options Options[T]) (*Multi[T], error) {
	if options.Name == "" {
		options.Name = resource.GroupResource().String()
	}
	return NewWith(source, func(scope client.Scope, informer client.InformerOptions[T]) (*client.Informer[T], error) {
		return resource.Informer(scope, informer), nil
	}, options)
}

// NewWith is New for what has no Go types, or of what only the metadata are wanted: open is
// client.NewDynamicInformer or client.NewMetadataInformer with its resource.
func NewWith[T client.Object](source Source, open Open[T], options Options[T]) (*Multi[T], error) {
	if options.Name == "" {
		options.Name = "objects of all shards"
	}
	if options.Dial == nil {
		options.Dial = source.dial()
	}
	if options.Partition == nil {
		options.Partition = labels.Everything()
	}
	m := &Multi[T]{
		name: options.Name, open: open, options: options, kick: make(chan struct{}, 1), shards: map[string]*shard[T]{}, news: make(chan struct{}),
		indexers: maps.Clone(options.Informer.Indexers),
	}
	if m.indexers == nil {
		m.indexers = map[string]client.IndexFunc[T]{}
	}
	m.union = client.NewUnion[T](m.name, m.incomplete)
	var err error
	if m.known, err = source.open(m.name, m.wake); err != nil {
		return nil, err
	}
	if options.Metrics == nil {
		return m, nil
	}
	m.metrics = newMetrics(m.name, m.count)
	if err := options.Metrics.Register(m.metrics); err != nil {
		return nil, fmt.Errorf("registering the metrics of %s: %w", m.name, err)
	}
	m.factory = append(m.factory, client.WithMetrics(options.Metrics))
	return m, nil
}

func (m *Multi[T]) wake() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// Run follows the shards until ctx is done and everything it started has ended. It is run once.
func (m *Multi[T]) Run(ctx context.Context) error {
	var following sync.WaitGroup
	following.Go(func() { m.known.run(ctx) })
	if m.metrics != nil {
		defer m.options.Metrics.Unregister(m.metrics)
	}
	defer m.union.Wait()
	defer following.Wait()
	defer func() {
		for _, s := range m.all() {
			s.stop()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.kick:
			if m.known.complete() {
				m.reconcile(ctx)
			}
			m.tell()
		}
	}
}

// reconcile makes the informers agree with the Shard objects.
func (m *Multi[T]) reconcile(ctx context.Context) {
	wanted := map[string]*corev1alpha1.Shard{}
	for _, obj := range m.known.list() {
		if m.options.Partition.Matches(labels.Set(obj.Labels)) {
			wanted[obj.Name] = obj
		}
	}
	for _, s := range m.all() {
		if wanted[s.name] == nil {
			klog.FromContext(ctx).Info("Shard is gone, and its objects leave", "view", m.name, "shard", s.name)
			m.leave(s)
		}
	}
	for name, obj := range wanted {
		s := m.shard(name)
		if s == nil {
			s = &shard[T]{name: name, of: m, since: time.Now()}
			m.mu.Lock()
			m.shards[name] = s
			m.mu.Unlock()
		}
		s.follow(ctx, obj)
	}
	m.mu.Lock()
	m.complete = true
	m.mu.Unlock()
}

// leave ends a shard, whose objects leave.
func (m *Multi[T]) leave(s *shard[T]) {
	s.stop()
	m.union.Remove(s.name, client.ShardGone)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.shards, s.name)
}

// all returns the shards, by name.
func (m *Multi[T]) all() []*shard[T] {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]*shard[T], 0, len(m.shards))
	for _, s := range m.shards {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *shard[T]) int { return strings.Compare(a.name, b.name) })
	return all
}

func (m *Multi[T]) shard(name string) *shard[T] {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.shards[name]
}

// tell wakes those up who wait for the view.
func (m *Multi[T]) tell() {
	if m.waitsFor(Reachable) == nil {
		m.union.MarkSynced()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.news)
	m.news = make(chan struct{})
}

// Name returns the name of the view.
func (m *Multi[T]) Name() string { return m.name }

// AddEventHandler adds a handler of the view, as client.Informer.AddEventHandler does: see
// client.Union for what it is told while an object is on two shards. It has Synced when the
// shards have been read that can be.
func (m *Multi[T]) AddEventHandler(h client.Handler[T], options ...client.HandlerOption) *client.Registration {
	return m.union.AddEventHandler(h, options...)
}

// AddKeyHandler is client.Informer.AddKeyHandler, of keys with the shard of the object.
func (m *Multi[T]) AddKeyHandler(changed, left func(client.Key), options ...client.HandlerOption) *client.Registration {
	return m.union.AddKeyHandler(changed, left, options...)
}

// AddIndexers adds indexes of what all shards have, those that come later, too. It fails if there
// is one of a name already.
func (m *Multi[T]) AddIndexers(indexers map[string]client.IndexFunc[T]) error {
	m.indexing.Lock()
	defer m.indexing.Unlock()
	for name := range indexers {
		if m.indexers[name] != nil {
			return fmt.Errorf("%s has an index %q already", m.name, name)
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

// Lister returns the read access to the objects of all shards.
func (m *Multi[T]) Lister() client.UnionLister[T] { return m.union.Lister() }

// Of returns the informer of one shard, or nil.
func (m *Multi[T]) Of(shard string) *client.Informer[T] { return m.union.Of(shard) }

// Versions returns up to which resourceVersion each shard has been seen, for diagnosis: those of
// different shards do not compare.
func (m *Multi[T]) Versions() map[string]string {
	versions := map[string]string{}
	for _, s := range m.all() {
		if informer := m.Of(s.name); informer != nil {
			versions[s.name] = informer.ResourceVersion()
		}
	}
	return versions
}

// incomplete says which shards are not in the union yet.
func (m *Multi[T]) incomplete() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.complete {
		_, why := m.known.away()
		return errors.Join(errNotRead, why)
	}
	for _, s := range m.shards {
		if err := s.unusable(); err != nil && m.union.Of(s.name) == nil {
			return fmt.Errorf("shard %s: %w", s.name, err)
		}
	}
	return nil
}
