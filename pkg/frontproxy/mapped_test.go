package frontproxy

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/request"
)

// addMapped starts a server that is no shard.
func (w *world) addMapped(t testing.TB, name string) *fakeShard {
	t.Helper()
	s := &fakeShard{name: name, world: w}
	echo := http.HandlerFunc(s.echo)
	s.handler.Store(&echo)
	s.start(t)
	t.Cleanup(func() {
		s.http.CloseClientConnections()
		s.http.Close()
	})
	return s
}

// mapping adds an entry for a server to the mapping file.
func (w *world) mapping(t testing.TB, path string, s *fakeShard, more ...string) {
	t.Helper()
	w.options.MappingFile = filepath.Join(w.dir, "mappings.yaml")
	file, err := os.OpenFile(w.options.MappingFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	cert, key := w.proxyCA.issue(t, w.dir, "at-"+s.name)
	_, err = fmt.Fprintf(file, "- {path: '%s', backend: 'https://%s', backend_server_ca: %s, proxy_client_cert: %s, proxy_client_key: %s%s}\n",
		path, s.addr, w.servingCA.file, cert, key, strings.Join(more, ""))
	require.NoError(t, err)
	require.NoError(t, file.Close())
}

// TestMappedServers holds that the servers of a mapping file get what is for them, as it
// was sent, and whose it is, in the headers that they know.
func TestMappedServers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	w.options.Authentication.DropGroups = []string{"secret-group"}
	plain, named := w.addMapped(t, "plain"), w.addMapped(t, "named")
	w.mapping(t, "/services/plain", plain)
	w.mapping(t, "/services/{kind}/of/{cluster}", named, ", user_header: X-Who, group_header: x-teams, extra_header_prefix: X-More-")
	w.cluster(t, "root", "aaaa")
	w.workspace(t, "root", "root", "a", "aaaa")
	w.cluster(t, "root", "dddd")
	w.workspace(t, "root", "root", "down", "dddd", func(ws *tenancyv1alpha1.Workspace) { ws.Status.Phase = corev1alpha1.LogicalClusterPhaseUnavailable })
	w.shards["root"].handle(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set(request.AccessAuthorizedHeader, "true")
		w.shards["root"].echo(rw, r)
	})
	w.ready(t)
	w.knows(t, "root:a", "root")
	w.knows(t, "root:down", "root")
	jane := w.person(t, "jane", "devs", "secret-group")
	forged := []string{
		"X-Remote-User", "root", "X-Remote-Group", "system:masters", "X_Remote_Extra_Scopes", "all", "X-Who", "root", "X-Teams", "system:masters",
		"x_teams", "system:masters", "X-More-Power", "all", "X-Kcp-Internal-Entered", "true", "Authorization", "Basic eDp5", "X-Other", "kept",
	}

	for _, path := range []string{"/services/plain", "/services/plain/a%2Fb//c?x=1;y", "/services/plain/clusters/*/api", "/services/plain/clusters/root:a/api", "/services/plain/x/clusters/aaaa"} {
		got := jane.echoed(t, path, forged...)
		require.Equal(t, "plain", got.Shard, path)
		require.Equal(t, path, got.URI)
		require.Equal(t, "at-plain", got.Cert)
		require.Equal(t, []string{"jane"}, got.Header["X-Remote-User"])
		require.ElementsMatch(t, []string{"devs", "system:authenticated"}, got.Header["X-Remote-Group"])
		require.Equal(t, []string{"kept"}, got.Header["X-Other"])
		for _, name := range []string{"Authorization", "X-Who", "X-Teams", "X_teams", "X_remote_extra_scopes", "X-More-Power", "X-Kcp-Internal-Entered"} {
			require.NotContains(t, got.Header, name)
		}
	}
	got := jane.echoed(t, "/services/any/of/root:a/x", forged...)
	require.Equal(t, "named", got.Shard)
	require.Equal(t, []string{"jane"}, got.Header["X-Who"])
	require.ElementsMatch(t, []string{"devs", "system:authenticated"}, got.Header["X-Teams"])
	require.NotEmpty(t, got.Header["X-More-Authentication.kubernetes.io%2fcredential-Id"], "%v", got.Header)
	for _, name := range []string{"X-Remote-User", "X-Remote-Group", "X-More-Power"} {
		require.NotContains(t, got.Header, name)
	}
	got = jane.echoed(t, "/clusters/root:a/api", forged...)
	require.Equal(t, "root", got.Shard)
	require.NotContains(t, got.Header, "X-Who", "headers of any entry count for nothing anywhere")
	require.NotContains(t, got.Header, "X-More-Power")

	res, body := jane.do(t, http.MethodPut, "/services/plain/x", strings.NewReader(strings.Repeat("x", 1<<20)))
	require.Equal(t, http.StatusOK, res.StatusCode)
	var sent seen
	require.NoError(t, json.Unmarshal([]byte(body), &sent))
	require.Len(t, sent.Body, 1<<20)
	require.Equal(t, http.MethodPut, sent.Method)

	for path, want := range map[string]int{
		"/services/plain/clusters/root:b/api":                http.StatusForbidden,
		"/services/plain/%63lusters/root:b/api":              http.StatusForbidden,
		"/services/plain/clusters/system:admin/api":          http.StatusForbidden,
		"/services/plain/clusters/root:down/api":             http.StatusServiceUnavailable,
		"/services/any/of/nobody":                            http.StatusForbidden,
		"/services/plain/x/../../../clusters/root:b":         http.StatusBadRequest,
		"/services/plain/x/%2e%2e/y":                         http.StatusBadRequest,
		"/services/plain/x%2Fclusters%2Froot:b/api":          http.StatusBadRequest,
		"/services/apiexport/root:a/e/clusters/*/x":          http.StatusOK,
		"/services/plainer":                                  http.StatusNotFound,
		"/services/any/of":                                   http.StatusNotFound,
		"/services/initializingworkspaces/of/aaaa":           http.StatusBadRequest,
		"/services/plain/clusters/aaaa/clusters/nobody?w=%2": http.StatusOK,
	} {
		res, body := jane.get(t, path)
		require.Equal(t, want, res.StatusCode, "%s: %s", path, body)
	}
	res, body = w.withCerts(t).get(t, "/services/plain/x", forged...)
	status(t, res, body, http.StatusUnauthorized)
}

