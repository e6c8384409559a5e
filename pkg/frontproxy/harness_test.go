package frontproxy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/test/ports"
)

const timeout = 30 * time.Second

func TestMain(m *testing.M) {
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
	o.Serving.TLSCertFile, o.Serving.TLSPrivateKeyFile = w.servingCA.issue(t, dir, "front-proxy")
	o.Authentication.ClientCAFile, o.ShardCAFile = w.clientCA.file, w.servingCA.file
	o.ShardClientCertFile, o.ShardClientKeyFile = w.clientCA.issue(t, dir, "index", "system:masters")
	o.ProxyClientCertFile, o.ProxyClientKeyFile = w.proxyCA.issue(t, dir, "proxy")
	o.Authentication.DevTokens = true
	o.IndexTimeout = 200 * time.Millisecond
	w.options = o
	for _, name := range shardNames {
		w.addShard(t, name)
	}
	o.RootKubeconfig = filepath.Join(dir, "root.kubeconfig")
	require.NoError(t, os.WriteFile(o.RootKubeconfig, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
current-context: base
clusters: [{name: base, cluster: {server: %q, certificate-authority-data: %q}}]
users: [{name: index, user: {client-certificate-data: %q, client-key-data: %q}}]
contexts: [{name: base, context: {cluster: base, user: index}}]
`, "https://"+w.shards["root"].addr, inline(t, w.servingCA.file), inline(t, o.ShardClientCertFile), inline(t, o.ShardClientKeyFile)), 0o600))
	w.cluster(t, "root", "root")
	return w
}

// addShard starts a shard and registers it in root.
func (w *world) addShard(t testing.TB, name string) *fakeShard {
	t.Helper()
	s := &fakeShard{name: name, world: w, data: clienttest.New(t, kinds.Scheme)}
	w.shards[name] = s
	echo := http.HandlerFunc(s.echo)
	s.handler.Store(&echo)
	s.start(t)
	t.Cleanup(s.kill)
	w.announce(t, name, "https://"+s.addr)
	return s
}

func (w *world) announce(t testing.TB, name, url string) {
	t.Helper()
	w.shards["root"].data.Put(t, kinds.Shards.GroupVersionResource, &corev1alpha1.Shard{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{logicalcluster.AnnotationKey: "root"}},
		Spec:       corev1alpha1.ShardSpec{BaseURL: url},
	})
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
	s.http.TLS = &tls.Config{Certificates: []tls.Certificate{s.world.servingCA.pair(t, "shard")}, ClientAuth: tls.RequestClientCert}
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
			http.Error(w, "only the index reads this", http.StatusForbidden)
			return
		}
		s.data.ServeHTTP(w, r)
		return
	}
	(*s.handler.Load())(w, r)
}

// handle sets the handler of forwarded requests.
func (s *fakeShard) handle(f http.HandlerFunc) { s.handler.Store(&f) }

// seen is the request that the echo handler received.
type seen struct {
	Shard, Method, URI, Proto, Host, Body, Cert string
	Header                                      http.Header
}

func (s *fakeShard) echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	answer := seen{
		Shard: s.name, Method: r.Method, URI: r.RequestURI, Proto: r.Proto, Host: r.Host, Body: string(body), Header: r.Header,
	}
	if len(r.TLS.PeerCertificates) > 0 {
		answer.Cert = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

func (w *world) cluster(t testing.TB, shard, name string, edit ...func(*corev1alpha1.LogicalCluster)) {
	t.Helper()
	obj := &corev1alpha1.LogicalCluster{ObjectMeta: metav1.ObjectMeta{
		Name: "cluster", Annotations: map[string]string{logicalcluster.AnnotationKey: name, corev1alpha1.LogicalClusterShardAnnotationKey: shard},
	}}
	obj.Status.Phase = corev1alpha1.LogicalClusterPhaseReady
	for _, f := range edit {
		f(obj)
	}
	w.shards[shard].data.Put(t, kinds.LogicalClusters.GroupVersionResource, obj)
}

func (w *world) workspace(t testing.TB, shard, parent, name, cluster string, edit ...func(*tenancyv1alpha1.Workspace)) {
	t.Helper()
	obj := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{logicalcluster.AnnotationKey: parent}}}
	obj.Spec.Cluster, obj.Status.Phase = cluster, corev1alpha1.LogicalClusterPhaseReady
	for _, f := range edit {
		f(obj)
	}
	w.shards[shard].data.Put(t, kinds.Workspaces.GroupVersionResource, obj)
}

// run starts the front-proxy, which ends with the test or with stop.
func (w *world) run(t testing.TB) {
	t.Helper()
	proxy, err := New(t.Context(), w.options.Complete())
	require.NoError(t, err)
	w.proxy = proxy
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- proxy.Run(ctx) }()
	stopped := false
	w.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			require.NoError(t, err)
		case <-time.After(timeout):
			t.Fatal("the front-proxy did not stop")
		}
	}
	t.Cleanup(w.stop)
}

func (w *world) ready(t testing.TB) {
	t.Helper()
	w.run(t)
	require.Eventually(t, func() bool { return w.proxy.health.ready() == nil }, timeout, 5*time.Millisecond)
}

func (w *world) knows(t testing.TB, path, shard string) {
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

// do sends a request. It reads the response body unless it is a watch.
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
	res, err := p.Do(req)
	require.NoError(t, err)
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	return res, string(text)
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
	answer := make(chan string, 1)
	go func() {
		res, err := p.Do(req)
		if err != nil {
			answer <- err.Error()
			return
		}
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			body = []byte(err.Error())
		}
		answer <- string(body)
	}()
	return answer
}

func (p *person) echoed(t testing.TB, path string, header ...string) seen {
	t.Helper()
	res, body := p.get(t, path, header...)
	require.Equal(t, http.StatusOK, res.StatusCode, body)
	var s seen
	require.NoError(t, json.Unmarshal([]byte(body), &s), body)
	return s
}

var noOptions client.InformerOptions[*tenancyv1alpha1.Workspace]

func inline(t testing.TB, file string) string {
	t.Helper()
	return base64.StdEncoding.EncodeToString(mustRead(t, file))
}

func mustRead(t testing.TB, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	return content
}

func dialTLS(ctx context.Context, network, addr string, config *tls.Config) (net.Conn, error) {
	config = config.Clone()
	config.ServerName = "127.0.0.1"
	dialer := tls.Dialer{Config: config}
	return dialer.DialContext(ctx, network, addr)
}

// complete reports whether all shards have been read, so that the index is complete.
func (s *shards) complete() bool {
	unread, _ := s.unread()
	return len(unread) == 0
}

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t testing.TB, dir, name string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	file := filepath.Join(dir, name+".crt")
	require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	return &authority{cert: cert, key: key, file: file}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// issue creates a certificate for serving on 127.0.0.1 and for clients.
func (a *authority) issue(t testing.TB, dir, name string, groups ...string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name, Organization: groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600))
	return certFile, keyFile
}

func (a *authority) pair(t testing.TB, name string, groups ...string) tls.Certificate {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(a.issue(t, t.TempDir(), name, groups...))
	require.NoError(t, err)
	return cert
}
