package isolation

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shardplane/shardplane/test/harness"
)

// response is the response of a server.
type response struct {
	code   int
	header http.Header
	body   []byte
	// err is set if the response is incomplete.
	err error
}

func (a response) String() string {
	body := a.body
	if len(body) > 600 {
		body = body[:600]
	}
	return fmt.Sprintf("%d %v %q", a.code, a.header, body)
}

// canaries are texts that no attacker has received or sent. A response with one of them is a leak.
type canaries struct {
	mu      sync.RWMutex
	needles map[string][]byte
}

// add adds a text and its base64 forms, which Secrets and continue tokens contain.
func (c *canaries) add(description, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.needles == nil {
		c.needles = map[string][]byte{}
	}
	c.needles[description] = []byte(text)
	for shift := range 3 {
		// The surrounding text changes only the first and the last letters.
		encoded := base64.RawStdEncoding.EncodeToString(append(make([]byte, shift), text...))
		from := (shift*8 + 5) / 6
		to := (shift + len(text)) * 8 / 6
		c.needles[fmt.Sprintf("%s in base64, shifted by %d", description, shift)] = []byte(encoded[from:to])
	}
}

// in returns the description of a canary that data contains, or "".
func (c *canaries) in(data []byte) string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for description, needle := range c.needles {
		if bytes.Contains(data, needle) {
			return description
		}
	}
	return ""
}

// inResponse is like in for the header and body of a response.
func (c *canaries) inResponse(a response) string {
	for name, values := range a.header {
		for _, value := range append(values, name) {
			if found := c.in([]byte(value)); found != "" {
				return "header " + name + " with " + found
			}
		}
	}
	if found := c.in(a.body); found != "" {
		return "body with " + found
	}
	if a.header.Get("Content-Encoding") == "gzip" {
		if r, err := gzip.NewReader(bytes.NewReader(a.body)); err == nil {
			plain, _ := io.ReadAll(r) // a stream may be incomplete
			if found := c.in(plain); found != "" {
				return "compressed body with " + found
			}
		}
	}
	return ""
}

// hook is a webhook of the attackers. It admits everything, and searches requests for canaries.
type hook struct {
	*httptest.Server

	// ca is its CA bundle for webhook configurations.
	ca string
	// calls is the number of all calls, and received describes a received canary.
	calls    atomic.Int64
	received atomic.Pointer[string]
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
		if leaked := w.canaries.in(append(body, r.RequestURI...)); leaked != "" {
			text := "a webhook of alpha received " + leaked
			h.received.Store(&text)
		}
		uid := ""
		if _, after, found := strings.Cut(string(body), `"uid":"`); found {
			uid, _, _ = strings.Cut(after, `"`)
		}
		rw.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(rw, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"`+uid+`","allowed":true}}`)
	}))
	t.Cleanup(h.Close)
	h.ca = base64.StdEncoding.EncodeToString(harness.CABundle(h.Server))
	return h
}

// leak returns the description of a received canary, or "".
func (h *hook) leak() string {
	if text := h.received.Load(); text != nil {
		return *text
	}
	return ""
}
