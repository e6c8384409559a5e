package hub

import (
	"fmt"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/pkg/request/hashrange"
)

// BenchmarkShardedJoin measures opening and closing a watch with the maximum number of ranges, in addition to the maximum
// number of such watches of a logical cluster.
func BenchmarkShardedJoin(b *testing.B) {
	const most, watchers = 128, 151
	var t intervalTree
	watcher := func(offset uint64) *Watcher {
		w := &Watcher{sharded: true}
		for i := range uint64(most) {
			first := i<<56 + offset<<16
			w.ranges.intervals = append(w.ranges.intervals, hashrange.Interval{First: first, Last: first + 1})
		}
		return w
	}
	for i := range uint64(watchers) {
		t.add(watcher(i))
	}
	w := watcher(watchers / 2)
	for b.Loop() {
		t.add(w)
		t.find(1, nil)
		t.remove(w)
	}
}

// BenchmarkDispatch measures the hub's cost of an event, with watchers that split the ring by one of the keys.
func BenchmarkDispatch(b *testing.B) {
	for _, key := range []hashrange.Key{hashrange.UID, hashrange.Namespace, hashrange.Cluster} {
		for _, watchers := range []int{1, 256, 4096} {
			b.Run(fmt.Sprintf("%s/watchers=%d", key.Path(), watchers), func(b *testing.B) { benchmarkDispatch(b, key, watchers) })
		}
	}
}

func benchmarkDispatch(b *testing.B, key hashrange.Key, watchers int) {
	b.Helper()
	f := filled(b, "a")
	read := make(chan struct{}, watchers)
	for i := range watchers {
		w := f.watchPart(key, i, watchers)
		b.Cleanup(w.Stop)
		go func() {
			for range w.ResultChan() {
				read <- struct{}{}
			}
		}()
	}
	annotations := make([]map[string]string, 512)
	for i := range annotations {
		annotations[i] = map[string]string{logicalcluster.AnnotationKey: fmt.Sprint("cluster", i)}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		obj := versioned(fmt.Sprint(i%512), 11+i)
		obj.Annotations = annotations[i%512]
		e := f.eventOf(watch.Event{Type: watch.Modified, Object: obj})
		f.apply(e)
		<-read
	}
}
