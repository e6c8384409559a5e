package client

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

const benchShards = 50

// benchUnion returns informers of fifty shards with 2,000 logical clusters each, of a number of
// objects, and what puts them into a view.
func benchUnion(b *testing.B, perCluster int) (objects int, fill func(u *Union[*corev1.ConfigMap]) []*stream) {
	b.Helper()
	all := make([][]*corev1.ConfigMap, benchShards)
	for shard := range all {
		for cluster := range 2000 {
			for n := range perCluster {
				obj := benchObject(n*benchClusters, n+1)
				obj.Annotations[logicalcluster.AnnotationKey] = fmt.Sprintf("c%02dof%09d", shard, cluster)
				all[shard] = append(all[shard], obj)
				objects++
			}
		}
	}
	return objects, func(u *Union[*corev1.ConfigMap]) []*stream {
		streams := make([]*stream, 0, benchShards)
		for shard := range all {
			i, s := benchStream(b, false)
			if u != nil {
				require.NoError(b, u.Add(fmt.Sprintf("shard-%d", shard), i))
			}
			for _, obj := range all[shard] {
				require.NoError(b, s.sink.put(b.Context(), obj))
			}
			streams = append(streams, s)
		}
		return streams
	}
}

// BenchmarkUnionMemory reports what a view of fifty shards costs per object beside their
// informers.
func BenchmarkUnionMemory(b *testing.B) {
	for _, perCluster := range []int{1, 10} {
		b.Run(fmt.Sprintf("objects=%d", perCluster), func(b *testing.B) {
			objects, fill := benchUnion(b, perCluster)
			var own float64
			for b.Loop() {
				start := heap()
				alone := fill(nil)
				filled := heap()
				runtime.KeepAlive(alone)
				again := heap() // without them
				u := NewUnion[*corev1.ConfigMap]("all", nil)
				alone = fill(u)
				end := heap()
				own = (float64(end-again) - float64(filled-start)) / float64(objects)
				runtime.KeepAlive(u)
				runtime.KeepAlive(alone)
			}
			b.ReportMetric(own, "union-B/object")
		})
	}
}

// BenchmarkUnionGet is a look-up among fifty shards, by the logical cluster alone, and for
// comparison the same look-ups by who knows the informer.
func BenchmarkUnionGet(b *testing.B) {
	for _, perCluster := range []int{1, 10} {
		b.Run(fmt.Sprintf("objects=%d", perCluster), func(b *testing.B) {
			_, fill := benchUnion(b, perCluster)
			u := NewUnion[*corev1.ConfigMap]("all", nil)
			fill(u)
			keys := make([]Key, 0, 1000)
			for i := range cap(keys) {
				name := logicalcluster.Name(fmt.Sprintf("c%02dof%09d", i%benchShards, i))
				keys = append(keys, Key{Cluster: name, Namespace: "default", Name: fmt.Sprintf("name-%d", i%perCluster)})
			}
			informers := make([]*Informer[*corev1.ConfigMap], benchShards)
			for i := range informers {
				informers[i] = u.Of(fmt.Sprintf("shard-%d", i))
			}
			for name, get := range map[string]func(n int) (*corev1.ConfigMap, error){
				"union":    func(n int) (*corev1.ConfigMap, error) { return u.Lister().Get(keys[n]) },
				"informer": func(n int) (*corev1.ConfigMap, error) { return informers[n%benchShards].Lister().Get(keys[n]) },
			} {
				b.Run(name, func(b *testing.B) {
					b.ReportAllocs()
					for n := 0; b.Loop(); n++ {
						if _, err := get(n % len(keys)); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		})
	}
}
