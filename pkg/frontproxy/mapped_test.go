package frontproxy

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/pkg/request"
)

// addMapped starts a server that is not a shard.
func (w *world) addMapped(t testing.TB, name string) *fakeShard {
	t.Helper()
	s := &fakeShard{name: name, world: w}
	s.handle(s.echo)
	s.start(t)
	t.Cleanup(func() {
		s.http.CloseClientConnections()
		s.http.Close()
	})
	return s
}

func (w *world) mapping(t testing.TB, path string, s *fakeShard, more ...string) {
	t.Helper()
	w.options.MappingFile = filepath.Join(w.dir, "mappings.yaml")
	file, err := os.OpenFile(w.options.MappingFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	cert, key := w.proxyCA.issue(t, w.dir, "at-"+s.name)
	_, err = fmt.Fprintf(file, "- {path: '%s', backend: '%s', backend_server_ca: %s, proxy_client_cert: %s, proxy_client_key: %s%s}\n",
		path, s.url(), w.servingCA.file, cert, key, strings.Join(more, ""))
	require.NoError(t, err)
	require.NoError(t, file.Close())
}

// TestMappedServers checks that servers of a mapping file receive unchanged requests with the
// identity of the user in their own headers.
func TestMappedServers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	w.options.Authentication.DropGroups = []string{"secret-group"}
	plain, named := w.addMapped(t, "plain"), w.addMapped(t, "named")
	w.mapping(t, "/services/plain", plain)
	w.mapping(t, "/services/{kind}/of/{cluster}", named, ", user_header: X-Who, group_header: x-teams, extra_header_prefix: X-More-")
	w.child(t, "root", "a", "aaaa")
	w.child(t, "root", "down", "dddd", markUnavailable)
	w.shards["root"].admits()
	w.ready(t, "root:a", "root", "root:down", "root")
	jane := w.person(t, "jane", "devs", "secret-group")
	forged := []string{
		"X-Remote-User", "root", "X-Remote-Group", "system:masters", "X_Remote_Extra_Scopes", "all", "X-Who", "root", "X-Teams", "system:masters",
		"x_teams", "system:masters", "X-More-Power", "all", "X-Kcp-Internal-Access-Authorized", "true", "Authorization", "Basic eDp5", "X-Other", "kept",
	}

	for _, path := range []string{"/services/plain", "/services/plain/a%2Fb//c?x=1;y", "/services/plain/clusters/*/api", "/services/plain/clusters/root:a/api", "/services/plain/x/clusters/aaaa"} {
		got := jane.echoed(t, path, forged...)
		require.Equal(t, []string{"plain", path, "at-plain"}, []string{got.Shard, got.URI, got.Cert})
		require.ElementsMatch(t, []string{"devs", "system:authenticated"}, got.Header["X-Remote-Group"])
		requireHeaders(t, got.Header, "X-Remote-User", "jane", "X-Other", "kept", "Authorization", "", "X-Who", "",
			"X-Teams", "", "X_teams", "", "X_remote_extra_scopes", "", "X-More-Power", "", "X-Kcp-Internal-Access-Authorized", "")
	}
	got := jane.echoed(t, "/services/any/of/root:a/x", forged...)
	require.Equal(t, "named", got.Shard)
	requireHeaders(t, got.Header, "X-Who", "jane", "X-Remote-User", "", "X-Remote-Group", "", "X-More-Power", "")
	require.ElementsMatch(t, []string{"devs", "system:authenticated"}, got.Header["X-Teams"])
	require.NotEmpty(t, got.Header["X-More-Authentication.kubernetes.io%2fcredential-Id"], "%v", got.Header)
	got = jane.echoed(t, "/clusters/root:a/api", forged...)
	require.Equal(t, "root", got.Shard)
	requireHeaders(t, got.Header, "X-Who", "", "X-More-Power", "") // the headers of an entry are removed from all requests

	res, body := jane.do(t, http.MethodPut, "/services/plain/x", strings.NewReader(strings.Repeat("x", 1<<20)))
	require.Equal(t, http.StatusOK, res.StatusCode)
	var sent seen
	require.NoError(t, json.Unmarshal([]byte(body), &sent))
	require.Len(t, sent.Body, 1<<20)
	require.Equal(t, http.MethodPut, sent.Method)

	for path, want := range map[string]int{
		"/services/plain/clusters/root:b/api":                 http.StatusForbidden,
		"/services/plain/%63lusters/root:b/api":               http.StatusForbidden,
		"/services/plain/clusters/system:admin/api":           http.StatusForbidden,
		"/services/plain/clusters/root:down/api":              http.StatusServiceUnavailable,
		"/services/any/of/unknown":                            http.StatusForbidden,
		"/services/plain/x/../../../clusters/root:b":          http.StatusBadRequest,
		"/services/plain/x/%2e%2e/y":                          http.StatusBadRequest,
		"/services/plain/x%2Fclusters%2Froot:b/api":           http.StatusBadRequest,
		"/services/apiexport/root:a/e/clusters/*/x":           http.StatusOK,
		"/services/plainer":                                   http.StatusNotFound,
		"/services/any/of":                                    http.StatusNotFound,
		"/services/initializingworkspaces/of/aaaa":            http.StatusBadRequest,
		"/services/plain/clusters/aaaa/clusters/unknown?w=%2": http.StatusOK,
	} {
		jane.want(t, path, want)
	}
	w.withCerts(t).fails(t, "/services/plain/x", http.StatusUnauthorized, forged...)
}

