package serving

import (
	"bytes"
	"fmt"
	"net/http"
)

const readyzPath = "/readyz"

// WithReadinessWarnings adds what is wrong, but does not make the server unready, to the verbose
// response of /readyz. Any client may read it, so that a warning contains no addresses and no
// errors: these are in the log.
func WithReadinessWarnings(next http.Handler, warnings func() []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != readyzPath {
			next.ServeHTTP(w, r)
			return
		}
		var added []byte
		for _, warning := range warnings() {
			added = fmt.Appendf(added, "[!]%s\n", warning)
		}
		if _, verbose := r.URL.Query()["verbose"]; !verbose || added == nil {
			next.ServeHTTP(w, r)
			return
		}
		// The last line is the result.
		response := &bufferedResponse{ResponseWriter: w, code: http.StatusOK}
		next.ServeHTTP(response, r)
		body := response.body.Bytes()
		end := bytes.LastIndexByte(bytes.TrimRight(body, "\n"), '\n') + 1
		w.Header().Del("Content-Length")
		w.WriteHeader(response.code)
		for _, part := range [][]byte{body[:end], added, body[end:]} {
			_, _ = w.Write(part)
		}
	})
}

// bufferedResponse keeps a response that is changed before it is sent.
type bufferedResponse struct {
	http.ResponseWriter

	code int
	body bytes.Buffer
}

// WriteHeader implements http.ResponseWriter.
func (b *bufferedResponse) WriteHeader(code int) { b.code = code }

// Write implements http.ResponseWriter.
func (b *bufferedResponse) Write(p []byte) (int, error) { return b.body.Write(p) }
