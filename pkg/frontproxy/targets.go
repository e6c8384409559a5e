package frontproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/authn"
	"github.com/shardplane/shardplane/pkg/lifecycle"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

type mappedServer struct {
	*mappingEntry
	*backend
	ca     *dynamiccertificates.DynamicFileCAContent
	client *dynamiccertificates.DynamicCertKeyPairContent
}

// mappedServers are sorted by specificity of their paths.
type mappedServers []*mappedServer

// openMappings reads the mapping file and its certificates. It returns o with the certificates for shards in the file.
func openMappings(ctx context.Context, o CompletedOptions) (mapped mappedServers, _ CompletedOptions, err error) {
	if o.MappingFile == "" {
		return nil, o, nil
	}
	entries, clusters, err := readMappings(o.MappingFile)
	if err == nil && clusters != nil {
		err = o.take(clusters)
		klog.FromContext(ctx).Info("Ignoring the backend of the mapping file entry for /clusters/, requests are forwarded to the registered shards", "backend", clusters.backend)
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
	dialWith(to.multiplexed, limitDials(connect(newDialer())), ca, "h2", "http/1.1")
	dialWith(to.upgrades, connect(newDialer()), ca, "http/1.1")
	return &mappedServer{mappingEntry: e, backend: to, ca: ca, client: client}, nil
}

func (all mappedServers) headers() identityHeaders {
	headers := identityHeaders{prefixes: slices.Clone(ownIdentity.prefixes)}
	for _, m := range all {
		headers.names = append(headers.names, m.userHeader, m.groupHeader)
		headers.prefixes = append(headers.prefixes, m.extraPrefix)
	}
	return headers
}

// reloads is a part that reloads certificates, which may be nil, when their files change, and finally closes connections.
func reloads(name string, ca *dynamiccertificates.DynamicFileCAContent, client *dynamiccertificates.DynamicCertKeyPairContent, to ...*backend) lifecycle.Part {
	return lifecycle.Part{Name: name, Run: func(ctx context.Context) error {
		var running sync.WaitGroup
		if client != nil {
			running.Go(func() { client.Run(ctx, 1) })
		}
		if ca != nil {
			running.Go(func() { ca.Run(ctx, 1) })
		}
		<-ctx.Done()
		running.Wait()
		for _, b := range to {
			b.retire()
		}
		return nil
	}}
}

// of returns the server for an escaped path, or nil. A prefix of the front-proxy itself, which may
// be empty, takes precedence unless an entry starts with it.
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
		if len(m.segments) < length || strings.Join(m.segments[:length], "/") != own {
			return nil
		}
	}
	return m
}

// clusterIn returns the segment of an escaped path that contains the logical cluster, if any, and the remaining
// path. The path is malformed if a server could interpret it differently after unescaping.
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

type mappedTarget struct {
	*mappedServer
	*accessRequest
}

func (t *mappedTarget) path(escaped string) string { return escaped }

// identify sets the identity of the user in the headers that the server expects.
func (t *mappedTarget) identify(p *httputil.ProxyRequest) {
	p.SetXForwarded()
	header := http.Header{}
	t.accessRequest.call.identify(header, t.accessRequest.groups)
	p.Out.Header.Del("Authorization")
	for name, values := range header {
		switch key, extra := strings.CutPrefix(name, authn.HeaderExtraPrefix); {
		case extra:
			name = http.CanonicalHeaderKey(t.extraPrefix + key)
		case name == authn.HeaderUser:
			name = t.userHeader
		case name == authn.HeaderGroup:
			name = t.groupHeader
		}
		p.Out.Header[name] = values
	}
}

// accept hides errors that would disclose the logical cluster. The server is responsible for other responses.
func (t *mappedTarget) accept(r *http.Request, res *http.Response) *apierrors.StatusError {
	defer t.accessRequest.release()
	takeAccessHeader(res.Header)
	if res.StatusCode < http.StatusBadRequest {
		return nil
	}
	return t.accessRequest.concealUnlessCached(r)
}

func (t *mappedTarget) String() string { return "the server of this path" }

const (
	// mountResponseTimeout and mountHeaderBytes limit the time and the header of a mounted server's response.
	//
	//reference:limit request | mount: time until the server responds | 502
	mountResponseTimeout = time.Minute
	//reference:limit request | mount: response header | 502
	mountHeaderBytes = 256 << 10
	// maxMounted and maxMountedEach limit the requests at mounted servers, in total and by mounts of
	// one logical cluster, which has at least ownMounted.
	//
	//reference:limit server | concurrent requests at mounted servers, at a front-proxy | 429
	maxMounted = 4096
	//reference:limit cluster | concurrent requests at servers that it mounts, at a front-proxy | 429
	maxMountedEach = 512
	ownMounted     = 16
	// mountName represents all mounted servers in metrics and logs.
	mountName = "mount"
)

type mounts struct {
	slots *ledger.Ledger
	// public is for all mounted servers except hosts, which the administrator trusts to receive the user.
	public, trusted *backend
	hosts           []string
	ca              *dynamiccertificates.DynamicFileCAContent
	client          *dynamiccertificates.DynamicCertKeyPairContent
}

