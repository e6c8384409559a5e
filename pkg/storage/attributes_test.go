package storage

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// valueAttributes select by a label as if it were a field, and count objects of other logical clusters.
func valueAttributes(cluster string, strangers *atomic.Int64) *Attributes {
	return &Attributes{Get: func(obj runtime.Object) (labels.Set, fields.Set, error) {
		pod := obj.(*example.Pod)
		if string(logicalcluster.From(pod)) != cluster {
			strangers.Add(1)
		}
		return pod.Labels, fields.Set{"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "value": pod.Labels["value"]}, nil
	}}
}

func ofValue(value string) storage.ListOptions {
	opts := listOpts()
	opts.Predicate.Field = fields.OneTermEqualSelector("value", value)
	return opts
}

// TestAttributes verifies that lists and watches from any layer match the request's own attributes, and that these
// are computed only for objects in its scope.
func TestAttributes(t *testing.T) {
	s := open(t, backendOf(t, BackendConfig{}), podsGR)
	var strangers atomic.Int64
	own := valueAttributes("mine", &strangers)
	ctx := in(t.Context(), "mine")
	for i := range 6 {
		for _, cluster := range []string{"mine", "theirs"} {
			create(in(t.Context(), cluster), t, s, newValuedPod(fmt.Sprint("p", i), fmt.Sprint(i%2)))
		}
	}
	whole := list(ctx, t, s, "/pods", own.Select(ofValue("1")))
	require.Equal(t, []string{"mine|ns/p1", "mine|ns/p3", "mine|ns/p5"}, names(whole.Items...))
	for _, match := range []metav1.ResourceVersionMatch{metav1.ResourceVersionMatchExact, metav1.ResourceVersionMatchNotOlderThan} {
		opts := own.Select(ofValue("1"))
		opts.ResourceVersion, opts.ResourceVersionMatch = whole.ResourceVersion, match
		require.Equal(t, whole.Items, list(ctx, t, s, "/pods", opts).Items)
	}
	anyState := own.Select(ofValue("1"))
	anyState.ResourceVersion = "0"
	require.Equal(t, whole.Items, list(ctx, t, s, "/pods", anyState).Items)

	page := own.Select(ofValue("1"))
	page.Predicate.Limit = 2
	first := list(ctx, t, s, "/pods", page)
	page.Predicate.Continue = first.Continue
	second := list(ctx, t, s, "/pods", page)
	require.Equal(t, whole.Items, append(first.Items, second.Items...))

	w := watchFrom(ctx, t, s, "/pods", "", own.Select(ofValue("1")))
	for _, pod := range whole.Items {
		requireEvent(t, w, watch.Added, pod.Name)
	}
	setValue(ctx, t, s, "p1", "0")
	requireEvent(t, w, watch.Deleted, "p1")
	setValue(in(t.Context(), "theirs"), t, s, "p2", "1")
	setValue(ctx, t, s, "p2", "1")
	requireEvent(t, w, watch.Added, "p2")
	require.Zero(t, strangers.Load(), "attributes of objects outside of the scope were computed")
}

// TestAttributesOfOlderWatches verifies that a watch from before the hub's history is served by etcd, and joins the
// hub when it has caught up, even without events that it selects.
func TestAttributesOfOlderWatches(t *testing.T) {
	b := backendOf(t, BackendConfig{})
	s := open(t, b, podsGR)
	var strangers atomic.Int64
	own := valueAttributes("mine", &strangers)
	ctx := in(t.Context(), "mine")
	at := create(ctx, t, s, newPod("ns", "p")).ResourceVersion
	setValue(ctx, t, s, "p", "1")
	setValue(ctx, t, s, "p", "2")
	setValue(in(t.Context(), "theirs"), t, s, "q", "1")
	s = open(t, b, podsGR) // its history begins after the events
	below := &countingWatches{Interface: s.raw}
	s.raw = below
	w := watchFrom(ctx, t, s, "/pods", at, own.Select(ofValue("1")))
	requireEvent(t, w, watch.Added, "p")
	requireEvent(t, w, watch.Deleted, "p")
	idle := watchFrom(ctx, t, s, "/pods", at, own.Select(ofValue("3")))
	require.Eventually(t, func() bool { return below.open.Load() == 0 }, deadline, time.Millisecond, "the watches of etcd must end")
	setValue(ctx, t, s, "p", "3")
	requireEvent(t, idle, watch.Added, "p")
	require.NotZero(t, below.opened.Load())
	require.Zero(t, strangers.Load(), "attributes of objects outside of the scope were computed")
}

type countingWatches struct {
	storage.Interface

	opened, open atomic.Int64
}

func (c *countingWatches) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	w, err := c.Interface.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	c.opened.Add(1)
	c.open.Add(1)
	return &countedWatch{Interface: w, stopped: sync.OnceFunc(func() { c.open.Add(-1) })}, nil
}

type countedWatch struct {
	watch.Interface

	stopped func()
}

func (w *countedWatch) Stop() {
	w.stopped()
	w.Interface.Stop()
}

// setValue sets the label of a pod, which it creates if necessary.
func setValue(ctx context.Context, tb testing.TB, s storage.Interface, name, to string) {
	tb.Helper()
	err := s.GuaranteedUpdate(ctx, "/pods/ns/"+name, &example.Pod{}, false, nil, relabel(to), nil)
	if storage.IsNotFound(err) {
		create(ctx, tb, s, newValuedPod(name, to))
		return
	}
	require.NoError(tb, err)
}

// requireEvent requires the next event of a watch, except bookmarks.
func requireEvent(tb testing.TB, w watch.Interface, want watch.EventType, name string) {
	tb.Helper()
	event := next(tb, w)
	for event.Type == watch.Bookmark {
		event = next(tb, w)
	}
	pod, ok := event.Object.(*example.Pod)
	require.True(tb, ok, "%v", event)
	require.Equal(tb, string(want)+" "+name, string(event.Type)+" "+pod.Name)
}
