package noisyneighbors

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/test/harness"
)

const (
	// testTimeout is the timeout of conditions that a test waits for.
	testTimeout = time.Minute
	tick        = 10 * time.Millisecond

	// These are limits of the shard on requests in flight: maxWriting on executing writes,
	// maxPerCluster and maxPerUser on all requests, maxPaused on requests that wait for webhooks,
	// and maxWatches on watches of a logical cluster.
	maxWriting, maxPerCluster, maxPerUser, maxPaused, maxWatches = 10, 250, 200, 240, 100
	// maxWatchBytes is the limit on buffered events of one user's watches in a logical cluster.
	maxWatchBytes = 16 << 20
	// maxReplicated is the limit on replicated objects of one kind, and maxCached on objects of
	// cached resources.
	maxReplicated, maxCached = 40, 20
	// maxHomeObjects is the limit on objects of a home workspace and those below, and
	// maxHomeWorkspaces on workspaces.
	maxHomeObjects, maxHomeWorkspaces = 200, 3
	// maxAnonymousConnections and maxUserConnections are limits of all servers on connections, and
	// maxStreams on requests of each connection.
	maxAnonymousConnections, maxUserConnections, maxStreams = 50, 30, maxPerCluster + 10
)

var workspaces = schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}

func TestMain(m *testing.M) {
	if kubeconfig := os.Getenv(quietEnv); kubeconfig != "" {
		if err := runQuietTenant(kubeconfig); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv("NOISY_NEIGHBORS_LOGS") == "" {
		klog.SetLogger(logr.Discard())
	}
	os.Exit(harness.Main(m))
}

// world is a shard with a quiet tenant and an attacker.
type world struct {
	*harness.Cluster

	quiet, attacker *tenant
	// operator is the administrator of the shard. servers are the administrators of the shard, the
	// cache server and the front-proxy.
	operator *tenant
	servers  []*tenant
	// observer measures the latency of the quiet tenant, if set.
	observer *observer
	// id is part of all names that the attacker chooses.
	id string
}

// tenant is a user with all rights in one workspace, or an administrator of a server.
type tenant struct {
	config *rest.Config
	http   *http.Client
	crds   apiextensionsclient.Interface
	dyn    dynamic.Interface
	kube   kubernetes.Interface
}

func newWorld(t testing.TB) *world {
	t.Helper()
	// Low limits, so that rows need not send thousands of requests.
	connections := []string{fmt.Sprintf("--limit=anonymous-connections=%d,connections-per-user=%d", maxAnonymousConnections, maxUserConnections), fmt.Sprintf("--http2-max-streams-per-connection=%d", maxStreams)}
	mode := harness.InProcess
	if *latencyFlag {
		mode = harness.Processes // garbage collection and scheduling are independent of the attacker
	}
	c := harness.Start(t, harness.Options{Mode: mode, DevTokens: true, ExtraArgs: map[string][]string{
		"shard": append([]string{
			fmt.Sprintf("--max-mutating-requests-inflight=%d", maxWriting),
			fmt.Sprintf("--limit=requests-per-cluster=%d,requests-per-user=%d", maxPerCluster, maxPerUser),
			// One user may use half of the watches of a logical cluster.
			fmt.Sprintf("--limit=watches-per-cluster=%d,watch-bytes-per-cluster=%d", maxWatches, 2*maxWatchBytes),
			fmt.Sprintf("--fairness-paused-requests=%d", maxPaused),
			fmt.Sprintf("--max-replicated-objects=%d", maxReplicated),
			fmt.Sprintf("--max-cached-objects=%d", maxCached),
			fmt.Sprintf("--home-workspaces-max-objects=%d", maxHomeObjects),
			fmt.Sprintf("--home-workspaces-max-workspaces=%d", maxHomeWorkspaces),
		}, connections...),
		"front-proxy": connections, "cache-server": connections,
	}})
	w := &world{Cluster: c, id: newID(), operator: newTenant(t, c.Shard(0))}
	w.servers = []*tenant{w.operator, newTenant(t, c.Cache()), newTenant(t, c.Proxy())}
	w.quiet, w.attacker = w.workspace(t, "quiet"), w.workspace(t, "attacker")
	return w
}

// workspace returns the administrator of a workspace below root, and creates it if necessary.
func (w *world) workspace(t testing.TB, name string) *tenant {
	t.Helper()
	root := newTenant(t, harness.In(w.Proxy(), "root"))
	_, err := root.dyn.Resource(workspaces).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": workspaces.GroupVersion().String(), "kind": "Workspace", "metadata": map[string]any{"name": name},
	}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		got, err := root.dyn.Resource(workspaces).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		phase, _, _ := unstructured.NestedString(got.Object, "status", "phase")
		return phase == "Ready"
	}, testTimeout, tick, "workspace %s did not become Ready", name)
	return newTenant(t, harness.In(w.Proxy(), "root:"+name))
}

