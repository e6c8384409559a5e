package replication

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
)

// endless is a shard with many objects, and an empty cache server without digests, both of which
// keep nothing: what they answer is made when they are asked.
type endless struct {
	objects  int
	revision atomic.Int64
}

func (e *endless) object(n int) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"core.kcp.io/v1alpha1","kind":"Shard","metadata":{"name":"some-object-of-a-name-%06d","uid":"2f1f4ad0-4c6d-4a8e-9d3f-%012d","resourceVersion":"%d","annotations":{"kcp.io/cluster":"2m5r8n1q4xk7w0%02d"}},"spec":{"padding":"%s"}}`,
		n, n, n+1000, n%100, strings.Repeat("x", 4096))
}

// RoundTrip implements http.RoundTripper.
func (e *endless) RoundTrip(req *http.Request) (*http.Response, error) {
	var body bytes.Buffer
	status, query := http.StatusOK, req.URL.Query()
	cached, list := strings.Contains(req.URL.Path, "/services/cache/"), strings.HasSuffix(req.URL.Path, "/shards")
	switch {
	case query.Get("sendInitialEvents") != "", strings.HasSuffix(req.URL.Path, "/digests"), strings.Contains(req.URL.Path, "replicationmarks"):
		status = http.StatusNotFound
		if !strings.HasSuffix(req.URL.Path, "/digests") {
			status = http.StatusBadRequest
		}
		fmt.Fprintf(&body, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"BadRequest","code":%d}`, status)
	case query.Get("watch") != "":
		<-req.Context().Done()
		return nil, req.Context().Err()
	case req.Method == http.MethodPost:
		content := map[string]any{}
		if err := json.NewDecoder(req.Body).Decode(&content); err != nil {
			return nil, err
		}
		metadata, _ := content["metadata"].(map[string]any)
		metadata["resourceVersion"] = strconv.FormatInt(e.revision.Add(1), 10)
		if err := json.NewEncoder(&body).Encode(content); err != nil {
			return nil, err
		}
	case list:
		e.page(&body, query.Get("continue"), cached)
	default:
		n, err := strconv.Atoi(req.URL.Path[strings.LastIndexByte(req.URL.Path, '-')+1:])
		if err != nil {
			return nil, err
		}
		body.Write(e.object(n))
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(&body), Request: req}, nil
}

func (e *endless) page(body *bytes.Buffer, from string, empty bool) {
	n, _ := strconv.Atoi(from)
	next, end := "", min(n+500, e.objects)
	if end < e.objects {
		next = strconv.Itoa(end)
	}
	if empty {
		n, end, next = 0, 0, ""
	}
	fmt.Fprintf(body, `{"apiVersion":"core.kcp.io/v1alpha1","kind":"ShardList","metadata":{"resourceVersion":"5","continue":%q},"items":[`, next)
	for i := n; i < end; i++ {
		if i > n {
			body.WriteByte(',')
		}
		body.Write(e.object(i))
	}
	body.WriteString("]}")
}

// BenchmarkMemory measures what a shard keeps of a replicated object of 4 KiB after the first push,
// in a heap that has nothing else.
func BenchmarkMemory(b *testing.B) {
	e := &endless{objects: 10_000}
	f, err := client.NewFactory(&rest.Config{Host: "http://endless", Transport: e})
	require.NoError(b, err)
	table, err := NewTable(Resource{GroupVersionResource: corev1alpha1.SchemeGroupVersion.WithResource("shards")})
	require.NoError(b, err)
	for range b.N {
		before := heap()
		controller, err := New(Config{Shard: "amber", Local: f, Cache: f, Table: table})
		require.NoError(b, err)
		ctx, cancel := context.WithCancel(klog.NewContext(b.Context(), logr.Discard()))
		ended := make(chan error, 1)
		go func() { ended <- controller.Run(ctx) }()
		for !controller.HasSynced() {
			<-time.After(10 * time.Millisecond)
		}
		b.ReportMetric(float64(heap()-before)/float64(e.objects), "B/object")
		cancel()
		require.NoError(b, <-ended)
	}
	b.ReportMetric(0, "ns/op")
}

func heap() int64 {
	for range 3 {
		runtime.GC()
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
