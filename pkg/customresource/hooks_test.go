package customresource

import (
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStopWithHangingHook: a hanging webhook does not keep a server from stopping. Leaks are checked after all
// tests.
func TestStopWithHangingHook(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}, 16), make(chan struct{})
	left := make(chan struct{}, 16)
	hook := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // detects the end of the call
		arrived <- struct{}{}
		<-r.Context().Done()
		left <- struct{}{}
		<-release
	}))
	t.Cleanup(hook.Close)
	t.Cleanup(func() { close(release) })
	s := startServer(t, serverOptions{})
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
	s.CreateCRD(t, "one", crd)
	mustCreate(t, s.Dynamic(t, "one").Resource(widgets).Namespace("default"), widget("a", nil))
	resource := widgets
	resource.Version = "v2"
	gave, ended := make(chan error, 1), make(chan struct{})
	client := s.Dynamic(t, "one").Resource(resource)
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
	s.Stop()
	require.Error(t, <-gave)
	<-ended
	for range 2 {
		select {
		case <-left:
		case <-time.After(deadline):
			require.Fail(t, "a call has not ended")
		}
	}
}
