package storage

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
)

// calls are those that a watch cache makes, in order.
type calls struct {
	*belowCache

	mu      sync.Mutex
	made    []string
	event   runtime.Object // the latest
	expires bool           // the next event is an error
}

func (c *calls) note(call string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made = append(c.made, call)
}

// take returns the calls since the last time.
func (c *calls) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	made := c.made
	c.made = nil
	return made
}

func (c *calls) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	c.note("list")
	return c.belowCache.GetList(ctx, key, opts, list)
}

func (c *calls) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	c.note("watch from " + opts.ResourceVersion)
	w, err := c.belowCache.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	return drained{watch.Filter(w, func(event watch.Event) (watch.Event, bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		timed, ok := event.Object.(storage.WatchEventWithRecordTime)
		if !ok || event.Type == watch.Bookmark {
			return event, true
		}
		c.event = timed.Unwrap()
		if c.expires {
			c.expires = false
			status := apierrors.NewResourceExpired("list again").Status()
			return watch.Event{Type: watch.Error, Object: &status}, true
		}
		return event, true
	})}, nil
}

// drained is a filtered watch that need not be read to its end by who stops it.
type drained struct{ watch.Interface }

func (d drained) Stop() {
	d.Interface.Stop()
	for range d.ResultChan() {
	}
}

func (c *calls) key(obj runtime.Object) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := "key of " + obj.(*example.Pod).Name
	if obj == c.event {
		call = "key of the event"
		if len(c.made) > 0 && c.made[len(c.made)-1] == call {
			return podKey(obj) // asked again
		}
	}
	c.made = append(c.made, call)
	return podKey(obj)
}

// Hub.Key takes the objects that fill the watch cache from upstream's calls of
// the key function, and hub.Tap has upstream list again by an error. Should this
// fail with a new version of k8s.io/apiserver, the hub does not see what the
// watch cache holds: look at Hub.Listed, Hub.Key and Hub.Tap first.
func TestUpstreamCallsTheKeyFunctionInTheOrderThatTheHubReliesOn(t *testing.T) {
	t.Parallel()
	b := backendOf(t, BackendConfig{Client: startEtcd(t).Client()}) // it counts revisions
	ctx := t.Context()
	cfg := b.storageConfig(podsGR, podCodec(t))
	newPod := func() runtime.Object { return &example.Pod{} }
	newList := func() runtime.Object { return &example.PodList{} }
	raw, closeRaw, err := b.openEtcd(resource{config: cfg, newFunc: newPod, newListFunc: newList}, keyspace{root: "/pods/"})
	require.NoError(t, err)
	t.Cleanup(closeRaw)
	var last string
	write := func(name string) {
		out := &example.Pod{}
		pod := &example.Pod{}
		pod.Namespace, pod.Name = "ns", name
		require.NoError(t, raw.Create(ctx, "/pods/ns/"+name, pod, out, 0))
		last = out.ResourceVersion
	}
	write("a")
	write("b")
	filled := last

	c := &calls{belowCache: &belowCache{Interface: raw, source: t.Name(), progress: newProgress(b.cfg.Client.Client, t.Name())}}
	t.Cleanup(c.progress.stop)
	cached, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage: c, Versioner: raw.Versioner(), GroupResource: podsGR, EventsHistoryWindow: cfg.EventsHistoryWindow,
		ResourcePrefix: "/pods/", KeyFunc: c.key, GetAttrsFunc: podAttrs, NewFunc: newPod, NewListFunc: newList, Codec: cfg.Codec,
	})
	require.NoError(t, err)
	t.Cleanup(cached.Stop)
	see := func(name string) {
		require.Eventually(t, func() bool {
			return cached.Ready() && cached.Get(ctx, "/pods/ns/"+name, storage.GetOptions{ResourceVersion: last}, &example.Pod{}) == nil
		}, deadline, time.Millisecond)
	}
	require.NoError(t, cached.Wait(ctx))

	write("c")
	see("c")
	require.Equal(t, []string{"list", "key of a", "key of b", "watch from " + filled, "key of the event"}, c.take(),
		"the objects of a list once each and in its order, before the watch that follows; and of an event its own object")
	write("d")
	see("d")
	require.Equal(t, []string{"key of the event"}, c.take())

	c.mu.Lock()
	c.expires = true
	c.mu.Unlock()
	write("e")
	see("e")
	filled = last
	write("f")
	see("f")
	require.Equal(t, []string{"list", "key of a", "key of b", "key of c", "key of d", "key of e", "watch from " + filled, "key of the event"}, c.take(),
		"an expired watch is one that lists again")
}
