package shards

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
)

// New returns a Multi for a resource; run it with Run.
func New[T client.Object, L runtime.Object](source Source, resource client.Resource[T, L], options Options[T]) (*Multi[T], error) {
	options.Name = cmp.Or(options.Name, resource.GroupResource().String())
	return NewWith(source, func(scope client.Scope, informer client.InformerOptions[T]) (*client.Informer[T], error) {
		return resource.Informer(scope, informer), nil
	}, options)
}

// NewWith is New for resources without Go types, or for metadata: open calls e.g. client.NewDynamicInformer.
func NewWith[T client.Object](source Source, open Open[T], options Options[T]) (*Multi[T], error) {
	options.Name = cmp.Or(options.Name, "objects of all shards")
	if options.Partition == nil {
		options.Partition = labels.Everything()
	}
	m := &Multi[T]{
		name: options.Name, open: open, options: options, wake: make(chan struct{}, 1), shards: map[string]*shard[T]{}, changed: make(chan struct{}),
		indexers: map[string]client.IndexFunc[T]{},
	}
	maps.Copy(m.indexers, options.Informer.Indexers)
	m.union = client.NewUnion[T](m.name, m.incomplete)
	var err error
	if m.registry, err = source.open(m.name, m.wakeUp); err != nil {
		return nil, err
	}
	if options.Dial == nil {
		m.options.Dial = source.dial()
	}
	if options.Metrics == nil {
		return m, nil
	}
	m.metrics = m.gauges()
	for _, gauge := range m.metrics {
		if err := options.Metrics.Register(gauge); err != nil {
			return nil, fmt.Errorf("registering the metrics of %s: %w", m.name, err)
		}
	}
	m.factory = append(m.factory, client.WithMetrics(options.Metrics))
	return m, nil
}

func (m *Multi[T]) wakeUp() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Run follows the shards until ctx is done and all its goroutines have ended. It must be called once.
func (m *Multi[T]) Run(ctx context.Context) error {
	var following sync.WaitGroup
	following.Go(func() { m.registry.run(ctx) })
	for _, gauge := range m.metrics {
		defer m.options.Metrics.Unregister(gauge)
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
		case <-m.wake:
			if m.registry.complete() {
				m.reconcile(ctx)
			}
			m.notify()
		}
	}
}

func (m *Multi[T]) reconcile(ctx context.Context) {
	wanted := map[string]*corev1alpha1.Shard{}
	for _, obj := range m.registry.list() {
		if m.options.Partition.Matches(labels.Set(obj.Labels)) {
			wanted[obj.Name] = obj
		}
	}
	for _, s := range m.all() {
		if wanted[s.name] == nil {
			klog.FromContext(ctx).Info("Shard was removed", "set", m.name, "shard", s.name)
			s.stop()
			m.union.Remove(s.name, client.ShardRemoved)
			m.mu.Lock()
			delete(m.shards, s.name)
			m.mu.Unlock()
		}
	}
	for name, obj := range wanted {
		m.mu.Lock()
		s := m.shards[name]
		if s == nil {
			s = &shard[T]{name: name, of: m, since: time.Now()}
			m.shards[name] = s
		}
		m.mu.Unlock()
		s.follow(ctx, obj)
	}
	m.mu.Lock()
	m.complete = true
	m.mu.Unlock()
}

// incomplete returns an error if the union does not contain all shards.
func (m *Multi[T]) incomplete() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.complete {
		_, why := m.registry.unreachable()
		return errors.Join(errNotRead, why)
	}
	for _, s := range m.shards {
		if _, err := s.unusable(); err != nil && m.union.Of(s.name) == nil {
			return fmt.Errorf("shard %s: %w", s.name, err)
		}
	}
	return nil
}
