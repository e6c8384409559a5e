package load

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/bench/measure"
)

// Delivery is a kind of event: a ConfigMap is written, and watches are told.
type Delivery struct {
	// Name and Target are those of the results.
	Name, Target string
	// Cluster is the logical cluster whose objects are written.
	Cluster string
	// Watches are paths, with a watch open at each; of a write Told of them get an event.
	Watches []string
	Told    int

	processor      time.Duration
	writes, events measure.Recorder
}

// DeliveryOptions say how Deliver measures.
type DeliveryOptions struct {
	// Rounds are how often each kind has its turn, with so many writes.
	Rounds, Writes int
	// Rate bounds the writes per second; 0 means as fast as they go.
	Rate float64
	// Processor returns what the shard's process has computed since its start.
	Processor func() (time.Duration, error)
}

// Deliver measures kinds of events by turns: what a write with its events takes of the
// shard's processor, and the time from before the write until an event is there.
func (b *Bindings) Deliver(ctx context.Context, o DeliveryOptions, kinds ...*Delivery) ([]measure.Result, error) {
	for round := range o.Rounds {
		order := slices.Clone(kinds)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, d := range order {
			if err := b.deliver(ctx, o, d); err != nil {
				return nil, fmt.Errorf("%s, %s: %w", d.Name, d.Target, err)
			}
		}
	}
	var results []measure.Result
	for _, d := range kinds {
		n := d.writes.Count()
		results = append(results,
			measure.Result{
				Name: d.Name + ", processor per write", Target: d.Target, Value: float64(d.processor.Microseconds()) / float64(n), Unit: "µs", Count: n,
				Note: fmt.Sprintf("%d watches, %d events of each write", len(d.Watches), d.Told),
			},
			d.events.Median(d.Name+", until the event is there", d.Target))
	}
	return results, nil
}

// sentMark is what comes before the time in an event.
const sentMark = `"` + sentAt + `":"`

// deliver takes one turn.
func (b *Bindings) deliver(ctx context.Context, o DeliveryOptions, d *Delivery) error {
	const watchesPerClient = 100 // a connection has so many streams, and more
	var streams []*stream
	defer func() {
		for _, s := range streams {
			s.close()
		}
	}()
	for i, path := range d.Watches {
		c := b.clients[i/watchesPerClient%len(b.clients)]
		version, err := versionOf(ctx, c, path)
		if err != nil {
			return err
		}
		s, err := openStream(ctx, c, path, version)
		if err != nil {
			return err
		}
		streams = append(streams, s)
	}
	began := time.Now().UnixNano()
	told := newTold(o.Writes * d.Told)
	for _, s := range streams {
		go func() {
			told.end(s.take(o.Writes, func(line []byte) bool {
				_, after, _ := bytes.Cut(line, []byte(sentMark))
				text, _, _ := bytes.Cut(after, []byte(`"`))
				sent, err := strconv.ParseInt(string(text), 10, 64)
				if err != nil || sent < began {
					return false // of an earlier turn
				}
				d.events.Add(time.Since(time.Unix(0, sent)))
				told.one()
				return true
			}))
		}()
	}
	before, err := o.Processor()
	if err != nil {
		return err
	}
	p := &phase{limit: int64(o.Writes)}
	if o.Rate > 0 {
		p.interval = time.Duration(float64(time.Second) / o.Rate)
	}
	run(ctx, p, b.clients, func(ctx context.Context, c *rest.RESTClient, n int) error {
		err := b.putConfigMap(ctx, c, d.Cluster, fmt.Sprintf("written%d", n%writtenObjects), fmt.Sprintf(`{%q:"%d"}`, sentAt, time.Now().UnixNano()))
		if err == nil {
			d.writes.Add(0)
		}
		return err
	})
	if err := p.recorder.FirstError(); err != nil {
		return err
	}
	if err := told.wait(ctx); err != nil {
		return err
	}
	after, err := o.Processor()
	d.processor += after - before
	return err
}

// putConfigMap writes an object that there is.
func (b *Bindings) putConfigMap(ctx context.Context, c *rest.RESTClient, cluster, name, data string) error {
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":%s}`, name, data)
	return c.Put().AbsPath("/clusters/"+cluster+configMapsPath+"/"+name).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(ctx).Error()
}

// makeConfigMaps makes objects in a logical cluster.
func (b *Bindings) makeConfigMaps(ctx context.Context, cluster, prefix string, count int) error {
	p := &phase{limit: int64(count)}
	run(ctx, p, b.clients, func(ctx context.Context, c *rest.RESTClient, n int) error {
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s%d"},"data":{"key":"value"}}`, prefix, n)
		return c.Post().AbsPath("/clusters/"+cluster+configMapsPath).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(ctx).Error()
	})
	return p.recorder.FirstError()
}

// told counts events of several watches.
type told struct {
	mu   sync.Mutex
	left int
	over error
	done chan struct{}
}

func newTold(events int) *told { return &told{left: events, done: make(chan struct{})} }

func (t *told) one() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left--; t.left == 0 && t.over == nil {
		close(t.done)
	}
}

// end notes why a watch has ended.
func (t *told) end(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left > 0 && t.over == nil && err != nil {
		t.over = err
		close(t.done)
	}
}

// wait waits until all events have come.
func (t *told) wait(ctx context.Context) error {
	select {
	case <-t.done:
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left > 0 && t.over == nil {
		return fmt.Errorf("%d events have not come: %w", t.left, ctx.Err())
	}
	return t.over
}
