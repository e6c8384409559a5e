package serving

import (
	"net/http"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// stackRoom is as much stack as a GET takes behind this, with an etcd in the same
// process. Writes take somewhat more.
const stackRoom = 24 << 10

// withStack makes room on the stack for what follows, while hardly anything is on
// it. The goroutine of a request starts with a small stack, which doubles, and is
// copied, several times on the way to etcd. Requests that last keep what they have:
// there may be many of them, and they wait most of the time.
func withStack(next http.Handler, lasts apirequest.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := apirequest.RequestInfoFrom(r.Context()); ok && !lasts(r, info) {
			makeRoom(0)
		}
		next.ServeHTTP(w, r)
	})
}

// makeRoom is called with 0, and does nothing: the stack grows when a function is
// entered that has such a variable, which then is not even cleared.
//
//go:noinline
func makeRoom(at int) byte {
	if at == 0 {
		return 0
	}
	var room [stackRoom]byte
	room[at] = 1
	return room[at/2]
}
