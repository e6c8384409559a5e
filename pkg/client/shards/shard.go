package shards

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
)

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

func (s *shard[T]) unusable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *shard[T]) unreachable() (since time.Time, why error) {
	s.mu.Lock()
	if s.err != nil {
		defer s.mu.Unlock()
		return s.errSince, s.err
	}
	s.mu.Unlock()
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
