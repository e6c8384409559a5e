package frontproxy

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/background"
	"github.com/shardplane/shardplane/test/ports"
)

const timeout = 30 * time.Second

func TestMain(m *testing.M) {
	// Parallel tests mostly wait. The command line is parsed later, so that -parallel takes precedence.
	utilruntime.Must(flag.Set("test.parallel", "6"))
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		// Upstream's certificate files start queues when they are created, and stop them only after Run.
		goleak.IgnoreAnyFunction("k8s.io/client-go/util/workqueue.(*Typed[...]).updateUnfinishedWorkLoop"),
		goleak.IgnoreAnyFunction("k8s.io/client-go/util/workqueue.(*delayingType[...]).waitingLoop"),
		goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/util/wait.PollImmediateUntilWithContext.poller.func1.1"),
	)
}

// world is a front-proxy with fake shards over TLS.
type world struct {
	dir                                     string
	servingCA, clientCA, proxyCA, foreigner *authority
	options                                 *Options
	proxy                                   *Server
	stop                                    func()
	shards                                  map[string]*fakeShard
}

// fakeShard serves LIST and WATCH of its index data on the wildcard, and passes all other requests to handler.
type fakeShard struct {
	name  string
	data  *clienttest.Server
	addr  string
	world *world
	http  *httptest.Server

	handler atomic.Pointer[http.HandlerFunc]
	open    atomic.Int32
}

func (s *fakeShard) url() string { return "https://" + s.addr }

func (s *fakeShard) connections() int { return int(s.open.Load()) }

func (s *fakeShard) count(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.open.Add(1)
	case http.StateClosed, http.StateHijacked:
		s.open.Add(-1)
	default:
	}
}

