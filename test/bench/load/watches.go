package load

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/shardplane/shardplane/test/bench/measure"
)

// WatchOptions say how Watches loads a population.
type WatchOptions struct {
	// Watchers is the number of watches over all logical clusters.
	Watchers int
	// Sharded divides the objects among the watchers by a shardSelector, so that
	// each event belongs to one of them; otherwise each gets every event.
	Sharded bool
	// Rate is the number of updates per second of all writers.
	Rate float64
	// Size is how many bytes of data an update has beside its time.
	Size int
	// Duration is for how long updates are made.
	Duration time.Duration
	// Late bounds the wait for the last events.
	Late time.Duration
}

// sentAt is the key of an object's data with the time of its last update.
const sentAt = "sentAt"

// Watches updates objects while watches are open and measures the time from
// before an update until its event is there. It fails when a watch ends or an
// event is missing.
func Watches(ctx context.Context, target Target, p Population, o WatchOptions) ([]measure.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, o.Duration+o.Late+time.Minute)
	defer cancel()
	group := &watchers{events: make(chan struct{}, 1)}
	defer group.stop()
	if err := group.open(ctx, target.In("*"), p.Run, o); err != nil {
		return nil, err
	}

	updates, elapsed, err := updateObjects(ctx, target, p, o)
	if err != nil {
		return nil, err
	}
	want := int64(updates.recorder.Count())
	if !o.Sharded {
		want *= int64(o.Watchers)
	}
	if err := group.wait(ctx, want, o.Late); err != nil {
		return nil, fmt.Errorf("watches at %s: %w", target.Name, err)
	}
	kind := "watches"
	if o.Sharded {
		kind = "sharded watches"
	}
	name := fmt.Sprintf("event at %d %s", o.Watchers, kind)
	update := fmt.Sprintf("update under %d %s", o.Watchers, kind)
	events := group.recorder.Median(name, target.Name)
	events.Note = fmt.Sprintf("%.0f updates per second", float64(updates.recorder.Count())/elapsed.Seconds())
	result, err := updates.result(update, target.Name, elapsed)
	return []measure.Result{events, result}, err
}

// updateObjects makes the updates that the watches are to see.
func updateObjects(ctx context.Context, target Target, p Population, o WatchOptions) (*phase, time.Duration, error) {
	where, err := places(target, p.Clusters)
	if err != nil {
		return nil, 0, err
	}
	update := &phase{limit: max(int64(o.Rate*o.Duration.Seconds()), 1), interval: time.Duration(float64(time.Second) / o.Rate)}
	elapsed := run(ctx, update, make([]struct{}, populatingClients), func(ctx context.Context, _ struct{}, n int) error {
		object := spread(n) % p.Objects
		to := where[object%len(where)]
		data := map[string]string{sentAt: strconv.FormatInt(time.Now().UnixNano(), 10)}
		if o.Size > 0 {
			data["data"] = strings.Repeat("x", o.Size)
		}
		_, err := to.client.CoreV1().ConfigMaps(to.namespace).Update(ctx,
			configMap(objectName(p.Run, object/len(where)), p.Run, data), metav1.UpdateOptions{})
		return err
	})
	if err := update.recorder.FirstError(); err != nil {
		return nil, 0, fmt.Errorf("updating objects at %s: %w", target.Name, err)
	}
	return update, elapsed, nil
}

// watchers are open watches that record how late their events are.
type watchers struct {
	recorder measure.Recorder
	received atomic.Int64
	// events holds a token after an event or the end of a watch.
	events chan struct{}

	streams  []watch.Interface
	done     sync.WaitGroup
	stopping atomic.Bool

	mu     sync.Mutex
	failed error
}

// open starts the watches at the latest state and returns when all are there.
func (w *watchers) open(ctx context.Context, target Target, run string, o WatchOptions) error {
	client, err := target.client()
	if err != nil {
		return err
	}
	list, err := client.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return fmt.Errorf("listing before the watches at %s: %w", target.Name, err)
	}
	for i := range o.Watchers {
		if i%watchesPerConnection == 0 {
			if client, err = target.client(); err != nil {
				return err
			}
		}
		options := metav1.ListOptions{LabelSelector: benchLabel + "=" + run, ResourceVersion: list.ResourceVersion}
		if o.Sharded {
			options.ShardSelector = shardSelector(i, o.Watchers)
		}
		if err := w.add(ctx, client, options); err != nil {
			return fmt.Errorf("opening watch %d at %s: %w", i, target.Name, err)
		}
	}
	return nil
}

// watchesPerConnection keeps one connection from becoming what is measured.
const watchesPerConnection = 16

func (w *watchers) add(ctx context.Context, client *kubernetes.Clientset, options metav1.ListOptions) error {
	watching, err := client.CoreV1().ConfigMaps("").Watch(ctx, options)
	if err != nil {
		return err
	}
	w.streams = append(w.streams, watching)
	w.done.Go(func() {
		for event := range watching.ResultChan() {
			w.take(event)
		}
		if !w.stopping.Load() {
			w.fail(errors.New("a watch ended"))
		}
	})
	return nil
}

func (w *watchers) take(event watch.Event) {
	object, ok := event.Object.(*corev1.ConfigMap)
	if !ok {
		w.fail(fmt.Errorf("a watch failed: %v", event.Object))
		return
	}
	if sent, err := strconv.ParseInt(object.Data[sentAt], 10, 64); err == nil {
		w.recorder.Add(time.Since(time.Unix(0, sent)))
		w.received.Add(1)
		w.signal()
	}
}

func (w *watchers) fail(err error) {
	w.mu.Lock()
	if w.failed == nil {
		w.failed = err
	}
	w.mu.Unlock()
	w.signal()
}

func (w *watchers) signal() {
	select {
	case w.events <- struct{}{}:
	default: // a token is there already
	}
}

// wait waits for the events of all updates.
func (w *watchers) wait(ctx context.Context, want int64, late time.Duration) error {
	timer := time.NewTimer(late)
	defer timer.Stop()
	for {
		w.mu.Lock()
		failed := w.failed
		w.mu.Unlock()
		switch received := w.received.Load(); {
		case failed != nil:
			return fmt.Errorf("after %d of %d events: %w", received, want, failed)
		case received == want:
			return nil
		case received > want:
			return fmt.Errorf("%d events for %d updates: some came twice", received, want)
		}
		select {
		case <-w.events:
		case <-timer.C:
			return fmt.Errorf("%d of %d events came within %s of the last update", w.received.Load(), want, late)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *watchers) stop() {
	w.stopping.Store(true)
	for _, watching := range w.streams {
		watching.Stop()
	}
	w.done.Wait()
}

// shardSelector returns the i-th of n equal parts of the ring of hashes.
func shardSelector(i, n int) string {
	bound := func(i int) string {
		if i == n {
			return "0x10000000000000000"
		}
		part := ^uint64(0)/uint64(n) + 1 // overflows to 0 for n = 1, of which only part 0 is asked
		return fmt.Sprintf("0x%016x", part*uint64(i))
	}
	return fmt.Sprintf("shardRange(object.metadata.uid, '%s', '%s')", bound(i), bound(i+1))
}
