package webhooktransport

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

func manager(t *testing.T, of *Tenants) *webhook.ClientManager {
	t.Helper()
	clients, err := webhook.NewClientManager([]schema.GroupVersion{admissionv1.SchemeGroupVersion}, admissionv1.AddToScheme)
	require.NoError(t, err)
	unexpected := func(string) (*rest.Config, error) { return nil, errors.New("another resolver was called") }
	clients.SetAuthenticationInfoResolver(&webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc:        unexpected,
		ClientConfigForServiceFunc: func(name, _ string, _ int) (*rest.Config, error) { return unexpected(name) },
	})
	clients.SetAuthenticationInfoResolverWrapper(of.Resolver)
	clients.SetServiceResolver(webhook.NewDefaultServiceResolver())
	return &clients
}

func call(t *testing.T, of *Tenants, config webhook.ClientConfig) error {
	t.Helper()
	client, err := manager(t, of).HookClient(config)
	require.NoError(t, err)
	t.Cleanup(client.Client.CloseIdleConnections)
	return client.Post().Body(&admissionv1.AdmissionReview{}).Do(t.Context()).Into(&admissionv1.AdmissionReview{})
}

func (h *hostile) send(t *testing.T, of *Tenants, path string) error {
	t.Helper()
	return call(t, of, webhook.ClientConfig{URL: h.URL + path, CABundle: h.ca()})
}

func TestResponses(t *testing.T) {
	h, loopback := newHostile(t), tenants(t, "127.0.0.0/8")
	require.NoError(t, h.send(t, loopback, "/"))
	for path, want := range map[string]string{
		"/fails":                   "the webhook returned status 500; the response is not shown",
		"/status":                  "403",
		"/redirect":                "the webhook returned a redirect (307), and redirects are not followed",
		"/found":                   "the webhook returned a redirect (302), and redirects are not followed",
		"/success-of-another-kind": "the webhook's response is not an AdmissionReview or ConversionReview",
		"/text":                    "the webhook's response is not an AdmissionReview or ConversionReview",
		"/values":                  "the webhook's response has more than 500000 values",
		"/patch":                   "the webhook's patch is too large: limit is 200000 values",
		"/shifts":                  "the patch has 1001 operations that insert elements into lists or remove some",
		"/quantity":                "exponents of more than 100000 together",
		"/garbage":                 "calling the webhook failed; see the server's log",
		"/closes":                  "EOF",
	} {
		err := h.send(t, loopback, path)
		if path == "/status" {
			require.Error(t, err) // the text is from client-go
		} else {
			require.ErrorContains(t, err, want, path)
		}
		require.NotContains(t, err.Error(), secret, path)
	}
	require.Zero(t, h.elsewhere.Load())

	h.isBounded(t, func(path string) error { return h.send(t, loopback, path) })
}

// TestHeaders: headers of responses are bounded, in both versions of HTTP, without affecting the shared transports of
// client-go.
func TestHeaders(t *testing.T) {
	h := newHostile(t)
	loopback := tenants(t, "127.0.0.0/8")
	for version, h := range map[int]*hostile{1: h, 2: h.overHTTP2(t)} {
		require.NoError(t, h.send(t, loopback, "/"))
		require.Equal(t, version, (<-h.seen).ProtoMajor)
		require.ErrorContains(t, h.send(t, loopback, "/headers"), errHidden.Error(), "HTTP/%d", version)

		for _, tls := range []rest.TLSClientConfig{{CAData: h.ca()}, h.files(t)} {
			config, others := &rest.Config{TLSClientConfig: tls}, &rest.Config{TLSClientConfig: tls}
			Operator(config)
			require.NoError(t, get(t, httpClient(t, config), h.URL))
			require.Equal(t, version, (<-h.seen).ProtoMajor)
			require.ErrorContains(t, get(t, httpClient(t, config), h.URL+"/headers"), "header", "HTTP/%d", version)
			require.NoError(t, get(t, httpClient(t, others), h.URL+"/headers"), "other clients, HTTP/%d", version)
		}
	}
}

func send(t *testing.T, client *http.Client, url string) (code int, body string, err error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	content, err := io.ReadAll(response.Body)
	require.NoError(t, response.Body.Close())
	return response.StatusCode, string(content), err
}

func get(t *testing.T, client *http.Client, url string) error {
	t.Helper()
	_, _, err := send(t, client, url)
	return err
}

// TestRetryAfter: a failing webhook is not called again, whatever it requests, because between calls the request would
// not be paused.
func TestRetryAfter(t *testing.T) {
	h := newHostile(t)
	require.ErrorContains(t, h.send(t, tenants(t, "127.0.0.0/8"), "/later"), "the server is currently unable to handle the request")
	require.EqualValues(t, 1, h.calls.Load())
}

