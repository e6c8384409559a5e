package library

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/test/harness"
)

// response is a response of a server in JSON, line by line. If a request is sent again, its next response is returned, or else the last one.
type response struct {
	// Request contains the method, the path, and the query parameters that change the form of the response.
	Request string   `json:"request"`
	Status  int      `json:"status"`
	Lines   []string `json:"lines"`
}

func requestOf(r *http.Request) string {
	query := url.Values{}
	for _, name := range []string{"watch", "sendInitialEvents", "limit", "continue"} {
		if value := r.URL.Query().Get(name); value != "" && value != "false" {
			query.Set(name, value)
		}
	}
	return strings.TrimSuffix(r.Method+" "+r.URL.Path+"?"+query.Encode(), "?")
}

func isWatch(r *http.Request) bool { return r.URL.Query().Get("watch") == "true" }

// recorder records the responses of servers.
type recorder struct {
	mu        sync.Mutex
	responses []*recorded
}

// recorded is a response that is being read.
type recorded struct {
	io.ReadCloser

	of      *recorder
	request string
	status  int
	body    bytes.Buffer
}

func (r *recorded) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	r.body.Write(p[:n])
	return n, err
}

// record returns the configuration of a proxy that records the responses of a server.
func (r *recorder) record(t *testing.T, config *rest.Config) *rest.Config {
	t.Helper()
	transport, err := rest.TransportFor(config)
	require.NoError(t, err)
	host, err := url.Parse(config.Host)
	require.NoError(t, err)
	return serve(t, &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(host)
			p.Out.Header.Set("Accept", "application/json")
			p.Out.Header.Del("Accept-Encoding")
		},
		ModifyResponse: func(response *http.Response) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			a := &recorded{ReadCloser: response.Body, of: r, request: requestOf(response.Request), status: response.StatusCode}
			r.responses = append(r.responses, a)
			response.Body = a
			return nil
		},
	})
}

func (r *recorder) write(t *testing.T, file string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []response
	for _, a := range r.responses {
		all = append(all, response{a.request, a.status, strings.Split(strings.TrimSpace(a.body.String()), "\n")})
	}
	content, err := yaml.Marshal(all)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, content, 0o600))
}

// replay returns the configuration of a server that returns the responses in a file. Watches stay open.
func replay(t *testing.T, file string) *rest.Config {
	t.Helper()
	content := harness.ReadFile(t, file)
	var all []response
	require.NoError(t, yaml.UnmarshalStrict(content, &all))
	var mu sync.Mutex
	remaining := map[string][]response{}
	for _, a := range all {
		remaining[a.Request] = append(remaining[a.Request], a)
	}
	return serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request := requestOf(r)
		mu.Lock()
		responses := remaining[request]
		if len(responses) > 1 {
			remaining[request] = responses[1:]
		}
		mu.Unlock()
		if len(responses) == 0 {
			t.Errorf("no recorded response to %s", request)
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(responses[0].Status)
		for _, line := range responses[0].Lines {
			_, _ = io.WriteString(w, line+"\n")
		}
		if isWatch(r) && responses[0].Status == http.StatusOK {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}))
}

func serve(t *testing.T, handler http.Handler) *rest.Config {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}
