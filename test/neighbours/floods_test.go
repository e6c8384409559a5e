package neighbours

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

// events: what the watches of a logical cluster hold of large events is bounded in
// all.
func events(t *testing.T, w *world) {
	const size, streams, path = 768 << 10, 40, "/api/v1/namespaces/default/secrets"
	w.attacker.create(t, path, fmt.Sprintf(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":%q},"data":{"a":%q}}`, w.mark, base64.StdEncoding.EncodeToString(make([]byte, size))))
	before := heap()
	got := 0
	for range streams {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.attacker.config.Host+path+"?watch=true&resourceVersion=0&fieldSelector=metadata.name%3D"+w.mark, http.NoBody)
		require.NoError(t, err)
		response, err := w.attacker.http.Do(r)
		require.NoError(t, err)
		t.Cleanup(func() { _ = response.Body.Close() })
		if response.StatusCode == http.StatusTooManyRequests {
			break // there is no room for the smallest event
		}
		require.Equal(t, http.StatusOK, response.StatusCode)
		n, _ := io.CopyN(io.Discard, response.Body, size*4/3)
		if n > 0 {
			require.EqualValues(t, size*4/3, n)
			got++
		}
	}
	held := heap() - before
	t.Logf("%d of %d watches hold %d bytes", got, streams, held)
	require.LessOrEqual(t, got, maxWatchBytes/size)
	require.Positive(t, got)
	require.Less(t, held, uint64(6*maxWatchBytes), "three buffers of each largest event, and the client's")
	code, _, message := w.quiet.open(t, path+"?watch=true")
	require.Equal(t, http.StatusOK, code, message)
}

// slowBodies: writes whose bodies do not end take no seat, even of the logical
// cluster that they are for.
func slowBodies(t *testing.T, w *world) {
	const slow = 40
	var pending sync.WaitGroup
	t.Cleanup(pending.Wait)
	before := w.counted(t, "shardplane_bodies_waiting_bytes")
	var ends []*io.PipeWriter
	for range slow {
		body, end := io.Pipe()
		ends = append(ends, end)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.quiet.config.Host+"/api/v1/namespaces/default/configmaps", body)
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
		return seen(func() bool { return w.counted(t, "shardplane_bodies_waiting_bytes")-before >= slow<<14 })
	}, testTimeout, tick, "the shard reads all of them")
	for i := range 5 {
		w.quiet.must(t, http.MethodPost, "/api/v1/namespaces/default/configmaps?dryRun=All", fmt.Sprintf(`{"metadata":{"name":"quick-%d"}}`, i))
	}
}

// ofBucket finds what tells the series of one histogram apart.
var ofBucket = regexp.MustCompile(`_(bucket|sum|count)\b|,?\ble="[^"]*"`)

// paths: what is asked for that there is not makes no series of any server, but for a few of what a
// server does for the first time meanwhile. A histogram is one.
func paths(t *testing.T, w *world) {
	strangers := append([]*tenant{w.attacker}, w.servers...)
	ask := func(n int) {
		for i := range n {
			name := fmt.Sprintf("%s-%d", w.mark, i)
			for _, path := range []string{"/" + name, "/apis/" + name + ".example/v1/" + name, "/clusters/" + name + "/api/v1/" + name, "/services/cache/shards/" + name + "/clusters/" + name + "/apis/" + name + "/v1/" + name} {
				for _, u := range strangers {
					_, _, err := u.call(t.Context(), http.MethodGet, path, "")
					require.NoError(t, err)
				}
			}
		}
	}
	ask(1)
	before := w.scrape(t)
	ask(20)
	made := map[string]bool{}
	for _, s := range w.fresh(t, before, w.scrape(t)) {
		made[ofBucket.ReplaceAllString(s, "")] = true
	}
	require.Less(t, len(made), 20, "series of 320 requests for what does not exist: %.5000v", made)
}
