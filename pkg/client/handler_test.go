package client

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/test/bubble"
)

func namesTo(names *[]string) Handler[*corev1.ConfigMap] {
	return Handler[*corev1.ConfigMap]{
		OnAdd:    func(obj *corev1.ConfigMap, _ bool) { *names = append(*names, "+"+obj.Name) },
		OnUpdate: func(_, obj *corev1.ConfigMap) { *names = append(*names, "="+obj.Name) },
		OnDelete: func(last *corev1.ConfigMap, _ bool) { *names = append(*names, "-"+last.Name) },
	}
}

// TestRegistrations: a handler is synced when it was notified of all present objects, however it is called and
// whenever it was added, and is not called after it was removed.
func TestRegistrations(t *testing.T) {
	for _, options := range [][]HandlerOption{nil, {Buffered()}} {
		server := filled(12)
		server.script(unavailable)
		inBubble(t, server, InformerOptions[*corev1.ConfigMap]{}, func(t *testing.T, i *follower) {
			var early, late []string
			first := i.AddEventHandler(namesTo(&early), options...)
			require.False(t, first.HasSynced())
			pass(time.Second)
			<-first.Synced()
			require.Len(t, early, 12)
			second := i.AddEventHandler(namesTo(&late), options...)
			<-second.Synced()
			require.True(t, second.HasSynced())
			require.Len(t, late, 12)

			server.put(scriptedKey(1), "second")
			server.remove(scriptedKey(2))
			bubble.Wait()
			require.Equal(t, []string{"=x01", "-x02"}, early[12:], "events must be in order")
			second.Remove()
			second.Remove()
			server.put(scriptedKey(20), "first")
			bubble.Wait()
			require.Len(t, early, 15)
			require.Len(t, late, 14)
		})
	}
}

// TestBuffered: a slow buffered handler does not delay others until its queue is full. Pending changes are delivered
// in order. Its goroutine ends when it is removed or the informer ends.
func TestBuffered(t *testing.T) {
	server := filled(3)
	inBubble(t, server, InformerOptions[*corev1.ConfigMap]{}, func(t *testing.T, i *follower) {
		bubble.Wait()
		gate := make(chan struct{})
		var slow []string
		r := i.AddEventHandler(Handler[*corev1.ConfigMap]{OnUpdate: func(_, obj *corev1.ConfigMap) {
			<-gate
			slow = append(slow, obj.Data["content"])
		}}, Buffered())
		var want []string
		for n := range 2 * buffer {
			want = append(want, fmt.Sprint(n))
			server.put(scriptedKey(1), want[n])
			if n == buffer/2 {
				i.agrees(t, server)
			}
		}
		bubble.Wait()
		require.NotEqual(t, server.state(), i.notified, "the queue must be bounded")
		close(gate)
		i.agrees(t, server)
		require.Equal(t, want, slow)

		gate = make(chan struct{})
		for n := range 2 * buffer {
			server.put(scriptedKey(1), fmt.Sprint(n))
		}
		bubble.Wait()
		removed := make(chan struct{})
		go func() {
			r.Remove()
			close(removed)
		}()
		bubble.Wait()
		require.Len(t, slow, len(want))
		close(gate)
		<-removed
		i.agrees(t, server)
		require.Len(t, slow, len(want)+1, "pending events must be dropped")
	})
}

// TestPanickingHandler: a panic is counted, and does not affect other handlers or later events.
func TestPanickingHandler(t *testing.T) {
	for _, options := range [][]HandlerOption{nil, {Buffered()}} {
		server := filled(3)
		inBubble(t, server, InformerOptions[*corev1.ConfigMap]{}, func(t *testing.T, i *follower) {
			calls := 0
			i.AddEventHandler(Handler[*corev1.ConfigMap]{
				OnAdd:    func(*corev1.ConfigMap, bool) { calls++; panic("on purpose") },
				OnDelete: func(*corev1.ConfigMap, bool) { calls++; panic("on purpose") },
			}, options...)
			pass(time.Second)
			server.remove(scriptedKey(1))
			pass(time.Second)
			i.agrees(t, server)
			require.Equal(t, 4, calls)
			require.EqualValues(t, 4, i.counts.panics.Load())
		})
	}
}

// TestAddIndexers: a late index contains all objects, and follows changes.
func TestAddIndexers(t *testing.T) {
	server := filled(12)
	inBubble(t, server, InformerOptions[*corev1.ConfigMap]{}, func(t *testing.T, i *follower) {
		bubble.Wait()
		byContent := map[string]IndexFunc[*corev1.ConfigMap]{"content": func(cm *corev1.ConfigMap) []string { return []string{cm.Data["content"]} }}
		_, err := i.Lister().ByIndex("content", "first")
		require.ErrorContains(t, err, "AddIndexers")
		require.NoError(t, i.AddIndexers(byContent))
		require.ErrorContains(t, i.AddIndexers(byContent), `index "content" already exists`)
		server.put(scriptedKey(3), "second")
		bubble.Wait()
		for content, want := range map[string]int{"first": 11, "second": 1} {
			objs, err := i.Lister().ByIndex("content", content)
			require.NoError(t, err)
			require.Len(t, objs, want)
		}
	})
}

// TestMetrics: informers are measured while they run.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	factory, err := NewFactory(&rest.Config{Host: "https://127.0.0.1:1"}, WithMetrics(registry))
	require.NoError(t, err)
	other, err := NewFactory(&rest.Config{Host: "https://127.0.0.1:1"}, WithMetrics(registry))
	require.NoError(t, err)
	require.Same(t, factory.metrics, other.metrics, "factories of one registry must share a collector")
	taken := prometheus.NewRegistry()
	taken.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "shardplane_client_informer_objects"}))
	_, err = NewFactory(&rest.Config{Host: "https://127.0.0.1:1"}, WithMetrics(taken))
	require.ErrorContains(t, err, "cannot create a factory")
	gather := func() map[string]float64 {
		families, err := registry.Gather()
		require.NoError(t, err)
		values := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := f.GetName()[len("shardplane_client_informer_"):]
				for _, l := range m.GetLabel() {
					if l.GetName() == "by" {
						name += " " + l.GetValue()
					} else {
						require.Equal(t, "configmaps@*", l.GetValue())
					}
				}
				values[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		return values
	}
	server := filledClusters(40)
	server.shards = ignores
	server.factory = factory
	ranges := partsOf(t, ByCluster, 1)
	inParts(t, server, ranges, InformerOptions[*corev1.ConfigMap]{}, func(t *testing.T, i *sharded) {
		i.requireComplete(t, server)
		held := float64(len(server.in(ranges)))
		require.Equal(t, map[string]float64{
			"objects": held, "streams": 1, "synced": 1, "filtered client": 1, "events_total": 40, "discarded_total": 40 - held, "relists_total": 0, "stale_seconds": 0, "received_bytes_total": 0, "handler_panics_total": 0,
		}, gather())
	})
	require.Empty(t, gather())
}

// TestFilteredByClientIsLogged: a server that does not filter is logged once.
func TestFilteredByClientIsLogged(t *testing.T) {
	var logged []string
	ctx := klog.NewContext(t.Context(), funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{}))
	r := &filterReport{}
	for _, by := range []Filtered{FilteredByServer, FilteredByClient, FilteredByServer, FilteredByClient} {
		r.set(ctx, by, nil)
	}
	require.Len(t, logged, 1)
	require.Contains(t, logged[0], "each replica receives all objects")
}
