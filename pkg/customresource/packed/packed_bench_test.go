package packed

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/test/heap"
)

// storedBinding returns a stored APIBinding of one of many logical clusters, with different names, UIDs and
// times.
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

// TestBytes limits the memory of similar bindings in a watch cache.
func TestBytes(t *testing.T) {
	heap.Skip(t)
	const bindings, most = 2000, 1200
	require.Less(t, bytesOfEach(t, bindings, packs(NewPacker())), int64(most))
}

// bytesOfEach returns the bytes per object.
func bytesOfEach(t testing.TB, objects int, keep func(*unstructured.Unstructured) any) int64 {
	t.Helper()
	kept := make([]any, objects)
	before := heap.InUse()
	for i := range kept {
		kept[i] = keep(decoded(t, storedBinding(i)))
	}
	bytes := (heap.InUse() - before) / int64(objects)
	runtime.KeepAlive(kept)
	return bytes
}

func packs(p *Packer) func(*unstructured.Unstructured) any {
	return func(u *unstructured.Unstructured) any { return p.Pack(u) }
}

// BenchmarkBytes reports the memory of packed and decoded objects.
func BenchmarkBytes(b *testing.B) {
	for name, keep := range map[string]func(*unstructured.Unstructured) any{
		"packed": packs(NewPacker()), "decoded": func(u *unstructured.Unstructured) any { return u },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.ReportMetric(float64(bytesOfEach(b, 10000, keep)), "B/object")
			}
		})
	}
}

// BenchmarkPack and BenchmarkUnpack measure packing and unpacking; BenchmarkDecode measures decoding, for
// comparison.
func BenchmarkPack(b *testing.B) {
	const objects = 1000
	p := NewPacker()
	all := make([]*unstructured.Unstructured, objects)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%objects == 0 {
			b.StopTimer()
			for n := range all {
				all[n] = decoded(b, storedBinding(i+n))
			}
			b.StartTimer()
		}
		p.Pack(all[i%objects])
	}
}

func BenchmarkUnpack(b *testing.B) {
	o := NewPacker().Pack(decoded(b, storedBinding(0)))
	b.ReportAllocs()
	for b.Loop() {
		o.Unstructured()
	}
}

func BenchmarkDeepCopy(b *testing.B) {
	u := decoded(b, storedBinding(0))
	b.ReportAllocs()
	for b.Loop() {
		u.DeepCopy()
	}
}

func BenchmarkDecode(b *testing.B) {
	data := storedBinding(0)
	b.ReportAllocs()
	for b.Loop() {
		decoded(b, data)
	}
}
