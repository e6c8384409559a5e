package versions

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

// counted returns an HTTP client with calls that h can cancel.
func counted(t *testing.T, h *Hooks) *http.Client {
	t.Helper()
	resolver := h.Resolver(func(r webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver { return r })(&webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: func(string) (*rest.Config, error) {
			config := &rest.Config{}
			webhooktransport.Operator(config) // reads whole responses, like the one for tenants
			return config, nil
		},
	})
	config, err := resolver.ClientConfigFor("host")
	require.NoError(t, err)
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// TestHooks: Stop cancels current and future calls.
func TestHooks(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hangs" {
			arrived <- struct{}{}
			<-r.Context().Done()
		}
		_, _ = io.WriteString(w, "response")
	}))
	defer server.Close()
	h := NewHooks(nil)
	client := counted(t, h)
	get := func(path string) (string, error) {
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
	data, err := get("/")
	require.NoError(t, err)
	require.Equal(t, "response", data)

	gave := make(chan error, 1)
	go func() {
		_, err := get("/hangs")
		gave <- err
	}()
	<-arrived
	h.Stop()
	require.ErrorIs(t, <-gave, errHookStopped)
	_, err = get("/")
	require.ErrorIs(t, err, errHookStopped)
}

// TestInProcess: upstream's webhook converter calls a function of this process for objects and lists, and
// returns its errors.
func TestInProcess(t *testing.T) {
	t.Parallel()
	function := func(in *unstructured.Unstructured, to string) (*unstructured.Unstructured, error) {
		if in.GetName() == "bad" {
			return nil, errors.New("not convertible")
		}
		out := in.DeepCopy()
		out.SetAPIVersion(to)
		out.SetAnnotations(map[string]string{"from": in.GetAPIVersion()})
		return out, nil
	}
	h := NewHooks(func(path string) definitions.Convert {
		if path == "/path" {
			return function
		}
		return nil
	})
	outside := errors.New("outside")
	factory, err := conversion.NewCRConverterFactory(webhook.NewDefaultServiceResolver(), h.Resolver(func(webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
		return &webhook.AuthenticationInfoResolverDelegator{ClientConfigForFunc: func(string) (*rest.Config, error) { return nil, outside }}
	}))
	require.NoError(t, err)
	crd := func(url string) *apiextensionsv1.CustomResourceDefinition {
		return &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.org"},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group:    "example.org",
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1"}, {Name: "v2"}},
				Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
					ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &url}, ConversionReviewVersions: []string{"v1"},
				}},
			},
		}
	}
	object := func(name string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.org/v1", "kind": "Widget", "metadata": map[string]any{"name": name, "uid": "u"}, "spec": map[string]any{"n": int64(1)}}}
	}
	convert, _, err := factory.NewConverter(crd("https://" + definitions.ConvertHost + "/path"))
	require.NoError(t, err)
	v2 := schema.GroupVersion{Group: "example.org", Version: "v2"}
	out, err := convert.ConvertToVersion(object("a"), v2)
	require.NoError(t, err)
	converted, ok := out.(*unstructured.Unstructured)
	require.True(t, ok)
	require.Equal(t, "example.org/v2", converted.GetAPIVersion())
	require.Equal(t, map[string]string{"from": "example.org/v1"}, converted.GetAnnotations())
	require.Equal(t, map[string]any{"n": int64(1)}, converted.Object["spec"])

	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "example.org/v1", "kind": "WidgetList"}}
	list.Items = []unstructured.Unstructured{*object("a"), *object("b")}
	out, err = convert.ConvertToVersion(list, v2)
	require.NoError(t, err)
	require.NoError(t, out.(*unstructured.UnstructuredList).EachListItem(func(item runtime.Object) error {
		require.Equal(t, v2.WithKind("Widget"), item.GetObjectKind().GroupVersionKind())
		return nil
	}))

	list.Items = append(list.Items, *object("bad"))
	_, err = convert.ConvertToVersion(list, v2)
	require.ErrorContains(t, err, "not convertible")

	_, _, err = factory.NewConverter(crd("https://elsewhere.example"))
	require.ErrorIs(t, err, outside)
}