// TestAddressesAreChecked: addresses are checked however they are obtained, and errors reveal neither the address nor whether a name
// exists.
func TestAddressesAreChecked(t *testing.T) {
	h, nothing, loopback := newHostile(t), &Tenants{}, tenants(t, "127.0.0.0/8", "::1/128")
	_, port, err := net.SplitHostPort(h.Listener.Addr().String())
	require.NoError(t, err)
	at := func(host string) webhook.ClientConfig {
		return webhook.ClientConfig{URL: "https://" + net.JoinHostPort(host, port) + "/", CABundle: h.ca()}
	}
	const refused = "which the server's --webhook-allowed-cidrs does not allow"
	for _, host := range []string{"127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0", "::", "::1", "169.254.169.254", "10.0.0.1", "64:ff9b::7f00:1"} {
		require.ErrorContains(t, call(t, nothing, at(host)), refused, host)
	}
	shown := map[string]string{}
	for _, host := range []string{"localhost", "nowhere.invalid"} {
		err := call(t, nothing, at(host))
		require.ErrorContains(t, err, refused)
		shown[host] = strings.ReplaceAll(err.Error(), host, "")
		for _, inner := range []string{"127.0.0.1", "::1", "lookup", ":53", "no such host"} {
			require.NotContains(t, err.Error(), inner)
		}
	}
	require.Equal(t, shown["localhost"], shown["nowhere.invalid"], "the error discloses whether a name exists")
	service := webhook.ClientConfig{Service: &webhook.ClientConfigService{Name: "kubernetes", Namespace: "default", Port: 443, Path: "/mine"}}
	require.ErrorContains(t, call(t, loopback, service), `the webhook's host "kubernetes.default.svc" cannot be resolved`)
	require.Zero(t, h.calls.Load())

	require.NoError(t, call(t, loopback, at("127.0.0.1")))
	require.NoError(t, call(t, loopback, at("::ffff:127.0.0.1")))
	require.ErrorContains(t, call(t, loopback, at("localhost")), "x509: certificate is valid for")
	require.EqualValues(t, 2, h.calls.Load())
	require.ErrorContains(t, call(t, loopback, webhook.ClientConfig{URL: "http://" + h.Listener.Addr().String()}), "must use https")
}

// TestConnectionErrors: errors of connections contain no addresses except the one in the URL.
func TestConnectionErrors(t *testing.T) {
	loopback := tenants(t, "127.0.0.0/8", "::1/128")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	config := webhook.ClientConfig{URL: "https://localhost:" + port}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(connection, secret+" without TLS\n")
			_ = connection.Close()
		}
	}()
	err = call(t, loopback, config)
	require.Error(t, err)
	require.NotContains(t, err.Error(), secret)
	require.NotContains(t, err.Error(), "127.0.0.1")
	require.NoError(t, listener.Close())
	err = call(t, loopback, config)
	require.ErrorContains(t, err, "the connection to the webhook failed: connection refused")
	require.NotContains(t, err.Error(), "127.0.0.1")
}

// TestCredentials: a webhook that requests credentials gets none, and tenants do not share connections.
func TestCredentials(t *testing.T) {
	var connections atomic.Int64
	seen := make(chan *http.Request, 4)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r
		_, _ = io.WriteString(w, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`)
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	h, loopback := &hostile{Server: server}, tenants(t, "127.0.0.0/8")
	for range 2 {
		require.NoError(t, h.send(t, loopback, "/"))
		request := <-seen
		require.Empty(t, request.TLS.PeerCertificates)
		for _, header := range []string{"Authorization", "Cookie", "Traceparent", "X-Remote-User"} {
			require.Empty(t, request.Header.Values(header))
		}
	}
	require.EqualValues(t, 2, connections.Load())
}

// TestProxies: a proxy in the environment is not used, because it would resolve names.
func TestProxies(t *testing.T) {
	r := &http.Request{URL: &url.URL{Scheme: "https", Host: "192.0.2.1"}}
	proxy, err := http.ProxyFromEnvironment(r)
	require.NoError(t, err)
	require.Equal(t, environmentProxy, proxy.Host, "the environment must contain a proxy")
	err = call(t, tenants(t, "127.0.0.0/8"), webhook.ClientConfig{URL: "https://192.0.2.1"})
	require.ErrorContains(t, err, "the webhook's address 192.0.2.1 is a loopback, link-local, private or reserved address")
}
