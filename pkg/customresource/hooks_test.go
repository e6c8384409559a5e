package customresource

import (
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// bounded is an HTTP client as webhooks are called with.
func bounded(t *testing.T, h *hooks) *http.Client {
	t.Helper()
	resolver := h.resolver(webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, nil, nil))(&webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: func(string) (*rest.Config, error) { return &rest.Config{}, nil },
	})
	config, err := resolver.ClientConfigFor("host")
	require.NoError(t, err)
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	return client
}

func TestHooks(t *testing.T) {
	arrived := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hangs":
			arrived <- struct{}{}
			<-r.Context().Done()
		case "/endless":
			for r.Context().Err() == nil {
				_, _ = w.Write(make([]byte, 1<<20))
			}
		default:
			_, _ = io.WriteString(w, "answer")
		}
	}))
	defer server.Close()
	h := newHooks()
	client := bounded(t, h)
	ask := func(path string) (string, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, http.NoBody)
		require.NoError(t, err)
		response, err := client.Do(r)
		if err != nil {
			return "", err
		}
		defer func() { require.NoError(t, response.Body.Close()) }()
		data, err := io.ReadAll(response.Body)
		return string(data), err
	}
	data, err := ask("/")
	require.NoError(t, err)
	require.Equal(t, "answer", data)
	data, err = ask("/endless")
	require.ErrorIs(t, err, errHookAnswer)
	require.Len(t, data, hookAnswerBytes)
	require.Empty(t, h.calls)

	gave := make(chan error, 1)
	go func() {
		_, err := ask("/hangs")
		gave <- err
	}()
	<-arrived
	h.stop()
	require.ErrorIs(t, <-gave, errHookStopped)
	_, err = ask("/")
	require.ErrorIs(t, err, errHookStopped)
	require.Empty(t, h.calls)
}

// TestStopWithHangingHook: a webhook that hangs does not keep a server from
// stopping. That nothing of it is left is checked when all tests have run.
func TestStopWithHangingHook(t *testing.T) {
	arrived, release := make(chan struct{}, 16), make(chan struct{})
	hook := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-release
	}))
	t.Cleanup(hook.Close)
	t.Cleanup(func() { close(release) })
	s := startServer(t, startEtcd(t), serverOptions{})
	crd := widgetCRD(nil)
	v2 := crd.Spec.Versions[0].DeepCopy()
	v2.Name, v2.Storage = "v2", false
	crd.Spec.Versions = append(crd.Spec.Versions, *v2)
	url := hook.URL
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: &url, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})},
			ConversionReviewVersions: []string{"v1"},
		},
	}
	s.createCRD(t, "one", crd)
	_, err := s.dynamic(t, "one").Resource(widgets).Namespace("default").Create(t.Context(), widget("a", nil), metav1.CreateOptions{})
	require.NoError(t, err)
	resource := widgets
	resource.Version = "v2"
	gave, ended := make(chan error, 1), make(chan struct{})
	client := s.dynamic(t, "one").Resource(resource)
	go func() {
		_, err := client.List(t.Context(), metav1.ListOptions{})
		gave <- err
	}()
	go func() {
		defer close(ended)
		w, err := client.Watch(t.Context(), metav1.ListOptions{})
		if err == nil {
			for range w.ResultChan() {
			}
		}
	}()
	<-arrived
	<-arrived
	s.stop()
	require.Error(t, <-gave)
	<-ended
	require.Empty(t, s.hooks.calls)
}
