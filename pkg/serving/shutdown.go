package serving

import (
	"context"
	"net/http"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// LongRunningStop returns the filter that ends long-running requests to the server
// of c, watches above all, when stop is done. Without it a graceful shutdown waits for every watcher to leave by
// itself; with it watchers see the end of their stream and resume elsewhere.
//
//nolint:contextcheck // the request has its own context; stop only ends it
func LongRunningStop(stop context.Context, c *genericapiserver.Config) Filter {
	return Filter{"end of watches", "long-running requests end when the server stops", func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			info, ok := apirequest.RequestInfoFrom(r.Context())
			if !ok || !c.LongRunningFunc(r, info) {
				next.ServeHTTP(w, r)
				return
			}
			ctx, cancel := context.WithCancel(r.Context())
			defer cancel()
			defer context.AfterFunc(stop, cancel)()
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	}}
}