// TestMappedServersNonDisclosure checks that errors of a mapped server do not disclose a logical
// cluster to users without access.
func TestMappedServersNonDisclosure(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	mapped := w.addMapped(t, "mapped")
	w.mapping(t, "/services/x", mapped)
	w.cluster(t, "root", "aaaa")
	w.shards["root"].admits("jane")
	var code int
	mapped.handle(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set(request.AccessAuthorizedHeader, "true")
		rw.WriteHeader(code)
	})
	w.ready(t, "aaaa", "root")
	jane, joe := w.person(t, "jane"), w.person(t, "joe")
	for _, code = range []int{http.StatusForbidden, http.StatusNotFound, http.StatusInternalServerError} {
		began := time.Now()
		res, body := joe.get(t, "/services/x/clusters/aaaa/api")
		require.GreaterOrEqual(t, time.Since(began), w.options.IndexTimeout)
		unknown, unknownBody := joe.get(t, "/services/x/clusters/bbbb/api")
		require.Equal(t, unknown.StatusCode, res.StatusCode)
		require.Equal(t, unknownBody, body)
		res, _ = jane.want(t, "/services/x/clusters/aaaa/api", code)
		require.Empty(t, res.Header.Get(request.AccessAuthorizedHeader))
	}
	code = http.StatusOK
	res, _ := joe.get(t, "/services/x/clusters/aaaa/api")
	require.Equal(t, http.StatusOK, res.StatusCode, "a mapped server authorizes users itself")
}

// TestFailingMappedServers checks that an unreachable server is handled like a shard, and that it
// is served again when it returns, even with other certificates.
func TestFailingMappedServers(t *testing.T) {
	w := newWorld(t, "root")
	mapped := w.addMapped(t, "mapped")
	w.mapping(t, "/x", mapped)
	own := filepath.Join(w.dir, "mapped-ca.crt")
	file := string(mustRead(t, w.options.MappingFile))
	write(t, own, w.servingCA.CertPEM)
	write(t, w.options.MappingFile, []byte(strings.Replace(file, w.servingCA.file, own, 1)))
	w.ready(t)
	jane := w.person(t, "jane")
	jane.echoed(t, "/x")

	mapped.handle(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	res, body := jane.do(t, http.MethodPost, "/x", nil)
	require.Contains(t, status(t, res, body, http.StatusBadGateway).Message, "the connection to the server of this path failed")
	mapped.http.CloseClientConnections()
	mapped.http.Close()
	require.Eventually(t, func() bool { // the front-proxy may not have noticed the closed connection
		res, body = jane.get(t, "/x")
		return res.StatusCode != http.StatusBadGateway
	}, timeout, time.Millisecond)
	require.Contains(t, status(t, res, body, http.StatusServiceUnavailable).Message, "the server of this path is not reachable")
	require.Equal(t, "1", res.Header.Get("Retry-After"))

	// The CA of the server and the certificate of the front-proxy change.
	servingCA := w.servingCA
	w.servingCA = w.foreigner
	mapped.handle(mapped.echo)
	mapped.start(t)
	w.servingCA = servingCA
	jane.fails(t, "/x", http.StatusServiceUnavailable) // the server does not verify the CA of the mapping
	write(t, own, w.foreigner.CertPEM)
	w.proxyCA.make(t, w.dir, "at-mapped", pki.Client("renewed"))
	require.Eventually(t, func() bool {
		res, body := jane.get(t, "/x")
		if !strings.Contains(body, `"renewed"`) {
			mapped.http.CloseClientConnections() // otherwise the connection keeps the old certificate
			return false
		}
		return res.StatusCode == http.StatusOK
	}, timeout, 20*time.Millisecond)
}

// TestMappedStreams checks that watches and other protocols are forwarded, and end with the front-proxy.
func TestMappedStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	mapped := w.addMapped(t, "mapped")
	w.mapping(t, "/x", mapped)
	lines, ended := make(chan string), make(chan string, 1)
	mapped.watches(lines, ended)
	w.ready(t, "root", "root")
	jane := w.person(t, "jane")
	watch := bufio.NewReader(jane.stream(t.Context(), t, "/x/clusters/root/api/v1/namespaces?watch=true").Body)
	lines <- "first"
	requireLine(t, watch, "first")

	mapped.handle(echoUpgrade)
	upgraded := w.upgrade(t, "/x/exec", w.clientCA.pair(t, "joe"))

	w.stop()
	_, err := watch.ReadString('\n')
	require.ErrorContains(t, err, "EOF")
	_, err = upgraded.ReadByte()
	require.Error(t, err)
	<-ended
}

