package customresource

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/admission"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/controllers/customresourcedefinition"
	"github.com/shardplane/shardplane/pkg/customresource/definitions"
	"github.com/shardplane/shardplane/pkg/storage/unreadable"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
	"github.com/shardplane/shardplane/test/customresourcetest"
)

const (
	deadline = customresourcetest.Deadline
	tick     = customresourcetest.Tick

	acceptAggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
)

var (
	widgets          = customresourcetest.Widgets
	widgetCRD        = customresourcetest.WidgetCRD
	widget           = customresourcetest.Widget
	requireCondition = customresourcetest.RequireCondition
)

func TestMain(m *testing.M) {
	// Parallel tests mostly wait. The command line is parsed later, so that -parallel takes precedence.
	utilruntime.Must(flag.Set("test.parallel", "6"))
	customresourcetest.Main(m)
}

// testServer is an API server with only custom resources.
type testServer struct {
	*Server
	*customresourcetest.API
	opened *openStores
}

type serverOptions struct {
	system     []*apiextensionsv1.CustomResourceDefinition
	systemOnly bool
	convert    map[schema.GroupResource]definitions.Convert
	sources    []definitions.Source
	release    time.Duration
	calls      int
	admission  admission.Interface
	unreadable *unreadable.Record
	data       customresourcetest.Data // its own if empty
	assembled  func(*Server)           // called before the server runs
	around     func(http.Handler) http.Handler
}

// startServer starts a server and the controller of its definitions. It stops with the test, or earlier.
func startServer(t testing.TB, o serverOptions) *testServer {
	t.Helper()
	if o.data.Server == nil {
		o.data = customresourcetest.NewData(t)
	}
	backend := o.data.Backend(t, o.systemOnly)
	opened := &openStores{of: map[schema.GroupResource]int{}}
	webhooks, err := webhooktransport.NewTenants(webhooktransport.Options{AllowedCIDRs: []string{"127.0.0.0/8"}})
	require.NoError(t, err)
	s, err := NewCustomResourceServer(Config{
		Storage:      customresourcetest.Wrapped(backend.RESTOptionsGetter, opened.wrap),
		System:       o.system,
		SystemOnly:   o.systemOnly,
		ReleaseAfter: o.release,
		Admission:    o.admission,
		Unreadable:   cmp.Or(o.unreadable, unreadable.NewRecord(t.Context(), nil)),
		Webhooks:     webhooks,
		WebhookCalls: o.calls,
		Convert:      o.convert,
	})
	require.NoError(t, err)
	for _, source := range o.sources {
		s.AddSource(source)
	}
	if o.assembled != nil {
		o.assembled(s)
	}
	wrap := s.Wrap
	if o.around != nil { // the next handler
		wrap = func(next http.Handler) http.Handler { return s.Wrap(o.around(next)) }
	}
	parts := customresourcetest.Parts{
		Wrap: wrap, Run: []func(context.Context) error{s.Run}, HasSynced: s.HasSynced, Close: backend.Close,
	}
	if !o.systemOnly {
		parts.Install = func(api *genericapiserver.GenericAPIServer) error { return s.InstallCRDs(api) }
		parts.Run = append(parts.Run, customresourcedefinition.NewCRDController(s.Definitions()).Run)
	}
	return &testServer{Server: s, API: customresourcetest.Serve(t, parts), opened: opened}
}

// startWithWidgets starts a server with the definition of widgets in some logical clusters.
func startWithWidgets(t testing.TB, clusters ...string) *testServer {
	t.Helper()
	s := startServer(t, serverOptions{})
	for _, cluster := range clusters {
		s.CreateCRD(t, cluster, widgetCRD(nil))
	}
	return s
}

// schemaOf returns the schema of a definition, and sets the defaults of the definition.
func schemaOf(t testing.TB, crd *apiextensionsv1.CustomResourceDefinition) *definitions.Schema {
	t.Helper()
	apiextensionsserver.Scheme.Default(crd)
	s, err := definitions.NewSchema(&crd.Spec, &crd.Spec.Names)
	require.NoError(t, err)
	return s
}

// byWebhook returns a conversion by a webhook, optionally with the certificate of a test server.
func byWebhook(url string, certificate *x509.Certificate) *apiextensionsv1.CustomResourceConversion {
	config := &apiextensionsv1.WebhookClientConfig{URL: &url}
	if certificate != nil {
		config.CABundle = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
	}
	return &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook:  &apiextensionsv1.WebhookConversion{ClientConfig: config, ConversionReviewVersions: []string{"v1"}},
	}
}

// openStores counts the stores of a server, each of which has a watch cache.
type openStores struct {
	mu sync.Mutex
	of map[schema.GroupResource]int
}

// custom returns the number of stores of custom resources.
func (o *openStores) custom() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	sum := 0
	for resource, n := range o.of {
		if resource.Group != apiextensionsv1.GroupName {
			sum += n
		}
	}
	return sum
}

func (o *openStores) add(resource schema.GroupResource, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.of[resource] += n
}

// wrap is a customresourcetest.Wrap.
func (o *openStores) wrap(resource schema.GroupResource, store storage.Interface, destroy factory.DestroyFunc) (storage.Interface, factory.DestroyFunc) {
	o.add(resource, 1)
	return store, func() { destroy(); o.add(resource, -1) }
}

// etag returns the ETag of a document.
func (s *testServer) etag(t *testing.T, cluster, path string) string {
	t.Helper()
	client, err := rest.HTTPClientFor(s.ClusterConfig(cluster))
	require.NoError(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.ClusterConfig(cluster).Host+path, http.NoBody)
	require.NoError(t, err)
	r.Header.Set("Accept", acceptAggregated+",application/json")
	get := func(want int) string {
		resp, err := client.Do(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, want, resp.StatusCode)
		return resp.Header.Get("Etag")
	}
	etag := get(http.StatusOK)
	require.NotEmpty(t, etag)
	r.Header.Set("If-None-Match", etag)
	get(http.StatusNotModified)
	return etag
}

// mustCreate creates an object, and returns the stored one.
func mustCreate(t testing.TB, client dynamic.ResourceInterface, obj *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	created, err := client.Create(t.Context(), obj, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

func mustGet(t testing.TB, client dynamic.ResourceInterface, name string) *unstructured.Unstructured {
	t.Helper()
	obj, err := client.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return obj
}

func mustList(t testing.TB, in dynamic.ResourceInterface, options metav1.ListOptions) *unstructured.UnstructuredList {
	t.Helper()
	list, err := in.List(t.Context(), options)
	require.NoError(t, err)
	return list
}

func mustUpdate(t testing.TB, in dynamic.ResourceInterface, obj *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	updated, err := in.Update(t.Context(), obj, metav1.UpdateOptions{})
	require.NoError(t, err)
	return updated
}

func mustPatch(t testing.TB, client dynamic.ResourceInterface, name, patch string) *unstructured.Unstructured {
	t.Helper()
	patched, err := client.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
	return patched
}

// mustWatch starts a watch that stops when the test ends.
func mustWatch(t testing.TB, client dynamic.ResourceInterface, options metav1.ListOptions) watch.Interface {
	t.Helper()
	w, err := client.Watch(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(w.Stop)
	return w
}
