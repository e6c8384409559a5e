package listwatch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/test/harness"
)

// BenchmarkWildcardList lists 20,000 ConfigMaps of 1 KB in 20 logical clusters
// as JSON, consistently, and in the same run takes apart what such a list cannot
// do without: to copy the same bytes over a connection of the same kind, and to
// encode the objects once. bound-ms is twice the sum of these two, and ratio the
// list as a part of it. All are medians.
func BenchmarkWildcardList(b *testing.B) {
	const objects, clusters = 20_000, 20
	cluster := harness.Start(b, harness.Options{Without: []string{"cache-server", "front-proxy"}})
	shard := cluster.Shard(0)
	client, err := rest.HTTPClientFor(shard)
	require.NoError(b, err)
	defer client.CloseIdleConnections()
	fillConfigMaps(b, client, shard.Host, objects, clusters)

	read := func(client *http.Client, url string, into io.Writer) int64 {
		r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url, http.NoBody)
		require.NoError(b, err)
		r.Header.Set("Accept", "application/json")
		r.Header.Set("Accept-Encoding", "identity")
		response, err := client.Do(r)
		require.NoError(b, err)
		defer func() { _ = response.Body.Close() }()
		require.Equal(b, http.StatusOK, response.StatusCode)
		require.Equal(b, 2, response.ProtoMajor)
		n, err := io.Copy(into, response.Body)
		require.NoError(b, err)
		return n
	}
	url := shard.Host + "/clusters/*/api/v1/configmaps"
	var first bytes.Buffer
	size := read(client, url, &first)
	body := first.Bytes()
	var list corev1.ConfigMapList
	require.NoError(b, json.Unmarshal(body, &list))
	require.GreaterOrEqual(b, len(list.Items), objects)
	info, ok := runtime.SerializerInfoForMediaType(serializer.NewCodecFactory(scheme.Scheme, serializer.WithStreamingCollectionEncodingToJSON()).SupportedMediaTypes(), runtime.ContentTypeJSON)
	require.True(b, ok)
	copier, copyURL := startCopier(b, body)

	var page bytes.Buffer
	inPages := func() {
		for next := url + "?limit=500"; next != ""; {
			page.Reset()
			read(client, next, &page)
			var head metav1.PartialObjectMetadataList
			text, _, ok := bytes.Cut(page.Bytes(), []byte(`,"items":`))
			require.True(b, ok)
			require.NoError(b, json.Unmarshal(append(slices.Clone(text), '}'), &head))
			next = ""
			if head.Continue != "" {
				next = url + "?limit=500&continue=" + head.Continue
			}
		}
	}
	var lists, pages, copies, encodings []time.Duration
	took := func(do func()) time.Duration {
		began := time.Now()
		do()
		return time.Since(began)
	}
	for b.Loop() {
		lists = append(lists, took(func() { require.Equal(b, size, read(client, url, io.Discard)) }))
		pages = append(pages, took(inPages))
		copies = append(copies, took(func() { require.Equal(b, size, read(copier, copyURL, io.Discard)) }))
		encodings = append(encodings, took(func() { require.NoError(b, info.Serializer.Encode(&list, io.Discard)) }))
	}
	ms := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)/2].Microseconds()) / 1000
	}
	bound := 2 * (ms(copies) + ms(encodings))
	b.ReportMetric(ms(lists), "list-ms")
	b.ReportMetric(ms(pages), "pages-ms")
	b.ReportMetric(ms(pages)/ms(lists), "pages-ratio")
	b.ReportMetric(ms(copies), "copy-ms")
	b.ReportMetric(ms(encodings), "encode-ms")
	b.ReportMetric(bound, "bound-ms")
	b.ReportMetric(ms(lists)/bound, "ratio")
	b.ReportMetric(float64(len(body))/(1<<20), "MiB")
}

// startCopier serves the bytes over TLS and HTTP/2.
func startCopier(b *testing.B, body []byte) (*http.Client, string) {
	b.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for part := range slices.Chunk(body, 64<<10) {
			if _, err := w.Write(part); err != nil {
				return
			}
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	b.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true, NextProtos: []string{"h2"}}}
	client, err := rest.HTTPClientFor(config)
	require.NoError(b, err)
	b.Cleanup(client.CloseIdleConnections)
	return client, server.URL
}

// fillConfigMaps makes objects of 1 KB, the same number in each logical cluster.
func fillConfigMaps(b *testing.B, client *http.Client, host string, objects, clusters int) {
	b.Helper()
	var writers sync.WaitGroup
	defer writers.Wait()
	for c := range clusters {
		writers.Go(func() {
			post := func(path string, obj any) error {
				body, err := json.Marshal(obj)
				if err != nil {
					return err
				}
				r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, fmt.Sprintf("%s/clusters/bench-%d/api/v1/namespaces%s", host, c, path), strings.NewReader(string(body)))
				if err != nil {
					return err
				}
				r.Header.Set("Content-Type", "application/json")
				response, err := client.Do(r)
				if err != nil {
					return err
				}
				defer func() { _ = response.Body.Close() }()
				if answer, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusCreated && response.StatusCode != http.StatusConflict {
					return fmt.Errorf("%d: %s", response.StatusCode, answer)
				}
				return nil
			}
			if err := post("", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}); err != nil {
				b.Error(err)
				return
			}
			data := map[string]string{"text": strings.Repeat("x", 600)}
			for i := range objects / clusters {
				if err := post("/default/configmaps", &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("config-%04d", i)}, Data: data}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
}
