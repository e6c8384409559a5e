package frontproxy

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// smallAnswer is about the size of a small object.
var smallAnswer = make([]byte, 700)

// benchWorld is a world whose shard answers at once with a small object.
func benchWorld(b *testing.B) (*world, map[string]*person) {
	b.Helper()
	w := newWorld(b, "root")
	w.ready(b)
	w.knows(b, "root", "root")
	w.shards["root"].handle(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		_, _ = rw.Write(smallAnswer)
	})
	admin := w.person(b, "admin", "system:masters")
	return w, map[string]*person{"HTTP2": admin, "HTTP1": admin.http1(b)}
}

func bases(w *world) map[string]string {
	return map[string]string{"direct": "https://" + w.shards["root"].addr, "proxy": w.proxy.URL()}
}

func fetch(b *testing.B, p *person, url string) {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url, nil)
	if err != nil {
		b.Error(err)
		return
	}
	res, err := p.Do(req)
	if err != nil {
		b.Error(err)
		return
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusOK {
		b.Error(err, res.Status)
	}
	_ = res.Body.Close()
}

// BenchmarkGet compares small GETs through the front-proxy with direct ones.
// Client, front-proxy and shard share the machine.
func BenchmarkGet(b *testing.B) {
	w, people := benchWorld(b)
	for name, base := range bases(w) {
		for proto, p := range people {
			url := base + "/clusters/root/api/v1/namespaces/default/configmaps/x"
			b.Run(name+"/"+proto+"/one", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					fetch(b, p, url)
				}
			})
			b.Run(name+"/"+proto+"/parallel", func(b *testing.B) {
				b.SetParallelism(8)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						fetch(b, p, url)
					}
				})
			})
		}
	}
}

// BenchmarkLargeAnswer reads an answer of 32 MiB, as of a long list.
func BenchmarkLargeAnswer(b *testing.B) {
	w, people := benchWorld(b)
	w.shards["root"].handle(func(rw http.ResponseWriter, _ *http.Request) {
		part := make([]byte, 64<<10)
		for range 512 {
			if _, err := rw.Write(part); err != nil {
				return
			}
		}
	})
	for name, base := range bases(w) {
		for proto, p := range people {
			b.Run(name+"/"+proto, func(b *testing.B) {
				b.SetBytes(32 << 20)
				for b.Loop() {
					fetch(b, p, base+"/clusters/root/api/v1/configmaps")
				}
			})
		}
	}
}

// BenchmarkWatchFan sends events to 200 watches; one operation is one event
// that has reached all of them.
func BenchmarkWatchFan(b *testing.B) {
	const watches = 200
	w, people := benchWorld(b)
	for name, base := range bases(w) {
		for proto, p := range people {
			b.Run(name+"/"+proto, func(b *testing.B) {
				line := append(make([]byte, 600), '\n')
				var mu sync.Mutex
				var streams []chan struct{}
				w.shards["root"].handle(func(rw http.ResponseWriter, r *http.Request) {
					events := make(chan struct{}, 1)
					mu.Lock()
					streams = append(streams, events)
					mu.Unlock()
					flusher := http.NewResponseController(rw)
					_ = flusher.Flush()
					for {
						select {
						case <-events:
							_, _ = rw.Write(line)
							_ = flusher.Flush()
						case <-r.Context().Done():
							return
						}
					}
				})
				ctx, cancel := context.WithCancel(b.Context())
				defer cancel()
				var arrived sync.WaitGroup
				for range watches {
					req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/clusters/root/api/v1/configmaps?watch=true", nil)
					require.NoError(b, err)
					res, err := p.Do(req)
					require.NoError(b, err)
					b.Cleanup(func() { _ = res.Body.Close() })
					go func() {
						reader := bufio.NewReader(res.Body)
						for {
							if _, err := reader.ReadSlice('\n'); err != nil {
								return
							}
							arrived.Done()
						}
					}()
				}
				b.ResetTimer()
				for range b.N {
					arrived.Add(watches)
					for _, events := range streams {
						events <- struct{}{}
					}
					arrived.Wait()
				}
			})
		}
	}
}

// BenchmarkUpstreamProtocol compares the protocols between front-proxy and
// shard.
func BenchmarkUpstreamProtocol(b *testing.B) {
	w, _ := benchWorld(b)
	client, err := dynamiccertificates.NewDynamicServingContentFromFiles("bench", w.options.ProxyClientCertFile, w.options.ProxyClientKeyFile)
	require.NoError(b, err)
	config, err := newTLSConfig(w.options.ShardCAFile, client)
	require.NoError(b, err)
	for name, http2 := range map[string]bool{"HTTP1": false, "HTTP2": true} {
		transport := newTransport(config, http2, ahead)
		b.Cleanup(transport.CloseIdleConnections)
		p := &person{Client: &http.Client{Transport: transport}, world: w}
		b.Run(name, func(b *testing.B) {
			b.SetParallelism(8)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					fetch(b, p, "https://"+w.shards["root"].addr+"/clusters/root/x")
				}
			})
		})
	}
}
