package serving

import (
	"context"
	"net/http"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// WithLongRunningStop ends long-running requests, watches above all, when stop
// is done. Without it a graceful shutdown waits for every watcher to leave by
// itself; with it watchers see the end of their stream and resume elsewhere.
//
//nolint:contextcheck // the request has its own context; stop only ends it
func WithLongRunningStop(stop context.Context, next http.Handler, longRunning apirequest.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if !ok || !longRunning(r, info) {
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(stop, cancel)()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}
