package webhooktransport

import (
	"compress/gzip"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

const (
	// blanks is the size of the response of a hostile webhook.
	blanks = 500 << 20
	// inFlight bounds the data that a server can write without a reader, i.e. socket buffers.
	inFlight = 64 << 20
	// secret must not be shown to tenants.
	secret = "the-inner-secret"
)

// environmentProxy is the proxy in the environment, which the standard library reads once.
const environmentProxy = "127.0.0.1:9"

func TestMain(m *testing.M) {
	if err := os.Setenv("HTTPS_PROXY", "http://"+environmentProxy); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func writeBlanks(w io.Writer) (n int64) {
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = ' '
	}
	for n < blanks {
		written, err := w.Write(block)
		n += int64(written)
		if err != nil {
			break
		}
	}
	return n
}

type hostile struct {
	*httptest.Server

	calls, elsewhere atomic.Int64
	plain            chan int64
	seen             chan *http.Request
}

func newHostile(t *testing.T) *hostile {
	t.Helper()
	h := &hostile{plain: make(chan int64, 1), seen: make(chan *http.Request, 16)}
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { h.elsewhere.Add(1) }))
	t.Cleanup(other.Close)
	mux := http.NewServeMux()
	mux.HandleFunc("/blanks", func(w http.ResponseWriter, _ *http.Request) { h.plain <- writeBlanks(w) })
	mux.HandleFunc("/bomb", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		packed := gzip.NewWriter(w)
		writeBlanks(packed)
		_ = packed.Close()
	})
	mux.HandleFunc("/redirect", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	})
	mux.HandleFunc("/found", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) })
	mux.HandleFunc("/fails", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, secret, http.StatusInternalServerError) })
	mux.HandleFunc("/headers", func(w http.ResponseWriter, _ *http.Request) {
		for i := range 64 {
			w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", headerBytes/32))
		}
		_, _ = io.WriteString(w, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`)
	})
	mux.HandleFunc("/later", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		http.Error(w, secret, http.StatusServiceUnavailable)
	})
	mux.HandleFunc("/status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Inner", secret)
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":403,"message":"`+secret+`"}`)
	})
	mux.HandleFunc("/success-of-another-kind", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"`+secret+`"}`)
	})
	mux.HandleFunc("/values", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"kind":"ConversionReview","response":{"convertedObjects":[{}`+strings.Repeat(",{}", 250_000)+"]}}")
	})
	mux.HandleFunc("/patch", func(w http.ResponseWriter, _ *http.Request) {
		patch := `[{"op":"add","path":"/x","value":[0` + strings.Repeat(",0", 200_000) + "]}]"
		_, _ = fmt.Fprintf(w, `{"kind":"AdmissionReview","response":{"allowed":true,"patch":%q},"response":{},"RESPONSE":{"patch":""}}`, base64.StdEncoding.EncodeToString([]byte(patch)))
	})
	mux.HandleFunc("/shifts", func(w http.ResponseWriter, _ *http.Request) {
		patch := "[" + strings.TrimSuffix(strings.Repeat(`{"op":"remove","path":"/l/0"},`, 1001), ",") + "]"
		_, _ = fmt.Fprintf(w, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"allowed":true,"PATCH":"","patch":%q}}`, base64.StdEncoding.EncodeToString([]byte(patch)))
	})
	mux.HandleFunc("/quantity", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"kind":"AdmissionReview","response":{"patch":%q}}`, base64.StdEncoding.EncodeToString([]byte(`[{"value":"1e100001"}]`)))
	})
	mux.HandleFunc("/text", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a: *"+secret) })
	for path, text := range map[string]string{"/closes": "", "/garbage": "220 " + secret + " ESMTP\r\n"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			connection, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(connection, text)
				_ = connection.Close()
			}
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		h.seen <- r
		_, _ = io.WriteString(w, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`)
	})
	h.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.calls.Add(1)
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(h.Close)
	return h
}

// isBounded checks that the responses to requests for endless content are read only up to the limit.
func (h *hostile) isBounded(t *testing.T, send func(path string) error) {
	t.Helper()
	for _, path := range []string{"/blanks", "/bomb"} {
		var err error
		took := allocates(func() { err = send(path) })
		require.ErrorContains(t, err, "the webhook returned more than 4194304 bytes", path)
		require.Less(t, took, uint64(blanks/2), path)
	}
	require.Less(t, <-h.plain, int64(MaxResponseBytes+inFlight))
}

func (h *hostile) overHTTP2(t *testing.T) *hostile {
	t.Helper()
	server := httptest.NewUnstartedServer(h.Config.Handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return &hostile{Server: server, seen: h.seen}
}

func (h *hostile) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})
}

func (h *hostile) files(t *testing.T) rest.TLSClientConfig {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(h.TLS.Certificates[0].PrivateKey)
	require.NoError(t, err)
	dir := t.TempDir()
	files := rest.TLSClientConfig{CAFile: filepath.Join(dir, "ca"), CertFile: filepath.Join(dir, "crt"), KeyFile: filepath.Join(dir, "key")}
	for name, content := range map[string][]byte{
		files.CAFile: h.ca(), files.CertFile: h.ca(), files.KeyFile: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
	} {
		require.NoError(t, os.WriteFile(name, content, 0o600))
	}
	return files
}

func allocates(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func httpClient(t *testing.T, config *rest.Config) *http.Client {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	return client
}
