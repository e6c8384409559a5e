package cacheserver_test

import (
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/controllers/replication"
)

var relayWrites = flag.Int("relay-writes", 2000, "writes of the benchmark of relays")

// arrivals notes when a reader of a cache server hears of which write.
type arrivals struct {
	mu sync.Mutex
	at map[string]time.Time
}

func newArrivals(b *testing.B, r *region) *arrivals {
	b.Helper()
	a := &arrivals{at: map[string]time.Time{}}
	note := func(shard *corev1alpha1.Shard) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if _, heard := a.at[shard.Spec.ExternalURL]; !heard {
			a.at[shard.Spec.ExternalURL] = time.Now()
		}
	}
	informer := kinds.Shards.Informer(r.f.Shard("*").Wildcard(), client.InformerOptions[*corev1alpha1.Shard]{})
	informer.AddEventHandler(client.Handler[*corev1alpha1.Shard]{
		OnAdd:    func(shard *corev1alpha1.Shard, _ bool) { note(shard) },
		OnUpdate: func(_, shard *corev1alpha1.Shard) { note(shard) },
	})
	start(b, "", informer.Run)
	return a
}

func (a *arrivals) heard(url string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, heard := a.at[url]
	return heard
}

// report tells how long after they were asked for writes were heard of.
func (a *arrivals) report(b *testing.B, where string, asked map[string]time.Time) {
	b.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	took := make([]time.Duration, 0, len(asked))
	for url, at := range asked {
		if heard, ok := a.at[url]; ok {
			took = append(took, heard.Sub(at))
		}
	}
	require.Greater(b, len(took), len(asked)*9/10) // what follows within 50 ms is written together
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms/median-"+where)
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "ms/p99-"+where)
}

// BenchmarkRelay measures how long a write on a shard takes, at 100 a second, until it is an event in an informer that reads the
// cache server of the shard's region, and one that relays from that:
//
//	go test ./pkg/cacheserver -run XXX -bench Relay -benchtime 1x [-relay-writes 500]
func BenchmarkRelay(b *testing.B) {
	for range b.N {
		benchRelay(b)
	}
	b.ReportMetric(0, "ns/op")
}

func benchRelay(b *testing.B) {
	b.Helper()
	const objects = 100
	regions := runRegions(b, map[string][]string{"eu": nil, "us": {"eu"}})
	amber := newTestShard(b, "amber")
	shards := in(b, amber.f, "root", shardsGVR)
	for n := range objects {
		create(b, shards, object(shardsGVR, "Shard", fmt.Sprintf("s-%02d", n), map[string]any{"baseURL": "https://x"}))
	}
	controller, err := replication.New(replication.Config{
		Table: tableOf(b, replication.Resource{GroupVersionResource: shardsGVR}), Shard: "amber", Local: amber.f, Cache: regions["eu"].f,
	})
	require.NoError(b, err)
	start(b, "", controller.Run)
	near, far := newArrivals(b, regions["eu"]), newArrivals(b, regions["us"])
	eventually(b, "all is relayed", func() bool { return markAt(b, regions["us"], "amber").Resources[shardsResource].Count == objects })

	asked := map[string]time.Time{}
	var mu sync.Mutex
	var writing sync.WaitGroup
	tick := time.NewTicker(time.Second / 100)
	defer tick.Stop()
	for n := range *relayWrites {
		<-tick.C
		url := fmt.Sprintf("https://%d", n)
		mu.Lock()
		asked[url] = time.Now()
		mu.Unlock()
		writing.Go(func() {
			_, err := shards.Patch(b.Context(), fmt.Sprintf("s-%02d", n%objects), types.MergePatchType, fmt.Appendf(nil, `{"spec":{"externalURL":%q}}`, url), metav1.PatchOptions{})
			if err != nil {
				b.Error(err)
			}
		})
	}
	writing.Wait()
	last := fmt.Sprintf("https://%d", *relayWrites-1)
	eventually(b, "the last write has arrived", func() bool { return near.heard(last) && far.heard(last) })
	near.report(b, "near", asked)
	far.report(b, "relayed", asked)
}