func newTenant(t testing.TB, config *rest.Config) *tenant {
	t.Helper()
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{}
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(client.Transport) }) // client.CloseIdleConnections does not unwrap client-go's transports
	u := &tenant{config: config, http: client}
	u.crds, err = apiextensionsclient.NewForConfigAndClient(config, client)
	require.NoError(t, err)
	u.dyn, err = dynamic.NewForConfigAndClient(config, client)
	require.NoError(t, err)
	u.kube, err = kubernetes.NewForConfigAndClient(config, client)
	require.NoError(t, err)
	return u
}

// serviceAccount creates an administrator in the attacker's logical cluster.
func (w *world) serviceAccount(t *testing.T, name string) *tenant {
	t.Helper()
	return w.attacker.serviceAccount(t, name+"-"+w.id)
}

// serviceAccount creates an administrator in the tenant's logical cluster.
func (u *tenant) serviceAccount(t *testing.T, name string) *tenant {
	t.Helper()
	u.create(t, "/api/v1/namespaces/default/serviceaccounts", fmt.Sprintf(`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":%q}}`, name))
	u.create(t, clusterBindings, rolesBinding("ClusterRoleBinding", name, "cluster-admin", `{"kind":"ServiceAccount","namespace":"default","name":%q}`, name))
	token, err := u.kube.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	return u.authenticate(t, token.Status.Token)
}

// authenticate returns an authorized user with a token.
func (u *tenant) authenticate(t *testing.T, token string) *tenant {
	t.Helper()
	config := rest.AnonymousClientConfig(u.config)
	config.BearerToken = token
	made := newTenant(t, config)
	made.waitUntilAuthorized(t)
	return made
}

// withToken returns a user with a development token and all rights in the tenant's logical cluster.
func (u *tenant) withToken(t *testing.T, user, token, binding string) *tenant {
	t.Helper()
	u.create(t, clusterBindings, adminBinding(binding, user))
	return u.authenticate(t, token)
}

// withOwnConnection returns the tenant with its own connection. Otherwise, client-go shares one for
// all clients without a certificate, and opens more than allowed if these send more requests than a
// connection has streams.
func (u *tenant) withOwnConnection(t *testing.T) *tenant {
	t.Helper()
	config := rest.CopyConfig(u.config)
	config.Dial = (&net.Dialer{}).DialContext // a dialer prevents sharing
	made := newTenant(t, config)
	made.waitUntilAuthorized(t)
	return made
}

// waitUntilAuthorized waits until the tenant's rights are effective.
func (u *tenant) waitUntilAuthorized(t *testing.T) {
	t.Helper()
	u.untilResponse(t, http.MethodGet, configMaps, "", http.StatusOK, "", "the tenant is not authorized")
}

// untilResponse repeats a request until its response has the code and contains the text. If an attempt to create an
// object failed after it was stored, the next one conflicts.
func (u *tenant) untilResponse(t *testing.T, method, path, body string, code int, text, message string, args ...any) {
	t.Helper()
	var last atomic.Value
	require.Eventually(t, func() bool {
		got, content, err := u.call(t.Context(), method, path, body)
		failed := last.Swap(fmt.Sprintf("%d %s, error %v", got, content, err)) != nil
		if failed && method == http.MethodPost && code == http.StatusCreated && got == http.StatusConflict {
			return true
		}
		return err == nil && got == code && strings.Contains(string(content), text)
	}, testTimeout, tick, "%s; the last response is %s", fmt.Sprintf(message, args...), lazyString{&last})
}

// lazyString formats a value when a failure is printed.
type lazyString struct{ *atomic.Value }

func (l lazyString) String() string { return fmt.Sprint(l.Load()) }

// call sends a request and returns the response.
func (u *tenant) call(ctx context.Context, method, path, body string) (int, []byte, error) {
	code, _, content, err := u.request(ctx, method, path, body)
	return code, content, err
}

