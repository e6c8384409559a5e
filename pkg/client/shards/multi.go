package shards

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"

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

// shard is one shard of a view, and its informer while it has a usable address. Its methods but
// unusable and away are for the goroutine of the view.
type shard[T client.Object] struct {
	name string
	of   *Multi[T]
	// since is when its Shard object came.
	since time.Time

	// address is where the informer follows it, and clients are of that.
	address string
	clients *client.Factory
	end     func()

	mu sync.Mutex
	// err says why what the Shard object says cannot be used, and errSince since when.
	err      error
	errSince time.Time
}

// errNotRead says that nothing is known to be wrong.
var errNotRead = errors.New("not read yet")
