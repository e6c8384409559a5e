package serving

import (
	"net/http"
	"net/http/httptest"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// useStack takes most of the room.
//
//go:noinline
func useStack(at int) byte {
	var used [stackRoom * 3 / 4]byte
	used[at] = 1
	return used[at/2]
}

// The stack of a request is not copied any more on the way to what serves it, but
// that of a watch starts small.
func TestStack(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which may shrink stacks
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
