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

// Options configure a Multi. The zero value selects all objects, with the credentials of the source.
type Options[T client.Object] struct {
	// Dial returns the client configuration of a shard. The default is its spec.baseURL with the configuration by
	// which the Shard objects are read.
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
	metrics  *metrics
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

// AddEventHandler adds a handler, as client.Informer.AddEventHandler does; see client.Union for objects that are on
// two shards. The handler is Synced when all reachable shards were read.
func (m *Multi[T]) AddEventHandler(h client.Handler[T], options ...client.HandlerOption) *client.Registration {
	return m.union.AddEventHandler(h, options...)
}

// AddKeyHandler adds a handler of keys, as client.Informer.AddKeyHandler does. The keys contain the shard.
func (m *Multi[T]) AddKeyHandler(changed, left func(client.Key), options ...client.HandlerOption) *client.Registration {
	return m.union.AddKeyHandler(changed, left, options...)
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

// Versions returns the resourceVersion of each shard up to which events were received, for diagnosis. Versions of
// different shards are not comparable.
func (m *Multi[T]) Versions() map[string]string {
	versions := map[string]string{}
	for _, s := range m.all() {
		if informer := m.Of(s.name); informer != nil {
			versions[s.name] = informer.ResourceVersion()
		}
	}
	return versions
}

// shard is a shard and, if it has a usable address, its informer. All methods except unusable and unreachable must be
// called on the goroutine of Multi.Run.
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
