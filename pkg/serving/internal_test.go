package serving

import (
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

type countingResponse struct {
	*httptest.ResponseRecorder
	writes int
}

func (c *countingResponse) Write(p []byte) (int, error) {
	c.writes++
	return c.ResponseRecorder.Write(p)
}

// Lists are buffered, watches are not, and responses remain incomplete after a panic.
func TestListBuffer(t *testing.T) {
	const items, item = 1000, "0123456789"
	serve := func(verb string, end func()) *countingResponse {
		w := &countingResponse{ResponseRecorder: httptest.NewRecorder()}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r = r.WithContext(apirequest.WithRequestInfo(r.Context(), &apirequest.RequestInfo{IsResourceRequest: true, Verb: verb}))
		WithListBuffer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for range items {
				_, err := w.Write([]byte(item))
				assert.NoError(t, err)
			}
			end()
		})).ServeHTTP(w, r)
		return w
	}
	whole := strings.Repeat(item, items)
	list := serve("list", func() {})
	require.Equal(t, whole, list.Body.String())
	require.Equal(t, 1, list.writes)
	watch := serve("watch", func() {})
	require.Equal(t, whole, watch.Body.String())
	require.Equal(t, items, watch.writes)
	require.Panics(t, func() { serve("list", func() { panic(http.ErrAbortHandler) }) })
}

// useStack uses most of the stack size.
//
//go:noinline
func useStack(at int) byte {
	var used [stackSize * 3 / 4]byte
	used[at] = 1
	return used[at/2]
}

// The stack of a request is copied only once. That of a watch starts small.
func TestStack(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it may shrink stacks
	for verb, copied := range map[string]bool{"get": false, "create": false, "watch": true} {
		var moved bool
		serves := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			var local byte
			before := uintptr(unsafe.Pointer(&local))
			useStack(1)
			moved = before != uintptr(unsafe.Pointer(&local))
		})
		lasts := func(_ *http.Request, info *apirequest.RequestInfo) bool { return info.Verb == "watch" }
		ctx := apirequest.WithRequestInfo(t.Context(), &apirequest.RequestInfo{Verb: verb})
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
		done := make(chan struct{})
		go func() {
			defer close(done)
			withStack(serves, lasts).ServeHTTP(httptest.NewRecorder(), r)
		}()
		<-done
		require.Equal(t, copied, moved, verb)
	}
}

// Users can change the default feature gates. DetectCacheInconsistency is disabled.
func TestFeatureGates(t *testing.T) {
	for gate, on := range map[featuregate.Feature]bool{
		features.ShardedListAndWatch: true, features.WatchList: true, features.DetectCacheInconsistency: false,
	} {
		t.Run(string(gate), func(t *testing.T) {
			for _, other := range []featuregate.Feature{features.ShardedListAndWatch, features.WatchList, features.DetectCacheInconsistency} {
				// They are restored after the test.
				featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, other, utilfeature.DefaultFeatureGate.Enabled(other))
			}
			require.NoError(t, setFeatureGates(nil))
			require.Equal(t, on, utilfeature.DefaultFeatureGate.Enabled(gate))
			require.NoError(t, setFeatureGates(map[string]bool{string(gate): !on}))
			require.Equal(t, !on, utilfeature.DefaultFeatureGate.Enabled(gate))
		})
	}
}