// TestClustersEntry checks that an entry for /clusters/, as in kcp's files, only specifies certificates for shards.
func TestClustersEntry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "root")
	elsewhere := &fakeShard{name: "elsewhere", world: w, addr: (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}).String()}
	w.mapping(t, "/clusters/", elsewhere)
	_, err := NewFrontProxy(t.Context(), w.options.Complete())
	require.ErrorContains(t, err, `the entry for /clusters/ specifies proxy_client_cert "`+filepath.Join(w.dir, "at-elsewhere.crt")+`", but --proxy-client-cert-file is`)

	w.options.ProxyClientCertFile, w.options.ProxyClientKeyFile, w.options.ShardCAFile = "", "", ""
	w.ready(t, "root", "root")
	got := w.person(t, "jane").echoed(t, "/clusters/root/api")
	require.Equal(t, []string{"root", "at-elsewhere"}, []string{got.Shard, got.Cert})
	w.stop()

	write(t, w.options.MappingFile, []byte("[]"))
	_, err = NewFrontProxy(t.Context(), w.options.Complete())
	require.ErrorContains(t, err, "--proxy-client-cert-file is required")
	write(t, w.options.MappingFile, []byte("- {path: /x, "+certificatesOf+"}"))
	_, err = NewFrontProxy(t.Context(), w.options.Complete())
	require.ErrorContains(t, err, `mappings.yaml: entry with path "/x": backend_server_ca: `)
}

// certificatesOf are the required fields of an entry.
const certificatesOf = "backend: https://127.0.0.1:1, backend_server_ca: ca, proxy_client_cert: crt, proxy_client_key: key"

func readText(t *testing.T, text string) ([]*mappingEntry, *mappingEntry, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mappings.yaml")
	write(t, file, []byte(text))
	return readMappings(file)
}

// TestMappingFileOrder checks that the most specific entry is used.
func TestMappingFileOrder(t *testing.T) {
	text := "# servers\n---\n"
	for _, path := range []string{"/", "/services", "/services/{x}/clusters/{cluster}", "/services/a", "/services/a/{y}", "/services/a/b/", "/clusters/", "/clusters-of-mine"} {
		text += "- {path: '" + path + "', " + certificatesOf + "}\n"
	}
	entries, clusters, err := readText(t, text)
	require.NoError(t, err)
	require.Equal(t, "/clusters/", clusters.path)
	require.Equal(t, "X-Remote-User X-Remote-Group X-Remote-Extra-", clusters.userHeader+" "+clusters.groupHeader+" "+clusters.extraPrefix)
	var mapped mappedServers
	for _, e := range entries {
		mapped = append(mapped, &mappedServer{mappingEntry: e})
	}
	for _, try := range []struct{ path, own, want string }{
		{"/", "", "/"},
		{"/x", "", "/"},
		{"/services", "", "/services"},
		{"/services/", "", "/services"},
		{"/servicesx", "", "/"},
		{"/services/a", "", "/services/a"},
		{"/services/ab", "", "/services"},
		{"/services/a/b", "", "/services/a/b/"},
		{"/services/a/b/c", "", "/services/a/b/"},
		{"/services/a/c", "", "/services/a/{y}"},
		{"/services/a/", "", "/services/a"},
		{"/services/b/clusters/root", "", "/services/{x}/clusters/{cluster}"},
		{"/services/b/clusters/root/api", "", "/services/{x}/clusters/{cluster}"},
		{"/services/b/clusters", "", "/services"},
		{"/services/a", "/services/a/", "/services/a"},
		{"/services/b", "/services/b/", ""},
		{"/clusters/root/api", "/clusters/", ""},
		{"/metrics", "/metrics", ""},
		{"/clusters-of-mine/x", "", "/clusters-of-mine"},
	} {
		got := ""
		if m := mapped.of(try.path, try.own); m != nil {
			got = m.path
		}
		require.Equal(t, try.want, got, "%s beside %q", try.path, try.own)
	}
}

