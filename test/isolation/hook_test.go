package isolation

import (
	"encoding/base64"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// hook is a webhook of the attackers. It allows everything, and listens for
// canaries.
type hook struct {
	*httptest.Server

	// ca is the bundle that verifies it, as it stands in configurations.
	ca string
	// calls counts all, heard keeps what must not have been told.
	calls atomic.Int64
	heard atomic.Pointer[string]
}

func serveHook(t testing.TB, w *world) *hook {
	t.Helper()
	h := &hook{}
	h.Server = httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		h.calls.Add(1)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if what := w.canaries.in(append(body, r.RequestURI...)); what != "" {
			text := "a webhook of alpha heard " + what
			h.heard.Store(&text)
		}
		uid := ""
		if _, after, found := strings.Cut(string(body), `"uid":"`); found {
			uid, _, _ = strings.Cut(after, `"`)
		}
		rw.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(rw, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"`+uid+`","allowed":true}}`)
	}))
	t.Cleanup(h.Close)
	h.ca = base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw}))
	return h
}

// caught returns what the webhook heard; empty for nothing.
func (h *hook) caught() string {
	if text := h.heard.Load(); text != nil {
		return *text
	}
	return ""
}
