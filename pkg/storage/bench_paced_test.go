package storage

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"

	"github.com/shardplane/shardplane/pkg/storage/hub"
)

// madeStore is what a watch cache and its hub read in place of etcd: nothing,
// and then the events that a benchmark makes.
type madeStore struct {
	storage.Interface
	source  *watch.FakeWatcher
	hub     *hub.Hub
	cache   *cacher.Cacher
	version atomic.Uint64
}

func (*madeStore) IsWatchListSemanticsUnSupported() bool               { return true }
func (*madeStore) Versioner() storage.Versioner                        { return storage.APIObjectVersioner{} }
func (*madeStore) CompactRevision() int64                              { return 0 }
func (*madeStore) RequestWatchProgress(context.Context) error          { return nil }
func (*madeStore) EnableResourceSizeEstimation(storage.KeysFunc) error { return nil }
func (s *madeStore) GetCurrentResourceVersion(context.Context) (uint64, error) {
	return s.version.Load(), nil
}

func (s *madeStore) GetList(_ context.Context, _ string, opts storage.ListOptions, list runtime.Object) error {
	s.hub.Listed(opts.Predicate.Continue == "", list)
	return s.Versioner().UpdateList(list, s.version.Load(), "", nil)
}

func (s *madeStore) Watch(_ context.Context, _ string, opts storage.ListOptions) (watch.Interface, error) {
	return s.hub.Tap(s.source, opts.ResourceVersion), nil
}

func newMadeStore(b *testing.B) *madeStore {
	b.Helper()
	s := &madeStore{source: watch.NewFake()}
	s.version.Store(1)
	key := func(obj runtime.Object) string { return "/pods/root/default/" + obj.(*example.Pod).Name }
	s.hub = hub.New(hub.Config{
		Resource: podsGR, Root: "/pods/", Versioner: s.Versioner(), KeyFunc: key, GetAttrs: podAttrs,
		NewFunc:         func() runtime.Object { return &example.Pod{} },
		WantProgress:    func() {},
		CurrentVersion:  s.GetCurrentResourceVersion,
		CompactRevision: s.CompactRevision,
	})
	var err error
	s.cache, err = cacher.NewCacherFromConfig(cacher.Config{
		Storage: s, Versioner: s.Versioner(), GroupResource: podsGR, ResourcePrefix: "/pods/",
		EventsHistoryWindow: 75 * time.Second,
		KeyFunc:             func(obj runtime.Object) (string, error) { return s.hub.Key(obj), nil },
		GetAttrsFunc:        podAttrs,
		NewFunc:             func() runtime.Object { return &example.Pod{} },
		NewListFunc:         func() runtime.Object { return &example.PodList{} },
		Codec:               podCodec(b),
	})
	require.NoError(b, err)
	b.Cleanup(func() {
		s.cache.Stop()
		s.hub.Close()
	})
	require.NoError(b, s.cache.Wait(b.Context()))
	require.NoError(b, s.hub.WaitFresh(b.Context(), 0))
	return s
}

// BenchmarkPaced has 5,000 events a second come in bursts of 50, as if etcd had
// sent them, with 256 watchers that split the ring and read all the time. It
// counts the watches that are ended. An operation is a burst, each 10 ms.
func BenchmarkPaced(b *testing.B) {
	enableSharding(b)
	const burst, watchers, period = 50, 256, 10 * time.Millisecond
	for _, path := range []string{"ours", "upstream"} {
		b.Run(path, func(b *testing.B) {
			s := newMadeStore(b)
			r := &readers{}
			b.Cleanup(r.stop)
			for i := range watchers {
				opts := listOpts()
				opts.ResourceVersion = "1"
				opts.Predicate.ShardSelector = selectorOf(b, slice("uid", i, watchers))
				var w watch.Interface
				var err error
				if paths[path] {
					w, err = s.cache.Watch(b.Context(), "/pods/", opts)
				} else {
					w, err = s.hub.Watch(b.Context(), hub.Request{Key: "/pods/", Version: 1, Predicate: opts.Predicate})
				}
				require.NoError(b, err)
				r.add(w)
			}
			pods := make([]*example.Pod, burst*b.N)
			for i := range pods {
				pods[i] = newPod("default", fmt.Sprint(i%512))
				pods[i].UID = types.UID(fmt.Sprintf("uid-%d", i%512))
				pods[i].ResourceVersion = fmt.Sprint(i + 2)
			}
			stop := measureCPU(b)
			start := time.Now()
			for round := range b.N {
				for _, pod := range pods[round*burst : (round+1)*burst] {
					s.source.Modify(pod)
				}
				if ahead := time.Until(start.Add(time.Duration(round+1) * period)); ahead > 0 {
					time.Sleep(ahead)
				}
			}
			elapsed := time.Since(start)
			require.Eventually(b, func() bool { return r.events.Load() == int64(len(pods)) || r.ended.Load() > 0 }, deadline, time.Millisecond)
			stop()
			b.ReportMetric(float64(r.ended.Load()), "ended")
			b.ReportMetric(float64(len(pods))/elapsed.Seconds(), "events/s")
		})
	}
}
