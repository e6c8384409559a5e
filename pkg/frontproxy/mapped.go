package frontproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/transport"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/lifecycle"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/serving/answers"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

// mappedServer is a server that the mapping file names, for the paths of one entry.
type mappedServer struct {
	*mappingEntry
	*backend
	ca     *dynamiccertificates.DynamicFileCAContent
	client *dynamiccertificates.DynamicCertKeyPairContent
}

// openMappings reads the mapping file, and the certificates that it names. It returns o with
// the certificates for shards that the file gives.
func (s *Server) openMappings(ctx context.Context, o CompletedOptions) (CompletedOptions, error) {
	if o.MappingFile == "" {
		return o, nil
	}
	entries, clusters, err := readMappings(o.MappingFile)
	if err == nil && clusters != nil {
		err = o.take(clusters)
		klog.FromContext(ctx).Info("The mapping file's entry for /clusters/ gives certificates only: requests go to the shards that are registered", "backend", clusters.backend)
	}
	if err != nil {
		return o, fmt.Errorf("reading --mapping-file %s: %w", o.MappingFile, err)
	}
	for _, e := range entries {
		server, err := newMappedServer(e)
		if err != nil {
			return o, fmt.Errorf("reading --mapping-file %s: entry with path %q: %w", o.MappingFile, e.path, err)
		}
		s.mapped = append(s.mapped, server)
		s.identity.names = append(s.identity.names, e.userHeader, e.groupHeader)
		s.identity.prefixes = append(s.identity.prefixes, e.extraPrefix)
	}
	read := o
	read.MappingFile = ""
	return o, errors.Join(read.validateFiles()...)
}

// take fills in the certificates for shards that the entry for /clusters/ names.
func (o *CompletedOptions) take(clusters *mappingEntry) error {
	for _, give := range []struct {
		field, flag, value string
		to                 *string
	}{
		{"backend_server_ca", "shard-ca-file", clusters.serverCA, &o.ShardCAFile},
		{"proxy_client_cert", "proxy-client-cert-file", clusters.clientCert, &o.ProxyClientCertFile},
		{"proxy_client_key", "proxy-client-key-file", clusters.clientKey, &o.ProxyClientKeyFile},
	} {
		if *give.to != "" && !samePath(*give.to, give.value) {
			return fmt.Errorf("the entry for /clusters/ gives %s %q, and --%s is %q: leave one of the two out", give.field, give.value, give.flag, *give.to)
		}
		*give.to = give.value
	}
	return nil
}

// samePath reports whether two names are of the same file, as they are written.
func samePath(a, b string) bool {
	a, errA := filepath.Abs(a)
	b, errB := filepath.Abs(b)
	return errA == nil && errB == nil && a == b
}

func newMappedServer(e *mappingEntry) (*mappedServer, error) {
	ca, err := dynamiccertificates.NewDynamicCAContentFromFile("mapping "+e.path, e.serverCA)
	if err != nil {
		return nil, fmt.Errorf("backend_server_ca: %w", err)
	}
	client, err := dynamiccertificates.NewDynamicServingContentFromFiles("mapping "+e.path, e.clientCert, e.clientKey)
	if err != nil {
		return nil, fmt.Errorf("proxy_client_cert and proxy_client_key: %w", err)
	}
	to := newBackend(&peers.Peer{Name: e.path, URL: e.backend}, &tls.Config{MinVersion: tls.VersionTLS12, GetClientCertificate: clientCertificate(client)})
	dialWith(to.multiplexed, few(connect(newDialer())), ca, "h2", "http/1.1")
	dialWith(to.upgrades, connect(newDialer()), ca, "http/1.1")
	return &mappedServer{mappingEntry: e, backend: to, ca: ca, client: client}, nil
}

// dialWith has t verify servers by the CAs as they are when it connects.
func dialWith(t *http.Transport, dial connector, ca dynamiccertificates.CAContentProvider, protocols ...string) {
	t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		config := t.TLSClientConfig.Clone()
		config.NextProtos = protocols
		verify, ok := ca.VerifyOptions()
		if !ok {
			return nil, errors.New("there is no CA to verify the server by")
		}
		config.RootCAs = verify.Roots
		return dial(ctx, network, addr, config)
	}
}

// part keeps the certificates true to their files, and closes connections in the end.
func (m *mappedServer) part() lifecycle.Part {
	return lifecycle.Part{Name: "certificates for " + m.path, Run: func(ctx context.Context) error {
		defer m.retire()
		done := make(chan struct{})
		go func() {
			defer close(done)
			m.ca.Run(ctx, 1)
		}()
		m.client.Run(ctx, 1)
		<-done
		return nil
	}}
}

