package versions

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// storedBinding is an APIBinding as it is stored, of one of many logical clusters: what is
// different in each is its name, UID and times.
func storedBinding(i int) []byte {
	at := time.Unix(1700000000+int64(i/50), 0).UTC().Format(time.RFC3339) // 50 a second
	condition := func(kind string) string {
		return fmt.Sprintf(`{"type":%q,"status":"True","lastTransitionTime":%q}`, kind, at)
	}
	managed := func(manager, operation, subresource, fields string) string {
		return fmt.Sprintf(`{"manager":%q,"operation":%q,"apiVersion":"apis.kcp.io/v1alpha2","time":%q,"fieldsType":"FieldsV1","subresource":%q,"fieldsV1":%s}`, manager, operation, at, subresource, fields)
	}
	return fmt.Appendf(nil, `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIBinding","metadata":{"name":"things","uid":"00000000-0000-0000-0000-%012d","generation":1,"creationTimestamp":%q,`+
		`"labels":{"internal.apis.kcp.io/export":"2Yb3xYd5v7f8"},"annotations":{"kcp.io/path":"cluster-%d"},"finalizers":["apis.kcp.io/apibinding-finalizer"],"managedFields":[%s,%s]},`+
		`"spec":{"reference":{"export":{"path":"provider","name":"things"}}},"status":{"phase":"Bound","apiExportClusterName":"provider","boundResources":[{"group":"bench.shardplane.io","resource":"things","schema":{"name":"v1.things","UID":"u","identityHash":"h"},"storageVersions":["v1"]}],"conditions":[%s,%s,%s,%s,%s,%s]}}`,
		i, at, i,
		managed("client", "Update", "", `{"f:spec":{".":{},"f:reference":{".":{},"f:export":{".":{},"f:name":{},"f:path":{}}}}}`),
		managed("shardplane", "Update", "status", `{"f:status":{".":{},"f:apiExportClusterName":{},"f:boundResources":{},"f:conditions":{},"f:phase":{}}}`),
		condition("APIExportValid"), condition("BindingUpToDate"), condition("InitialBindingCompleted"), condition("PermissionClaimsApplied"), condition("PermissionClaimsValid"), condition("Ready"))
}

// TestSharedBytes: of many bindings that say nearly the same, each takes little in a watch
// cache. With nothing shared it is more than twice the bound.
func TestSharedBytes(t *testing.T) {
	const bindings, most = 2000, 5 << 10
	codec := newRawCodec(newSharer(sharedBytes))
	kept := make([]any, bindings)
	before := heapBytes()
	for i := range kept {
		obj, _, err := codec.Decode(storedBinding(i), &schema.GroupVersionKind{}, nil)
		require.NoError(t, err)
		kept[i] = obj
	}
	require.Less(t, (heapBytes()-before)/bindings, int64(most))
	runtime.KeepAlive(kept)
}

// BenchmarkSharing reports what an object takes in a watch cache, and what it takes to
// decode it, with what it shares with others and without.
func BenchmarkSharing(b *testing.B) {
	const objects = 10000
	for name, codec := range map[string]rawCodec{"shared": newRawCodec(newSharer(sharedBytes)), "apart": newRawCodec(nil)} {
		b.Run(name, func(b *testing.B) {
			var kept []any
			for b.Loop() {
				kept = make([]any, objects)
				before := heapBytes()
				start := time.Now()
				for i := range kept {
					obj, _, err := codec.Decode(storedBinding(i), &schema.GroupVersionKind{}, nil)
					require.NoError(b, err)
					kept[i] = obj
				}
				b.ReportMetric(float64(time.Since(start).Microseconds())/objects, "µs/object")
				b.ReportMetric(float64(heapBytes()-before)/objects/1024, "KiB/object")
			}
			runtime.KeepAlive(kept)
		})
	}
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}
