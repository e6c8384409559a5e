package noisyneighbors

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// events checks that large events in the buffers of a logical cluster's watches are limited in
// total.
func events(t *testing.T, w *world) {
	const size, streams, path = 768 << 10, 40, "/api/v1/namespaces/default/secrets"
	w.attacker.create(t, path, fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":%q},"data":{"a":%q}}`, w.id, base64.StdEncoding.EncodeToString(make([]byte, size))))
	// receive opens a watch, and reports whether it was accepted and received the event.
	receive := func() (accepted, received bool) {
		response := w.attacker.open(t, path+"?watch=true&resourceVersion=0&fieldSelector=metadata.name%3D"+w.id)
		if response.StatusCode == http.StatusTooManyRequests {
			return false, false // no capacity for the smallest event
		}
		require.Equal(t, http.StatusOK, response.StatusCode)
		n, _ := io.CopyN(io.Discard, response.Body, size*4/3)
		require.Contains(t, []int64{0, size * 4 / 3}, n)
		return true, n > 0
	}
	require.Eventually(t, func() bool { _, received := receive(); return received }, testTimeout, tick, "watches of the previous run use the capacity")
	before := inUse()
	got := 1
	for range streams {
		accepted, received := receive()
		if !accepted {
			break
		}
		if received {
			got++
		}
	}
	used := inUse() - before
	t.Logf("%d of %d watches use %d bytes", got, streams, used)
	require.LessOrEqual(t, got, maxWatchBytes/size)
	require.Less(t, used, int64(6*maxWatchBytes), "more than three buffers of each largest event and the client's buffers")
	code, _, message := w.quiet.watch(t, path+"?watch=true")
	require.Equal(t, http.StatusOK, code, message)
}

// slowBodies checks that writes with incomplete bodies use no seat, also of their own logical
// cluster.
func slowBodies(t *testing.T, w *world) {
	const slow = 40
	var pending sync.WaitGroup
	t.Cleanup(pending.Wait)
	before := w.metric(t, "shardplane_bodies_waiting_bytes")
	var ends []*io.PipeWriter
	for range slow {
		body, end := io.Pipe()
		ends = append(ends, end)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.quiet.config.Host+configMaps, body)
		require.NoError(t, err)
		pending.Go(func() {
			if response, err := w.quiet.http.Do(r); err == nil {
				_ = response.Body.Close()
			}
		})
		pending.Go(func() { _, _ = end.Write([]byte("{")) })
	}
	t.Cleanup(func() {
		for _, end := range ends {
			_ = end.CloseWithError(io.ErrUnexpectedEOF)
		}
	})
	require.Eventually(t, func() bool {
		return countersMatch(w.metric(t, "shardplane_bodies_waiting_bytes")-before >= slow<<14)
	}, testTimeout, tick, "the shard does not read the bodies")
	for i := range 5 {
		w.quiet.must(t, http.MethodPost, configMaps+"?dryRun=All", fmt.Sprintf(`{"metadata":{"name":"quick-%d"}}`, i))
	}
}

// bucketLabels matches the differences between the series of a histogram.
var bucketLabels = regexp.MustCompile(`_(bucket|sum|count)\b|,?\ble="[^"]*"`)

// paths checks that requests of missing paths create no series, except some of operations that the
// servers execute for the first time meanwhile. A histogram is counted once.
func paths(t *testing.T, w *world) {
	strangers := append([]*tenant{w.attacker}, w.servers...)
	get := func(n int) {
		for i := range n {
			name := fmt.Sprintf("%s-%d", w.id, i)
			for _, path := range []string{"/" + name, "/apis/" + name + ".example/v1/" + name, "/clusters/" + name + "/api/v1/" + name, "/services/cache/shards/" + name + "/clusters/" + name + "/apis/" + name + "/v1/" + name} {
				for _, u := range strangers {
					_, _, err := u.call(t.Context(), http.MethodGet, path, "")
					require.NoError(t, err)
				}
			}
		}
	}
	get(1)
	before := w.scrape(t)
	get(20)
	made := map[string]bool{}
	for _, s := range w.newSeries(t, before, w.scrape(t)) {
		made[bucketLabels.ReplaceAllString(s, "")] = true
	}
	require.Less(t, len(made), 20, "series of 320 requests of missing paths: %.5000v", made)
}