func newMounts(o MountOptions) (m *mounts, err error) {
	m = &mounts{slots: ledger.NewLedger(ledger.Bounds{Total: maxMounted, User: maxMountedEach, Own: ownMounted})}
	if o.CAFile != "" {
		if m.ca, err = dynamiccertificates.NewDynamicCAContentFromFile("mount-ca", o.CAFile); err != nil {
			return nil, fmt.Errorf("reading --mount-ca-file: %w", err)
		}
	}
	if o.ClientCertFile != "" {
		if m.client, err = dynamiccertificates.NewDynamicServingContentFromFiles("mount-client-cert", o.ClientCertFile, o.ClientKeyFile); err != nil {
			return nil, fmt.Errorf("reading --mount-client-cert-file and --mount-client-key-file: %w", err)
		}
	}
	for _, host := range o.TrustedHosts {
		m.hosts = append(m.hosts, withPort(host))
	}
	public, err := webhooktransport.NewDialer(flagMountCIDRs, o.AllowedCIDRs)
	if err != nil {
		return nil, err
	}
	public.Timeout = dialTimeout
	m.public = m.way(public, &tls.Config{MinVersion: tls.VersionTLS12})
	trusted := &tls.Config{MinVersion: tls.VersionTLS12}
	if m.client != nil {
		trusted.GetClientCertificate = clientCertificate(m.client)
	}
	m.trusted = m.way(newDialer(), trusted)
	return m, nil
}

// way returns transports that all requests share. Each request has a backend with its own address.
func (m *mounts) way(dialer *net.Dialer, config *tls.Config) *backend {
	way := &backend{multiplexed: newTransport(config, true, readAhead), upgrades: newTransport(config, false, readAhead)}
	for transport, protocols := range map[*http.Transport][]string{way.multiplexed: {"h2", "http/1.1"}, way.upgrades: {"http/1.1"}} {
		transport.DialContext = dialer.DialContext
		transport.ResponseHeaderTimeout, transport.MaxResponseHeaderBytes = mountResponseTimeout, mountHeaderBytes
		if m.ca != nil {
			dialWith(transport, connect(dialer), m.ca, protocols...)
		}
	}
	return way
}

type mountTarget struct {
	*backend
	accessRequest *accessRequest
	trusted       bool // whether it receives the identity of the user
	leave         func()
}

func withPort(host string) string {
	host = strings.ToLower(host)
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), "443")
}

// admit returns the target of a request for a URL outside of the installation, or an error response.
// The user must have access to the logical cluster of the request, which contains the mount.
func (m *mounts) admit(r *http.Request, v *accessRequest, u *url.URL, cluster logicalcluster.Name) (*mountTarget, *apierrors.StatusError) {
	denied, authorized := v.checkAccess(r.Context())
	way, trusted := m.public, slices.Contains(m.hosts, withPort(u.Host))
	if trusted {
		way = m.trusted
	}
	holder := ledger.Holder{User: identity.Flow{Cluster: cluster}} // the tenant that mounts is charged, not the user
	switch {
	case denied:
		return nil, v.refusal(r)
	case !authorized:
		return nil, unavailable("the workspace is unavailable")
	case trusted && !hasGlobalName(v.user):
		return nil, statusError(http.StatusForbidden, metav1.StatusReasonForbidden, 0,
			"service accounts, and users that are restricted to some workspaces, cannot use a mounted server that receives their name")
	case m.slots.Take(holder, 1) != nil:
		return nil, statusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, retrySoon,
			"too many requests to mounted servers of this workspace, try again later")
	}
	v.release()
	return &mountTarget{accessRequest: v, trusted: trusted, leave: func() { m.slots.Give(holder, 1) }, backend: &backend{
		Peer: &peers.Peer{Name: mountName}, base: u, prefix: strings.TrimSuffix(u.EscapedPath(), "/"),
		multiplexed: way.multiplexed, upgrades: way.upgrades, external: true,
	}}, nil
}

// hasGlobalName reports whether the name of a user is meaningful outside of the installation.
func hasGlobalName(userInfo user.Info) bool {
	extra := userInfo.GetExtra()
	return !identity.IsServiceAccount(userInfo) && len(extra[request.ExtraScopes]) == 0 && len(extra[request.ExtraWarrant]) == 0
}

func (t *mountTarget) path(string) string { return t.accessRequest.rest }

// identify sets the identity of the user if the server is trusted. Tokens are never forwarded.
func (t *mountTarget) identify(p *httputil.ProxyRequest) {
	header := p.Out.Header
	for _, name := range []string{"Authorization", "Proxy-Authorization", "Cookie"} {
		header.Del(name)
	}
	if t.trusted {
		p.SetXForwarded()
		forwarded := *t.accessRequest.call
		forwarded.token = ""
		forwarded.identify(header, t.accessRequest.groups)
		return
	}
	identityHeaders{prefixes: []string{"impersonate-"}}.drop(header)
}

// accept prevents redirects, and headers that would affect this server's host in the client.
func (t *mountTarget) accept(_ *http.Request, res *http.Response) *apierrors.StatusError {
	takeAccessHeader(res.Header)
	if res.StatusCode >= 300 && res.StatusCode < 400 && res.StatusCode != http.StatusNotModified {
		return statusError(http.StatusBadGateway, metav1.StatusReasonInternalError, 0,
			"the mounted server responded with a redirect (%d), which is not followed", res.StatusCode)
	}
	for _, name := range []string{"Set-Cookie", "Strict-Transport-Security", "Alt-Svc", "Clear-Site-Data", "Location", "Refresh"} {
		res.Header.Del(name)
	}
	return nil
}

func (t *mountTarget) lost(*http.Request, error) *apierrors.StatusError { return nil }
func (t *mountTarget) String() string                                   { return "the mounted server" }