// TestMappedServersTellNothing holds that errors of a mapped server tell nobody of a logical
// cluster that it may not enter.
func TestMappedServersTellNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	mapped := w.addMapped(t, "mapped")
	w.mapping(t, "/services/x", mapped)
	w.cluster(t, "root", "aaaa")
	w.shards["root"].handle(func(rw http.ResponseWriter, r *http.Request) {
		entered := "false"
		if r.Header.Get("X-Remote-User") == "jane" {
			entered = "true"
		}
		rw.Header().Set(request.AccessAuthorizedHeader, entered)
		rw.WriteHeader(http.StatusForbidden)
	})
	var code int
	mapped.handle(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set(request.AccessAuthorizedHeader, "true")
		rw.WriteHeader(code)
	})
	w.ready(t)
	w.knows(t, "aaaa", "root")
	jane, joe := w.person(t, "jane"), w.person(t, "joe")
	for _, code = range []int{http.StatusForbidden, http.StatusNotFound, http.StatusInternalServerError} {
		began := time.Now()
		res, body := joe.get(t, "/services/x/clusters/aaaa/api")
		require.GreaterOrEqual(t, time.Since(began), w.options.IndexTimeout)
		unknown, unknownBody := joe.get(t, "/services/x/clusters/bbbb/api")
		require.Equal(t, unknown.StatusCode, res.StatusCode)
		require.Equal(t, unknownBody, body)
		res, _ = jane.get(t, "/services/x/clusters/aaaa/api")
		require.Equal(t, code, res.StatusCode)
		require.Empty(t, res.Header.Get(request.AccessAuthorizedHeader))
	}
	code = http.StatusOK
	res, _ := joe.get(t, "/services/x/clusters/aaaa/api")
	require.Equal(t, http.StatusOK, res.StatusCode, "the server decides whom it lets in")
}