// request is like call, but also returns the headers.
func (u *tenant) request(ctx context.Context, method, path, body string) (int, http.Header, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, u.config.Host+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := u.http.Do(r)
	if err != nil {
		return 0, nil, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	return response.StatusCode, response.Header, content, err
}

// open opens a watch until the test ends.
func (u *tenant) open(t *testing.T, path string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, u.config.Host+path, http.NoBody)
	require.NoError(t, err)
	response, err := u.http.Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

// watch opens a watch without reading it. If it is rejected, it returns the Retry-After header and the
// message.
func (u *tenant) watch(t *testing.T, path string) (code int, retryAfter, message string) {
	t.Helper()
	response := u.open(t, path)
	if response.StatusCode == http.StatusOK {
		return http.StatusOK, "", ""
	}
	content, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, response.Header.Get("Retry-After"), string(content)
}

// must sends a request that must succeed.
func (u *tenant) must(t testing.TB, method, path, body string) []byte {
	t.Helper()
	code, content, err := u.call(t.Context(), method, path, body)
	require.NoError(t, err)
	require.Less(t, code, http.StatusBadRequest, "%s %s: %.300s", method, path, content)
	return content
}

// create creates an object until the test ends.
func (u *tenant) create(t *testing.T, path, body string) {
	t.Helper()
	u.removeAfterTest(t, path, u.must(t, http.MethodPost, path, body))
}

// removeAfterTest deletes an object when the test ends, and returns its path. made is the response to
// its creation.
func (u *tenant) removeAfterTest(t *testing.T, path string, made []byte) string {
	t.Helper()
	var object metav1.PartialObjectMetadata
	require.NoError(t, json.Unmarshal(made, &object))
	path += "/" + object.Name
	t.Cleanup(func() { u.remove(t, path) })
	return path
}

// remove deletes the object at a path, if any, and waits until it is removed.
func (u *tenant) remove(t *testing.T, path string) {
	t.Helper()
	var response string
	removed := func() bool {
		code, content, err := u.call(context.WithoutCancel(t.Context()), http.MethodDelete, path, "")
		response = fmt.Sprintf("%d %.300s %v", code, content, err)
		return err == nil && code == http.StatusNotFound
	}
	for range 2 { // most objects are removed immediately
		if removed() {
			return
		}
	}
	if !assert.Eventually(t, removed, testTimeout, tick) {
		t.Fatalf("%s was not removed: %s", path, response)
	}
}

// define creates a definition until the test ends.
func (u *tenant) define(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	made := harness.Create(t, u.crds.ApiextensionsV1().CustomResourceDefinitions(), crd)
	t.Cleanup(func() { u.undefine(t, made.Name) })
	return made
}

// undefine deletes a definition and waits until it is removed.
func (u *tenant) undefine(t *testing.T, name string) {
	t.Helper()
	u.remove(t, definitionsPath+"/"+name)
}

// things returns a definition of things.<group> in some versions. The first is stored, and each has
// a different selectable field.
func things(group string, versions ...string) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "things." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "things", Singular: "thing", Kind: "Thing", ListKind: "ThingList"},
			Scope: apiextensionsv1.ClusterScoped,
		},
	}
	for i, version := range versions {
		field := "field" + fmt.Sprint(i)
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
			Name: version, Served: true, Storage: i == 0,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
					"text": {Type: "string"}, field: {Type: "string"},
				},
			}},
			Subresources:     &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			SelectableFields: []apiextensionsv1.SelectableField{{JSONPath: "." + field}},
		})
	}
	return crd
}

// convertBy configures a conversion webhook.
func convertBy(crd *apiextensionsv1.CustomResourceDefinition, url string, ca []byte) {
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ConversionReviewVersions: []string{"v1"},
			ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: &url, CABundle: ca},
		},
	}
}

// thing returns the JSON of an object of such a definition.
func thing(group, version, name, text string) string {
	return fmt.Sprintf(`{"apiVersion":"%s/%s","kind":"Thing","metadata":{"name":%q},"text":%q}`, group, version, name, text)
}

// countersMatch reports whether a condition on metrics is true. With -latency, it is not checked,
// because the servers are other processes.
func countersMatch(condition bool) bool { return *latencyFlag || condition }

// metric returns the sum of a metric over all series and servers.
func (w *world) metric(t *testing.T, name string) (sum float64) {
	t.Helper()
	for _, server := range w.servers {
		for line := range strings.Lines(string(server.must(t, http.MethodGet, "/metrics", ""))) {
			if series, value, _ := strings.Cut(strings.TrimSpace(line), " "); series == name || strings.HasPrefix(series, name+"{") {
				n, err := strconv.ParseFloat(value, 64)
				require.NoError(t, err, line)
				sum += n
			}
		}
	}
	return sum
}

// upstreamMetric returns the sum of a metric of upstream's packages over all series with the
// labels. All servers of this process share it.
func upstreamMetric(t *testing.T, name string, labels map[string]string) float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	require.NoError(t, err)
	sum := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
	series:
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if want, ok := labels[label.GetName()]; ok && want != label.GetValue() {
					continue series
				}
			}
			sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	return sum
}

// newID returns a unique part of names.
func newID() string {
	out := []byte("zq0123456789")
	for i := 2; i < len(out); i++ {
		out[i] = byte('a' + rand.IntN(26))
	}
	return string(out)
}

// hangingWebhook returns a webhook that reports each call, and does not respond until it is released
// or the call ends.
func hangingWebhook(t *testing.T, called chan<- struct{}, release <-chan struct{}) *httptest.Server {
	t.Helper()
	hook := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case called <- struct{}{}:
		default:
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(hook.Close)
	return hook
}
