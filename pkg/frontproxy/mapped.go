package frontproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
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
)

// mappedServer is a server that the mapping file names, for the paths of one entry.
type mappedServer struct {
	*mappingEntry
	*backend
	ca     *dynamiccertificates.DynamicFileCAContent
	client *dynamiccertificates.DynamicCertKeyPairContent
}

// mappedServers are the servers of the mapping file, those of longer paths first.
type mappedServers []*mappedServer

// openMappings reads the mapping file, and the certificates that it names. It returns o with
// the certificates for shards that the file gives.
func openMappings(ctx context.Context, o CompletedOptions) (mapped mappedServers, _ CompletedOptions, err error) {
	if o.MappingFile == "" {
		return nil, o, nil
	}
	entries, clusters, err := readMappings(o.MappingFile)
	if err == nil && clusters != nil {
		err = o.take(clusters)
		klog.FromContext(ctx).Info("The mapping file's entry for /clusters/ gives certificates only: requests go to the shards that are registered", "backend", clusters.backend)
	}
	if err != nil {
		return nil, o, fmt.Errorf("reading --mapping-file %s: %w", o.MappingFile, err)
	}
	for _, e := range entries {
		server, err := newMappedServer(e)
		if err != nil {
			return nil, o, fmt.Errorf("reading --mapping-file %s: entry with path %q: %w", o.MappingFile, e.path, err)
		}
		mapped = append(mapped, server)
	}
	read := o
	read.MappingFile = ""
	return mapped, o, errors.Join(read.validateFiles()...)
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

// headers returns the headers by which shards and all of these servers are told who somebody is.
func (all mappedServers) headers() identityHeaders {
	headers := identityHeaders{prefixes: slices.Clone(ownIdentity.prefixes)}
	for _, m := range all {
		headers.names = append(headers.names, m.userHeader, m.groupHeader)
		headers.prefixes = append(headers.prefixes, m.extraPrefix)
	}
	return headers
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

// say says in a request who it is from, in the headers that the server knows.
func (m *mappedServer) say(header http.Header, who user.Info, groups []string) {
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

// of returns the server that the mapping file names for an escaped path. A prefix of
// the front-proxy's own, which may be empty, gives way to entries that begin with it.
func (all mappedServers) of(path, own string) *mappedServer {
	if len(all) == 0 {
		return nil
	}
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	at := slices.IndexFunc(all, func(m *mappedServer) bool { return m.fits(segments) })
	if at < 0 {
		return nil
	}
	m := all[at]
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

// mappedTarget is a server of the mapping file, as the target of a call.
type mappedTarget struct {
	*mappedServer
	visit *visit
}

func (t *mappedTarget) way() *backend { return t.backend }

// path is the one that the client wrote.
func (t *mappedTarget) path(escaped string) string { return escaped }

func (t *mappedTarget) identify(p *httputil.ProxyRequest) {
	p.SetXForwarded()
	t.say(p.Out.Header, t.visit.user, t.visit.groups.Filter(t.visit.user.GetGroups()))
}

// accept conceals errors that would tell a user who may not enter the logical cluster that it
// exists. Whom the server lets in, it has told that itself.
func (t *mappedTarget) accept(r *http.Request, res *http.Response) *apierrors.StatusError {
	takeMark(res.Header)
	conceal := res.StatusCode >= http.StatusBadRequest && t.visit.notEntered(r.Context())
	t.visit.release()
	if conceal {
		return t.visit.revoked(r)
	}
	return nil
}

func (t *mappedTarget) lost(r *http.Request, err error) *apierrors.StatusError {
	return t.visit.lost(r, err)
}

func (t *mappedTarget) String() string { return "the server of this path" }