func newWorld(t testing.TB, shardNames ...string) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{
		dir: dir, shards: map[string]*fakeShard{},
		servingCA: newAuthority(t, dir, "serving-ca"), clientCA: newAuthority(t, dir, "client-ca"),
		proxyCA: newAuthority(t, dir, "requestheader-ca"), foreigner: newAuthority(t, dir, "foreign-ca"),
	}
	o := NewOptions()
	o.Serving.SecurePort = 0
	serving := w.servingCA.serving(t, dir)
	o.Serving.TLSCertFile, o.Serving.TLSPrivateKeyFile = serving.CertFile, serving.KeyFile
	o.Authentication.ClientCAFile, o.ShardCAFile = w.clientCA.file, w.servingCA.file
	index := w.clientCA.make(t, dir, "index", pki.Client("index", "system:masters"))
	o.ShardClientCertFile, o.ShardClientKeyFile = index.CertFile, index.KeyFile
	o.ProxyClientCertFile, o.ProxyClientKeyFile = w.proxyCA.issue(t, dir, "proxy")
	o.Authentication.DevTokens = true
	o.IndexTimeout = 200 * time.Millisecond
	w.options = o
	for _, name := range shardNames {
		w.addShard(t, name)
	}
	o.RootKubeconfig = filepath.Join(dir, "root.kubeconfig")
	encode := base64.StdEncoding.EncodeToString
	write(t, o.RootKubeconfig, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
current-context: base
clusters: [{name: base, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: index, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: base, context: {cluster: base, user: index}}]
`, w.shards["root"].url(), encode(w.servingCA.CertPEM), encode(index.CertPEM), encode(index.KeyPEM)))
	w.cluster(t, "root", "root")
	return w
}

// addShard starts a shard and registers it in root.
func (w *world) addShard(t testing.TB, name string) *fakeShard {
	t.Helper()
	s := &fakeShard{name: name, world: w, data: clienttest.New(t, kinds.Scheme)}
	w.shards[name] = s
	s.handle(s.echo)
	s.start(t)
	t.Cleanup(s.kill)
	w.announce(t, name, s.url())
	return s
}

func (w *world) announce(t testing.TB, name, url string) {
	t.Helper()
	w.shards["root"].lists(t, name, url)
}

// lists adds a Shard object to the shard.
func (s *fakeShard) lists(t testing.TB, name, url string) {
	t.Helper()
	s.data.Put(t, kinds.Shards.GroupVersionResource, &corev1alpha1.Shard{
		ObjectMeta: metaIn("root", name), Spec: corev1alpha1.ShardSpec{BaseURL: url},
	})
}

// metaIn returns the metadata of an object in a logical cluster.
func metaIn(cluster, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Annotations: map[string]string{logicalcluster.AnnotationKey: cluster}}
}

func (w *world) withdraw(t testing.TB, name string) {
	t.Helper()
	w.shards["root"].data.Delete(t, kinds.Shards.GroupVersionResource, "", "root", "", name)
}

// start serves at the shard's address, which is chosen by the first call.
func (s *fakeShard) start(t testing.TB) {
	t.Helper()
	if s.addr == "" {
		s.addr = fmt.Sprintf("127.0.0.1:%d", ports.Free(t, 1))
	}
	listener, err := net.Listen("tcp", s.addr)
	require.NoError(t, err)
	s.http = httptest.NewUnstartedServer(s)
	require.NoError(t, s.http.Listener.Close())
	s.http.Listener = listener
	s.http.EnableHTTP2 = true
	s.http.Config.ErrorLog, s.http.Config.ConnState = quietLog, s.count
	serving := s.world.servingCA.serving(t, t.TempDir())
	cert, err := tls.X509KeyPair(serving.CertPEM, serving.KeyPEM)
	require.NoError(t, err)
	s.http.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert}
	s.http.StartTLS()
}

// kill stops the shard at once. start restarts it at the same address.
func (s *fakeShard) kill() {
	_ = s.http.Listener.Close()
	s.data.Break()
	s.http.CloseClientConnections()
	s.http.Close()
}

func (s *fakeShard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/clusters/*/") && r.Header.Get(request.MergedHeader) == "" || strings.HasPrefix(r.URL.Path, "/clusters/root/apis/core.kcp.io/v1alpha1/shards") ||
		strings.HasPrefix(r.URL.Path, request.AdminPath) && r.TLS.PeerCertificates[0].Subject.CommonName == "index" {
		if r.TLS.PeerCertificates[0].Subject.CommonName != "index" {
			http.Error(w, "only for the index", http.StatusForbidden)
			return
		}
		s.data.ServeHTTP(w, r)
		return
	}
	(*s.handler.Load())(w, r)
}

// handle sets the handler of forwarded requests.
func (s *fakeShard) handle(f http.HandlerFunc) { s.handler.Store(&f) }

// admits makes the shard authorize only some users, or all if there are no names.
func (s *fakeShard) admits(names ...string) {
	s.handle(func(rw http.ResponseWriter, r *http.Request) {
		authorized := len(names) == 0 || slices.Contains(names, r.Header.Get("X-Remote-User"))
		rw.Header().Set(request.AccessAuthorizedHeader, strconv.FormatBool(authorized))
		if !authorized {
			rw.WriteHeader(http.StatusForbidden)
			return
		}
		s.echo(rw, r)
	})
}

// seen is the request that the echo handler received.
type seen struct {
	Shard, Method, URI, Proto, Host, Body, Cert string
	Header                                      http.Header
}

func (s *fakeShard) echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	response := seen{
		Shard: s.name, Method: r.Method, URI: r.RequestURI, Proto: r.Proto, Host: r.Host, Body: string(body), Header: r.Header,
	}
	if len(r.TLS.PeerCertificates) > 0 {
		response.Cert = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(response)
}

func (w *world) cluster(t testing.TB, shard, name string, edit ...func(*corev1alpha1.LogicalCluster)) {
	t.Helper()
	obj := &corev1alpha1.LogicalCluster{ObjectMeta: metaIn(name, "cluster")}
	obj.Annotations[corev1alpha1.LogicalClusterShardAnnotationKey] = shard
	obj.Status.Phase = corev1alpha1.LogicalClusterPhaseReady
	for _, f := range edit {
		f(obj)
	}
	w.shards[shard].data.Put(t, kinds.LogicalClusters.GroupVersionResource, obj)
}

func (w *world) workspace(t testing.TB, shard, parent, name, cluster string, edit ...func(*tenancyv1alpha1.Workspace)) {
	t.Helper()
	obj := &tenancyv1alpha1.Workspace{ObjectMeta: metaIn(parent, name)}
	obj.Spec.Cluster, obj.Status.Phase = cluster, corev1alpha1.LogicalClusterPhaseReady
	for _, f := range edit {
		f(obj)
	}
	w.shards[shard].data.Put(t, kinds.Workspaces.GroupVersionResource, obj)
}

// child adds a workspace in root, with a logical cluster on a shard.
func (w *world) child(t testing.TB, shard, name, cluster string, edit ...func(*tenancyv1alpha1.Workspace)) {
	t.Helper()
	w.cluster(t, shard, cluster)
	w.workspace(t, "root", "root", name, cluster, edit...)
}

func markUnavailable(ws *tenancyv1alpha1.Workspace) {
	ws.Status.Phase = corev1alpha1.LogicalClusterPhaseUnavailable
}

// run starts the front-proxy, which ends with the test or with stop.
func (w *world) run(t testing.TB) {
	t.Helper()
	proxy, err := NewFrontProxy(t.Context(), w.options.Complete())
	require.NoError(t, err)
	w.proxy = proxy
	w.stop = background.Run(t.Context(), t, proxy.Run)
}

// ready runs the front-proxy, and waits until it is ready and its index contains known: paths, each with its shard.
func (w *world) ready(t testing.TB, known ...string) {
	t.Helper()
	w.run(t)
	require.Eventually(t, func() bool { return w.proxy.health.ready() == nil }, timeout, 5*time.Millisecond)
	for pair := range slices.Chunk(known, 2) {
		w.awaitIndexed(t, pair[0], pair[1])
	}
}

func (w *world) awaitIndexed(t testing.TB, path, shard string) {
	t.Helper()
	require.Eventually(t, func() bool {
		target, _ := w.proxy.shards.index.Lookup(path)
		return target.Shard == shard
	}, timeout, 5*time.Millisecond, path)
}

// person is an HTTP client with credentials.
type person struct {
	*http.Client
	world *world
	token string
}

func (w *world) person(t testing.TB, name string, groups ...string) *person {
	t.Helper()
	return w.withCerts(t, w.clientCA.pair(t, name, groups...))
}

func (p *person) http1(t testing.TB) *person {
	t.Helper()
	transport := p.Transport.(*http.Transport).Clone()
	transport.ForceAttemptHTTP2 = false
	transport.TLSClientConfig.NextProtos = nil
	transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	t.Cleanup(transport.CloseIdleConnections)
	return &person{Client: &http.Client{Transport: transport}, world: p.world, token: p.token}
}

func (w *world) withCerts(t testing.TB, certs ...tls.Certificate) *person {
	t.Helper()
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: w.servingCA.pool(), Certificates: certs},
		ForceAttemptHTTP2: true, DisableCompression: true, MaxIdleConnsPerHost: 100,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &person{Client: &http.Client{Transport: transport}, world: w}
}

// do sends a request.
func (p *person) do(t testing.TB, method, path string, body io.Reader, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, p.world.proxy.URL()+path, body)
	require.NoError(t, err)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	if p.token != "" {
		req.Header.Set("Authorization", "Bearer "+p.token)
	}
	res, text, err := p.send(req)
	require.NoError(t, err)
	return res, text
}

// send returns the response to a request, with its body.
func (p *person) send(req *http.Request) (*http.Response, string, error) {
	res, err := p.Do(req)
	if err != nil {
		return nil, "", err
	}
	body, err := io.ReadAll(res.Body)
	return res, string(body), errors.Join(err, res.Body.Close())
}

// want sends a GET, and checks the status code of the response.
func (p *person) want(t testing.TB, path string, code int, header ...string) (*http.Response, string) {
	t.Helper()
	res, body := p.get(t, path, header...)
	require.Equal(t, code, res.StatusCode, "%s: %s", path, body)
	return res, body
}

// eventually waits until the response of a GET has a status code.
func (p *person) eventually(t testing.TB, path string, code int) {
	t.Helper()
	require.Eventually(t, func() bool {
		res, _ := p.get(t, path)
		return res.StatusCode == code
	}, timeout, 5*time.Millisecond, path)
}

func (p *person) get(t testing.TB, path string, header ...string) (*http.Response, string) {
	t.Helper()
	return p.do(t, http.MethodGet, path, nil, header...)
}

// async sends a GET. It sends the response body, or the error, to the channel.
func (p *person) async(t testing.TB, path string) <-chan string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.world.proxy.URL()+path, nil)
	require.NoError(t, err)
	response := make(chan string, 1)
	go func() {
		_, body, err := p.send(req)
		if err != nil {
			body = err.Error()
		}
		response <- body
	}()
	return response
}

func (p *person) echoed(t testing.TB, path string, header ...string) seen {
	t.Helper()
	_, body := p.want(t, path, http.StatusOK, header...)
	var s seen
	require.NoError(t, json.Unmarshal([]byte(body), &s), body)
	return s
}

// factory returns clients of a server with the certificate for reading the index.
func (w *world) factory(t testing.TB, url string) *client.Factory {
	t.Helper()
	index := w.clientCA.make(t, w.dir, "index", pki.Client("index", "system:masters"))
	factory, err := client.NewFactory(&rest.Config{Host: url, TLSClientConfig: rest.TLSClientConfig{
		CAData: w.servingCA.CertPEM, CertData: index.CertPEM, KeyData: index.KeyPEM,
	}})
	require.NoError(t, err)
	t.Cleanup(factory.CloseIdleConnections)
	return factory
}

func write(t testing.TB, file string, content []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(file, content, 0o600))
}

func mustRead(t testing.TB, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	return content
}

// complete reports whether all shards have been read, so that the index is complete.
func (s *shards) complete() bool {
	unread, _ := s.unread()
	return len(unread) == 0
}

// authority signs the certificates of a test.
type authority struct {
	*pki.Pair
	file string
}

func newAuthority(t testing.TB, dir, name string) *authority {
	t.Helper()
	ca, err := pki.NewStore(dir, time.Now).Authority(name)
	require.NoError(t, err)
	return &authority{Pair: ca, file: ca.CertFile}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.CertPEM)
	return pool
}

func (a *authority) make(t testing.TB, dir, file string, spec pki.Spec) *pki.Pair {
	t.Helper()
	pair, err := pki.NewStore(dir, time.Now).Certificate(file, a.Pair, spec)
	require.NoError(t, err)
	return pair
}

// serving creates the certificate of a server.
func (a *authority) serving(t testing.TB, dir string) *pki.Pair {
	t.Helper()
	spec := pki.Spec{CommonName: "server", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"}}
	return a.make(t, dir, "serving", spec)
}

// issue creates the certificate of a client.
func (a *authority) issue(t testing.TB, dir, name string, groups ...string) (certFile, keyFile string) {
	t.Helper()
	pair := a.make(t, dir, name, pki.Client(name, groups...))
	return pair.CertFile, pair.KeyFile
}

func (a *authority) pair(t testing.TB, name string, groups ...string) tls.Certificate {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(a.issue(t, t.TempDir(), name, groups...))
	require.NoError(t, err)
	return cert
}
