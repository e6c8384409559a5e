package neighbours

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
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
	// testTimeout is how long what must come may take.
	testTimeout = time.Minute
	tick        = 10 * time.Millisecond

	// maxWriting and maxOfCluster are bounds of the shard on requests in flight:
	// writing ones that execute, all those of a logical cluster, and all those of a user; maxPaused is that
	// on those that wait for webhooks, and maxWatches that on the watches of a logical cluster.
	maxWriting, maxOfCluster, maxByUser, maxPaused, maxWatches = 10, 250, 200, 240, 100
	// maxWatchBytes is the bound on what the watches of a logical cluster hold.
	maxWatchBytes = 16 << 20
	// maxReplicated is the bound on objects of one kind that is replicated, and maxCached that on those
	// of cached resources.
	maxReplicated, maxCached = 40, 20
	// maxOfHome is the limit on objects of a home workspace and all below it, and maxInHome that on Workspaces.
	maxOfHome, maxInHome = 200, 3
	// maxAnonymous and maxOfUser are bounds of all servers on connections, and maxStreams
	// on the requests of each.
	maxAnonymous, maxOfUser, maxStreams = 50, 30, maxOfCluster + 10
)

var workspaces = schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspaces"}

func TestMain(m *testing.M) {
	if kubeconfig := os.Getenv(quietEnv); kubeconfig != "" {
		if err := beQuiet(kubeconfig); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv("NEIGHBOURS_LOGS") == "" {
		klog.SetLogger(logr.Discard())
	}
	os.Exit(harness.Main(m))
}

// world is a shard with a quiet tenant and an attacker.
type world struct {
	*harness.Cluster

	quiet, attacker *tenant
	// masters is the operator at the shard, and servers are the operator at each server: the
	// shard, the cache server and the front-proxy.
	masters *tenant
	servers []*tenant
	// observer is the quiet tenant whose latency is measured, if it is.
	observer *observer
	// mark is part of everything that the attacker names.
	mark string
}

// tenant is a user with all rights in one workspace, or the operator.
type tenant struct {
	config *rest.Config
	http   *http.Client
	crds   apiextensionsclient.Interface
	dyn    dynamic.Interface
	kube   kubernetes.Interface
}

func newWorld(t testing.TB) *world {
	t.Helper()
	// So few that the rows need not send thousands of requests.
	connections := []string{fmt.Sprintf("--limit=anonymous-connections=%d,connections-per-user=%d", maxAnonymous, maxOfUser), fmt.Sprintf("--http2-max-streams-per-connection=%d", maxStreams)}
	mode := harness.InProcess
	if *latencyFlag {
		mode = harness.Processes // whose collector of garbage and scheduler know nothing of the attacker's
	}
	c := harness.Start(t, harness.Options{Mode: mode, DevTokens: true, ExtraArgs: map[string][]string{
		"shard": append([]string{
			fmt.Sprintf("--max-mutating-requests-inflight=%d", maxWriting),
			fmt.Sprintf("--limit=requests-per-cluster=%d,requests-per-user=%d", maxOfCluster, maxByUser),
			// One user gets half of what a logical cluster may have.
			fmt.Sprintf("--limit=watches-per-cluster=%d,watch-bytes-per-cluster=%d", maxWatches, 2*maxWatchBytes),
			fmt.Sprintf("--fairness-paused-requests=%d", maxPaused),
			fmt.Sprintf("--max-replicated-objects=%d", maxReplicated),
			fmt.Sprintf("--max-cached-objects=%d", maxCached),
			fmt.Sprintf("--home-workspaces-max-objects=%d", maxOfHome),
			fmt.Sprintf("--home-workspaces-max-workspaces=%d", maxInHome),
		}, connections...),
		"front-proxy": connections, "cache-server": connections,
	}})
	w := &world{Cluster: c, mark: newMark(), masters: newTenant(t, c.Shard(0))}
	w.servers = []*tenant{w.masters, newTenant(t, c.Cache()), newTenant(t, c.Proxy())}
	w.quiet, w.attacker = w.workspace(t, "quiet"), w.workspace(t, "attacker")
	return w
}

// workspace returns the administrator of a workspace below root, which is made where there is none.
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
	}, testTimeout, tick, "workspace %s becomes Ready", name)
	return newTenant(t, harness.In(w.Proxy(), "root:"+name))
}

func newTenant(t testing.TB, config *rest.Config) *tenant {
	t.Helper()
	config = rest.CopyConfig(config)
	config.WarningHandler = rest.NoWarnings{}
	client, err := rest.HTTPClientFor(config)
	require.NoError(t, err)
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(client.Transport) }) // client-go's wrappers hide it from client
	u := &tenant{config: config, http: client}
	u.crds, err = apiextensionsclient.NewForConfigAndClient(config, client)
	require.NoError(t, err)
	u.dyn, err = dynamic.NewForConfigAndClient(config, client)
	require.NoError(t, err)
	u.kube, err = kubernetes.NewForConfigAndClient(config, client)
	require.NoError(t, err)
	return u
}

// robot returns a service account of the attacker's logical cluster, which may do
// everything there.
func (w *world) robot(t *testing.T, name string) *tenant {
	t.Helper()
	return w.attacker.robot(t, name+"-"+w.mark)
}

// robot returns a service account of the tenant's logical cluster, which may do
// everything there.
func (u *tenant) robot(t *testing.T, name string) *tenant {
	t.Helper()
	u.create(t, "/api/v1/namespaces/default/serviceaccounts", fmt.Sprintf(`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":%q}}`, name))
	u.create(t, clusterBindings, rolesBinding("ClusterRoleBinding", name, "cluster-admin", `{"kind":"ServiceAccount","namespace":"default","name":%q}`, name))
	token, err := u.kube.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)
	config := rest.AnonymousClientConfig(u.config)
	config.BearerToken = token.Status.Token
	made := newTenant(t, config)
	made.mayRead(t)
	return made
}

