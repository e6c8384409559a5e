package serving

import (
	"bufio"
	"net/http"
	"sync"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

// listBuffer is how much of a list is gathered before it is written.
const listBuffer = 64 << 10

var listBuffers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, listBuffer) }}

// WithListBuffer gathers the answers to lists. Upstream encodes a list object by
// object and writes each, and HTTP/2 hands small writes over to the connection 4
// KiB at a time: for a list of 20 MB that takes as long as to encode it.
func WithListBuffer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest || info.Verb != "list" {
			next.ServeHTTP(w, r)
			return
		}
		buffer, _ := listBuffers.Get().(*bufio.Writer)
		buffer.Reset(w)
		next.ServeHTTP(&bufferedWriter{ResponseWriter: w, buffer: buffer}, r)
		// Not deferred: what panicked must not look complete. An error means
		// that the client is gone.
		_ = buffer.Flush()
		buffer.Reset(nil)
		listBuffers.Put(buffer)
	})
}

// bufferedWriter is a response that is gathered.
type bufferedWriter struct {
	http.ResponseWriter

	buffer *bufio.Writer
}

// Write implements http.ResponseWriter.
func (w *bufferedWriter) Write(p []byte) (int, error) { return w.buffer.Write(p) }

// Flush implements http.Flusher.
func (w *bufferedWriter) Flush() {
	if err := w.buffer.Flush(); err != nil {
		return
	}
	if flusher, ok := w.ResponseWriter.(http.Flusher); ok {
		flusher.Flush()
	}
}

// Unwrap is for http.ResponseController.
func (w *bufferedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
