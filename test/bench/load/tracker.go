package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/test/bench/measure"
)

// tracker measures when objects of all logical clusters of a shard get where they are
// to get, by a watch. An object is known by its logical cluster: there is one in each.
type tracker struct {
	watch watch.Interface
	there func(*unstructured.Unstructured) bool
	done  sync.WaitGroup

	mu      sync.Mutex
	begin   time.Time
	started map[string]time.Time // those that do not start with the tracker
	reached map[string]bool
	times   measure.Recorder
	last    time.Time
	changed chan struct{} // has an element after an event
	failed  error
}

// track watches from now on.
func track(ctx context.Context, shard Target, resource schema.GroupVersionResource, there func(*unstructured.Unstructured) bool) (*tracker, error) {
	client, err := shard.In("*").dynamic()
	if err != nil {
		return nil, err
	}
	list, err := client.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, fmt.Errorf("listing %s of %s, which needs the kubeconfig of a shard: %w", resource.Resource, shard.Name, err)
	}
	watching, err := client.Resource(resource).Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", resource.Resource, err)
	}
	t := &tracker{
		watch: watching, there: there, begin: time.Now(),
		started: map[string]time.Time{}, reached: map[string]bool{}, changed: make(chan struct{}, 1),
	}
	t.done.Go(t.run)
	return t, nil
}

func (t *tracker) stop() {
	t.watch.Stop()
	t.done.Wait()
}

// starting notes that the way of the object of a logical cluster begins now.
func (t *tracker) starting(cluster string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.started[cluster] = time.Now()
}

// latest is how long the last took that got there, from the beginning of all.
func (t *tracker) latest() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last.Sub(t.begin)
}

func (t *tracker) run() {
	for event := range t.watch.ResultChan() {
		t.take(event, time.Now())
		t.signal()
	}
	t.mu.Lock()
	if t.failed == nil {
		t.failed = errors.New("the watch ended")
	}
	t.mu.Unlock()
	t.signal()
}

func (t *tracker) signal() {
	select {
	case t.changed <- struct{}{}:
	default: // there is one already
	}
}

func (t *tracker) take(event watch.Event, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	object, ok := event.Object.(*unstructured.Unstructured)
	if event.Type == watch.Error || !ok {
		t.failed = fmt.Errorf("the watch failed: %v", event.Object)
		return
	}
	cluster := object.GetAnnotations()[clusterAnnotation]
	if event.Type == watch.Deleted || t.reached[cluster] || !t.there(object) {
		return
	}
	t.reached[cluster], t.last = true, now
	begin, ok := t.started[cluster]
	if !ok {
		begin = t.begin
	}
	t.times.Add(now.Sub(begin))
}

// wait waits until so many objects are there.
func (t *tracker) wait(ctx context.Context, count int) error {
	for {
		t.mu.Lock()
		reached, failed := len(t.reached), t.failed
		t.mu.Unlock()
		switch {
		case reached >= count:
			return nil
		case failed != nil:
			return fmt.Errorf("%d of %d got there: %w", reached, count, failed)
		}
		select {
		case <-t.changed:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d got there: %w", reached, count, ctx.Err())
		}
	}
}