// TestMappedServersThatFail holds that a server that is away is told about as a shard is, and
// served again when it is back, with other certificates too.
func TestMappedServersThatFail(t *testing.T) {
	w := newWorld(t, "root")
	mapped := w.addMapped(t, "mapped")
	w.mapping(t, "/x", mapped)
	ca, err := os.ReadFile(w.servingCA.file)
	require.NoError(t, err)
	own := filepath.Join(w.dir, "mapped-ca.crt")
	require.NoError(t, os.WriteFile(own, ca, 0o600))
	file := mustRead(t, w.options.MappingFile)
	require.NoError(t, os.WriteFile(w.options.MappingFile, []byte(strings.Replace(string(file), w.servingCA.file, own, 1)), 0o600))
	w.ready(t)
	jane := w.person(t, "jane")
	jane.echoed(t, "/x")

	mapped.handle(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	res, body := jane.do(t, http.MethodPost, "/x", nil)
	require.Contains(t, status(t, res, body, http.StatusBadGateway).Message, "the connection to the server of this path broke")
	mapped.http.CloseClientConnections()
	mapped.http.Close()
	require.Eventually(t, func() bool { // the end of the connection may be news to the front-proxy
		res, body = jane.get(t, "/x")
		return res.StatusCode != http.StatusBadGateway
	}, timeout, time.Millisecond)
	require.Contains(t, status(t, res, body, http.StatusServiceUnavailable).Message, "the server of this path is not reachable")
	require.Equal(t, "1", res.Header.Get("Retry-After"))

	// Another CA signs what it serves with, and the front-proxy's certificate is renewed.
	servingCA := w.servingCA
	w.servingCA = w.foreigner
	mapped.handle(mapped.echo)
	mapped.start(t)
	w.servingCA = servingCA
	res, body = jane.get(t, "/x") // which nobody verifies
	status(t, res, body, http.StatusServiceUnavailable)
	require.NoError(t, os.WriteFile(own, mustRead(t, w.foreigner.file), 0o600))
	cert, key := w.proxyCA.issue(t, t.TempDir(), "renewed")
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "at-mapped.crt"), mustRead(t, cert), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "at-mapped.key"), mustRead(t, key), 0o600))
	require.Eventually(t, func() bool {
		res, body := jane.get(t, "/x")
		if !strings.Contains(body, `"renewed"`) {
			mapped.http.CloseClientConnections() // else it stays with the certificate that it has shown
			return false
		}
		return res.StatusCode == http.StatusOK
	}, timeout, 20*time.Millisecond)
}

// TestMappedStreams holds that watches and other protocols pass, and end when the front-proxy
// stops.
func TestMappedStreams(t *testing.T) {
	w := newWorld(t, "root")
	mapped := w.addMapped(t, "mapped")
	w.mapping(t, "/x", mapped)
	lines, gone := make(chan string), make(chan string, 1)
	mapped.watches(lines, gone)
	w.ready(t)
	w.knows(t, "root", "root")
	jane := w.person(t, "jane")
	watch := bufio.NewReader(jane.stream(t.Context(), t, "/x/clusters/root/api/v1/namespaces?watch=true").Body)
	lines <- "first"
	line, err := watch.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "first\n", line)

	mapped.handle(echoUpgrade)
	conn, err := dialTLS(t.Context(), "tcp", strings.TrimPrefix(w.proxy.URL(), "https://"), &tls.Config{RootCAs: w.servingCA.pool(), Certificates: []tls.Certificate{w.clientCA.pair(t, "joe")}})
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = fmt.Fprintf(conn, "GET /x/exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	require.NoError(t, err)
	reader := bufio.NewReader(conn)
	res, err := http.ReadResponse(reader, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, res.StatusCode)
	require.NoError(t, res.Body.Close())
	_, err = fmt.Fprintln(conn, "hello")
	require.NoError(t, err)
	line, err = reader.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "hello")

	w.stop()
	_, err = watch.ReadString('\n')
	require.ErrorContains(t, err, "EOF")
	_, err = reader.ReadByte()
	require.Error(t, err)
	<-gone
}

// TestClustersEntry holds that an entry for /clusters/, as kcp's files have one, gives the
// certificates for shards and nothing else.
func TestClustersEntry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	elsewhere := &fakeShard{name: "elsewhere", world: w, addr: (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}).String()}
	w.mapping(t, "/clusters/", elsewhere)
	_, err := New(t.Context(), w.options.Complete())
	require.ErrorContains(t, err, `the entry for /clusters/ gives proxy_client_cert "`+filepath.Join(w.dir, "at-elsewhere.crt")+`", and --proxy-client-cert-file is`)

	w.options.ProxyClientCertFile, w.options.ProxyClientKeyFile, w.options.ShardCAFile = "", "", ""
	w.ready(t)
	w.knows(t, "root", "root")
	got := w.person(t, "jane").echoed(t, "/clusters/root/api")
	require.Equal(t, "root", got.Shard)
	require.Equal(t, "at-elsewhere", got.Cert)
	w.stop()

	require.NoError(t, os.WriteFile(w.options.MappingFile, []byte("[]"), 0o600))
	_, err = New(t.Context(), w.options.Complete())
	require.ErrorContains(t, err, "--proxy-client-cert-file is required")
	require.NoError(t, os.WriteFile(w.options.MappingFile, []byte("- {path: /x, "+certificatesOf+"}"), 0o600))
	_, err = New(t.Context(), w.options.Complete())
	require.ErrorContains(t, err, `mappings.yaml: entry with path "/x": backend_server_ca: `)
}