// withToken returns who has a token of the development cluster, and may do everything in the tenant's logical
// cluster as the user of that name.
func (u *tenant) withToken(t *testing.T, user, token, binding string) *tenant {
	t.Helper()
	u.create(t, clusterBindings, administers(binding, user))
	config := rest.AnonymousClientConfig(u.config)
	config.BearerToken = token
	made := newTenant(t, config)
	made.mayRead(t)
	return made
}

// apart returns the tenant with a connection of its own. Without, client-go has one for all that have no certificate, and opens
// more than a server lets anybody open at a time where these send more requests than it carries.
func (u *tenant) apart(t *testing.T) *tenant {
	t.Helper()
	config := rest.CopyConfig(u.config)
	config.Dial = (&net.Dialer{}).DialContext // which nobody shares
	made := newTenant(t, config)
	made.mayRead(t)
	return made
}

// mayRead waits until the tenant's rights count.
func (u *tenant) mayRead(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		code, _, err := u.call(t.Context(), http.MethodGet, configMaps, "")
		return err == nil && code == http.StatusOK
	}, testTimeout, tick, "the tenant may do everything")
}

// call sends a request of any form, and returns the answer.
func (u *tenant) call(ctx context.Context, method, path, body string) (int, []byte, error) {
	code, _, content, err := u.exchange(ctx, method, path, body)
	return code, content, err
}

// exchange is call with the answer's headers.
func (u *tenant) exchange(ctx context.Context, method, path, body string) (int, http.Header, []byte, error) {
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

// open opens a watch, which nobody reads, until the test ends. It returns the code
// and, of a refusal, when to try again and the message.
func (u *tenant) open(t *testing.T, path string) (code int, retryAfter, message string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, u.config.Host+path, http.NoBody)
	require.NoError(t, err)
	response, err := u.http.Do(r)
	require.NoError(t, err)
	if response.StatusCode == http.StatusOK {
		t.Cleanup(func() { _ = response.Body.Close() })
		return http.StatusOK, "", ""
	}
	content, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return response.StatusCode, response.Header.Get("Retry-After"), string(content)
}

// must is call for requests that succeed.
func (u *tenant) must(t testing.TB, method, path, body string) []byte {
	t.Helper()
	code, content, err := u.call(t.Context(), method, path, body)
	require.NoError(t, err)
	require.Less(t, code, http.StatusBadRequest, "%s %s: %.300s", method, path, content)
	return content
}

// create creates an object, which goes when the test ends.
func (u *tenant) create(t *testing.T, path, body string) {
	t.Helper()
	u.dropAfter(t, path, u.must(t, http.MethodPost, path, body))
}

// dropAfter has an object go when the test ends, of which made is what a create was answered with.
func (u *tenant) dropAfter(t *testing.T, path string, made []byte) {
	t.Helper()
	var object metav1.PartialObjectMetadata
	require.NoError(t, json.Unmarshal(made, &object))
	t.Cleanup(func() { u.drop(t, path+"/"+object.Name) })
}

// drop deletes what may be at a path, and waits until it is gone.
func (u *tenant) drop(t *testing.T, path string) {
	t.Helper()
	var answer string
	gone := func() bool {
		code, content, err := u.call(context.WithoutCancel(t.Context()), http.MethodDelete, path, "")
		answer = fmt.Sprintf("%d %.300s %v", code, content, err)
		return err == nil && code == http.StatusNotFound
	}
	for range 2 { // most go at once
		if gone() {
			return
		}
	}
	if !assert.Eventually(t, gone, testTimeout, tick) {
		t.Fatalf("%s does not go: %s", path, answer)
	}
}

// define creates a definition, which is served when it returns and goes when the test ends.
func (u *tenant) define(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	made, err := u.crds.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), crd, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { u.undefine(t, made.Name) })
	return made
}

// undefine deletes a definition and waits until it is gone.
func (u *tenant) undefine(t *testing.T, name string) {
	t.Helper()
	u.drop(t, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+name)
}

// things is the definition of things.<group> in some versions, of which the
// first is stored, and each has a selectable field of its own.
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

// thing is the JSON of an object of such a definition.
func thing(group, version, name, text string) string {
	return fmt.Sprintf(`{"apiVersion":"%s/%s","kind":"Thing","metadata":{"name":%q},"text":%q}`, group, version, name, text)
}

// seen reports whether what is counted in this process is as it should be. With
// -latency servers count in processes of their own, and nothing is waited for.
func seen(condition func() bool) bool { return *latencyFlag || condition() }

// counted returns the sum of the series of a metric that servers have for themselves, of all servers.
func (w *world) counted(t *testing.T, name string) (sum float64) {
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

// counters returns the sum of the series of a metric of upstream's packages that have these labels: the servers of
// this process share them.
func counters(t *testing.T, name string, labels map[string]string) float64 {
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
				if want, asked := labels[label.GetName()]; asked && want != label.GetValue() {
					continue series
				}
			}
			sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	return sum
}

// newMark returns what nobody else has in a name.
func newMark() string {
	out := []byte("zq0123456789")
	for i := 2; i < len(out); i++ {
		out[i] = byte('a' + rand.IntN(26))
	}
	return string(out)
}

// caOf returns the certificate of a test server, as PEM.
func caOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

// hangs returns a webhook that tells when it is asked, and does not answer before it
// is released or the call ends.
func hangs(t *testing.T, asked chan<- struct{}, release <-chan struct{}) *httptest.Server {
	t.Helper()
	hook := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case asked <- struct{}{}:
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