// identify says in a request who it is from, in the headers that the server knows.
func (m *mappedServer) identify(header http.Header, who user.Info, groups []string) {
	header.Del("Authorization")
	said := http.Request{Header: http.Header{}}
	transport.SetAuthProxyHeaders(&said, who.GetName(), who.GetUID(), groups, who.GetExtra())
	for name, values := range said.Header {
		switch key, extra := strings.CutPrefix(name, authn.HeaderExtraPrefix); {
		case extra:
			name = http.CanonicalHeaderKey(m.extraPrefix + key)
		case name == authn.HeaderUser:
			name = m.userHeader
		case name == authn.HeaderGroup:
			name = m.groupHeader
		}
		header[name] = values
	}
}

// mappedTo returns the server that the mapping file names for an escaped path. A prefix of
// the front-proxy's own, which may be empty, gives way to entries that begin with it.
func (s *Server) mappedTo(path, own string) *mappedServer {
	if len(s.mapped) == 0 {
		return nil
	}
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	at := slices.IndexFunc(s.mapped, func(m *mappedServer) bool { return m.fits(segments) })
	if at < 0 {
		return nil
	}
	m := s.mapped[at]
	if own = strings.Trim(own, "/"); own != "" {
		length := strings.Count(own, "/") + 1
		if m.length() < length || strings.Join(m.segments[:length], "/") != own {
			return nil
		}
	}
	return m
}

// clusterIn returns the segment of an escaped path that names a logical cluster to m, and
// what follows; no segment where none does. The path is malformed where a server that
// unescapes it as a whole may find another one.
func (m *mappedServer) clusterIn(path string) (segment, rest string, malformed bool) {
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	last := slices.Index(m.segments, clusterPlaceholder)
	for at, escaped := range segments {
		text, err := url.PathUnescape(escaped)
		switch {
		case err != nil, text == ".", text == "..", strings.Contains(text, "/") && slices.Contains(strings.Split(text, "/"), clustersSegment):
			return "", path, true
		case at == last, last < 0 && text == clustersSegment && at+1 < len(segments):
			if last < 0 {
				at++
			}
			return segments[at], strings.TrimPrefix(path, "/"+strings.Join(segments[:at+1], "/")), false
		}
	}
	return "", path, false
}

// serveMapped forwards a request to a server of the mapping file, if the logical cluster
// that its path names, if any, exists.
func (s *Server) serveMapped(w http.ResponseWriter, r *http.Request, m *mappedServer) {
	to, ok := s.newRoute(w, r)
	if !ok {
		return
	}
	segment, rest, malformed := m.clusterIn(r.URL.EscapedPath())
	if malformed {
		writeStatus(w, apierrors.NewBadRequest("the path may lead elsewhere than it seems to: it has segments of dots, or escaped slashes around \"clusters\""))
		return
	}
	to.mapped, to.backend, to.token, to.rest, to.whole = m, m.backend, "", rest, true
	defer func() { to.release() }()
	if segment != "" && segment != request.Wildcard && !s.exists(w, r, to, segment) {
		return
	}
	if rec := recordFrom(r.Context()); rec != nil {
		rec.shard, rec.cluster, rec.auditID = m.Name, to.cluster, identified(r)
		// The server knows how long its answers take.
		rec.ResponseWriter = answers.Stream(rec.ResponseWriter, r)
	}
	s.forwarder.forward(w, r, to)
}

// exists reports whether there is the logical cluster that a segment names, or answers.
func (s *Server) exists(w http.ResponseWriter, r *http.Request, to *route, segment string) bool {
	path, ok := clusterPath(segment)
	if !ok {
		writeStatus(w, forbidden(r, unescapedRest(to.rest)))
		return false
	}
	at := address{path: path, valid: true, rest: to.rest}
	if !s.place(w, to, at) {
		return false
	}
	target, outcome := s.forwarder.resolver.resolve(r.Context(), path, to.arrived, to.user)
	to.cluster, to.holder, to.visitor = target.Cluster.String(), s.shards.backend(target.Shard), visitorOf(to.user, target.Cluster, "")
	to.isNew = isNew(target)
	switch {
	case outcome == workspaceindex.Mounted || outcome == workspaceindex.Unmounted:
		s.forwarder.refuse(w, r, to) // it is no logical cluster
		return false
	case !known(outcome):
		s.unknown(w, r, to, target, outcome)
		return false
	case outcome == workspaceindex.Unavailable || to.holder == nil:
		s.unavailable(w, r, to, "the workspace is unavailable")
		return false
	default:
		return true
	}
}

// concealsMapped reports whether an error of a server of the mapping file must not reach
// the client, because it would tell a user who may not enter the logical cluster that it
// exists. Whom the server lets in, it has told that itself.
func (f *forwarder) concealsMapped(ctx context.Context, res *http.Response, to *route) bool {
	takeMark(res.Header)
	conceal := res.StatusCode >= http.StatusBadRequest && f.notEntered(ctx, to)
	to.release()
	return conceal
}