func TestMappingFileErrors(t *testing.T) {
	for name, try := range map[string]struct{ text, want string }{
		"empty file":               {"# none\n", "the file is empty"},
		"invalid YAML":             {"- {", "yaml"},
		"not a list":               {"path: /x", "not a YAML list"},
		"two documents":            {"[]\n---\n[]\n", "more than one YAML document"},
		"duplicate key":            {"- {path: /x, path: /y}", "already set"},
		"not a mapping":            {"- /x", "entry 1 (path \"\"): not a mapping with fields"},
		"unknown field":            {"- {path: /x, " + certificatesOf + ", user-header: X}", `entry 1 (path "/x"): unknown field "user-header", the fields are backend, backend_server_ca, extra_header_prefix`},
		"upper case":               {"- {path: /x, " + certificatesOf + ", Path: /y}", `unknown field "Path"`},
		"wrong type":               {"- {path: /x, " + certificatesOf + ", user_header: 5}", "user_header: must be a string"},
		"no path":                  {"- {" + certificatesOf + "}", "path: must start with a slash"},
		"relative":                 {"- {path: x, " + certificatesOf + "}", "path: must start with a slash"},
		"escaped":                  {"- {path: /%78, " + certificatesOf + "}", "path: must start with a slash, without escapes"},
		"dots":                     {"- {path: /x/.., " + certificatesOf + "}", "path: contains an empty segment or dots"},
		"empty segment":            {"- {path: /x//y, " + certificatesOf + "}", "path: contains an empty segment"},
		"leading placeholder":      {"- {path: '/{x}/y', " + certificatesOf + "}", "path: {x}: a placeholder such as {name} needs a name, and cannot be the first segment"},
		"placeholder without name": {"- {path: '/x/{}', " + certificatesOf + "}", "path: {}: a placeholder"},
		"partial segment":          {"- {path: '/x/a{y}', " + certificatesOf + "}", "path: a{y}: a placeholder must be an entire segment"},
		"two clusters":             {"- {path: '/x/{cluster}/{cluster}', " + certificatesOf + "}", "path: contains {cluster} twice"},
		"path of shards":           {"- {path: '/clusters/{cluster}/api', " + certificatesOf + "}", "path: paths below /clusters/ belong to the shards"},
		"path of the front-proxy":  {"- {path: /metrics, " + certificatesOf + "}", "path: the front-proxy serves /metrics itself"},
		"duplicate path":           {"- {path: '/x/{y}', " + certificatesOf + "}\n- {path: '/x/{z}/', " + certificatesOf + "}", `entry 2 (path "/x/{z}/"): path: entry 1 is for the same paths`},
		"http":                     {"- {path: /x, backend: 'http://x', backend_server_ca: ca, proxy_client_cert: crt, proxy_client_key: key}", `backend: "http://x" is not an https URL such as https://host:port`},
		"certificates":             {"- {path: /x, backend: 'https://x'}", "entry 1 (path \"/x\"): proxy_client_cert is required"},
		"invalid header":           {"- {path: /x, " + certificatesOf + ", user_header: 'a b'}", `user_header: "a b" is not a valid header name`},
		"header of clients":        {"- {path: /x, " + certificatesOf + ", group_header: content-type}", `group_header: "Content-Type" covers "Content-", which clients use`},
		"broad prefix":             {"- {path: /x, " + certificatesOf + ", extra_header_prefix: X-}", `extra_header_prefix: "X-" covers "X-Forwarded-"`},
		"header of the user":       {"- {path: /x, " + certificatesOf + ", group_header: x-remote-user}", `group_header: "X-Remote-User" is the header of the user`},
		"overlapping prefix":       {"- {path: /x, " + certificatesOf + ", extra_header_prefix: X-Remote-}", "extra_header_prefix: the headers of the user, the groups or the UID must not begin with"},
		"default headers":          {"- {path: /clusters/, " + certificatesOf + ", user_header: X-User}", "shards support only the default headers"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := readText(t, try.text)
			require.ErrorContains(t, err, try.want)
		})
	}
}
