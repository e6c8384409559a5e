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
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/shardplane/shardplane/pkg/lifecycle"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
	"github.com/shardplane/shardplane/pkg/workspaceindex"
)

const (
	// maxHops is how many mounts lead to each other at most.
	maxHops = 3
	// mountWait is how long a mounted server may take to begin its answer.
	mountWait = time.Minute
	// mountHeaderBytes is how long the header of its answer may be.
	mountHeaderBytes = 256 << 10
	// maxMounted and maxMountedEach bound the requests that are at mounted servers, in all
	// and by mounts of one logical cluster, which has ownMounted in any case.
	maxMounted     = 4096
	maxMountedEach = 512
	ownMounted     = 16
	// mountName stands for all mounted servers in metrics and logs.
	mountName = "mount"
)

// mounts is how requests get to servers that tenants mount.
type mounts struct {
	// places bound the requests, by the logical cluster that has the mount.
	places *ledger.Ledger
	// anywhere reaches the servers of tenants' URLs, and trusted those of the hosts that the
	// operator trusts, which are told who somebody is.
	anywhere, trusted *backend
	hosts             []string
	ca                *dynamiccertificates.DynamicFileCAContent
	client            *dynamiccertificates.DynamicCertKeyPairContent
}

// newMounts reads certificates. Nothing is connected.
func newMounts(o MountOptions) (m *mounts, err error) {
	m = &mounts{places: ledger.New(ledger.Bounds{Total: maxMounted, User: maxMountedEach, Own: ownMounted})}
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
	m.anywhere = m.way(public, &tls.Config{MinVersion: tls.VersionTLS12})
	told := &tls.Config{MinVersion: tls.VersionTLS12}
	if m.client != nil {
		told.GetClientCertificate = clientCertificate(m.client)
	}
	m.trusted = m.way(newDialer(), told)
	return m, nil
}

// way returns transports, of which each request makes a backend with its own address.
func (m *mounts) way(dialer *net.Dialer, config *tls.Config) *backend {
	way := &backend{multiplexed: newTransport(config, true, ahead), upgrades: newTransport(config, false, ahead)}
	for transport, protocols := range map[*http.Transport][]string{way.multiplexed: {"h2", "http/1.1"}, way.upgrades: {"http/1.1"}} {
		transport.DialContext = dialer.DialContext
		transport.ResponseHeaderTimeout, transport.MaxResponseHeaderBytes = mountWait, mountHeaderBytes
		if m.ca != nil {
			dialWith(transport, connect(dialer), m.ca, protocols...)
		}
	}
	return way
}

// part keeps the certificates true to their files, and closes connections in the end.
func (m *mounts) part() lifecycle.Part {
	return lifecycle.Part{Name: "mounts", Run: func(ctx context.Context) error {
		defer m.anywhere.retire()
		defer m.trusted.retire()
		var running sync.WaitGroup
		defer running.Wait()
		if m.client != nil {
			running.Go(func() { m.client.Run(ctx, 1) })
		}
		if m.ca != nil {
			running.Go(func() { m.ca.Run(ctx, 1) })
		}
		<-ctx.Done()
		return nil
	}}
}

// mountedServer is the server that a request goes to through a mount.
type mountedServer struct {
	// trusted is set if it is told who the user is.
	trusted bool
	leave   func()
}

// to returns the way to a URL.
func (m *mounts) to(u *url.URL) (*backend, *mountedServer) {
	way, server := m.anywhere, &mountedServer{leave: func() {}}
	if slices.Contains(m.hosts, withPort(u.Host)) {
		way, server.trusted = m.trusted, true
	}
	return &backend{
		Peer: &peers.Peer{Name: mountName}, base: u, prefix: strings.TrimSuffix(u.EscapedPath(), "/"),
		multiplexed: way.multiplexed, upgrades: way.upgrades,
	}, server
}

// withPort returns a host as it is compared.
func withPort(host string) string {
	host = strings.ToLower(host)
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), "443")
}

// workspaceAt returns the segment of the workspace that a URL of this installation means, and
// whether it is such a URL.
func (s *Server) workspaceAt(u *url.URL) (segment string, own bool) {
	is := func(address string) bool {
		at, err := url.Parse(address)
		return err == nil && at.Host != "" && withPort(at.Host) == withPort(u.Host)
	}
	if !is(s.URL()) && !slices.ContainsFunc(s.shards.objects.Lister().List(nil), func(shard *corev1alpha1.Shard) bool {
		return is(shard.Spec.ExternalURL) || is(shard.Spec.BaseURL) || is(shard.Spec.VirtualWorkspaceURL)
	}) {
		return "", false
	}
	segment, _ = strings.CutPrefix(strings.TrimSuffix(u.EscapedPath(), "/"), request.Clusters.Prefix)
	return segment, true
}

// resolveMount goes on where a mount leads, of which the index has told, or answers and reports
// false. A URL of this installation means a workspace, which is served as if it had been asked
// for, to whom it lets in. Any other server is for those who may enter the logical cluster that
// has the mount, and told of nobody else.
func (s *Server) resolveMount(w http.ResponseWriter, r *http.Request, to *route, at address, target workspaceindex.Target, outcome workspaceindex.Outcome) bool {
	to.cluster, to.holder, to.visitor = target.Cluster.String(), s.shards.backend(target.Shard), visitorOf(to.user, target.Cluster, "")
	u, err := url.Parse(target.Mount)
	switch {
	case at.view != nil:
		s.forwarder.refuse(w, r, to) // there is nothing to be seen through a view
		return false
	case outcome == workspaceindex.Unmounted || err != nil:
		s.unavailable(w, r, to, "the workspace is a mount that leads nowhere now: its conditions say why")
		return false
	}
	if segment, own := s.workspaceAt(u); own {
		path, valid := clusterPath(segment)
		if to.hops++; valid && to.hops <= maxHops {
			return s.resolve(w, r, to, address{path: path, valid: true, rest: at.rest})
		}
		s.unavailable(w, r, to, fmt.Sprintf("the workspace is a mount of no workspace of this installation, or of mounts that lead to each other more than %d times", maxHops))
		return false
	}
	return s.leaveFor(w, r, to, u, target.Cluster)
}

// leaveFor has a request go to a server outside of the installation, by a mount in a logical
// cluster that the user may enter, or answers and reports false.
func (s *Server) leaveFor(w http.ResponseWriter, r *http.Request, to *route, u *url.URL, cluster logicalcluster.Name) bool {
	entered := false
	if to.holder != nil {
		var denied bool
		if denied, entered = s.forwarder.ask(r.Context(), to); denied {
			s.forwarder.refuse(w, r, to)
			return false
		}
	}
	to.backend, to.mount = s.mounts.to(u)
	holder := ledger.Holder{User: identity.Payer{Cluster: cluster}} // who mounts pays, not who visits
	switch {
	case !entered:
		writeStatus(w, unavailable("the workspace is unavailable"))
		return false
	case to.mount.trusted && !tellable(to.user):
		writeStatus(w, statusError(http.StatusForbidden, metav1.StatusReasonForbidden, 0,
			"the mounted server is told who somebody is, and service accounts and users that are restricted to some workspaces mean somebody else there"))
		return false
	case s.mounts.places.Take(holder, 1) != nil:
		writeStatus(w, statusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, retrySoon,
			"too many requests are at servers that are mounted here, try again later"))
		return false
	}
	to.mount.leave = func() { s.mounts.places.Give(holder, 1) }
	to.release()
	return true
}

// tellable reports whether the name of a user means the same outside of the installation.
func tellable(who user.Info) bool {
	extra := who.GetExtra()
	return !identity.IsServiceAccount(who) && len(extra[request.ExtraScopes]) == 0 && len(extra[request.ExtraWarrant]) == 0
}

// prepare makes a request to a mounted server say who it is from, if that is trusted, and
// nothing of it otherwise. Tokens go nowhere.
func (m *mountedServer) prepare(p *httputil.ProxyRequest, to *route, f *forwarder) {
	header := p.Out.Header
	ownIdentity.drop(header)
	for _, name := range []string{"Authorization", "Proxy-Authorization", "Cookie"} {
		header.Del(name)
	}
	if m.trusted {
		p.SetXForwarded()
		told := *to
		told.token = ""
		told.identify(p.Out, f)
		return
	}
	identityHeaders{prefixes: []string{"impersonate-"}}.drop(header)
}

// accept looks at the answer of a mounted server before the client gets it: it is not to lead
// the client elsewhere, nor to set anything for this server's name.
func (m *mountedServer) accept(res *http.Response) error {
	takeMark(res.Header)
	if res.StatusCode >= 300 && res.StatusCode < 400 && res.StatusCode != http.StatusNotModified {
		return &answerError{status: statusError(http.StatusBadGateway, metav1.StatusReasonInternalError, 0,
			"the mounted server answered with a redirect (%d), and redirects are not followed", res.StatusCode)}
	}
	for _, name := range []string{"Set-Cookie", "Strict-Transport-Security", "Alt-Svc", "Clear-Site-Data", "Location", "Refresh"} {
		res.Header.Del(name)
	}
	return nil
}

const flagMountCIDRs = "--mount-allowed-cidrs"

// validate returns what is wrong with the options.
func (o *MountOptions) validate() (errs []error) {
	if _, err := webhooktransport.NewDialer(flagMountCIDRs, o.AllowedCIDRs); err != nil {
		errs = append(errs, err)
	}
	for _, host := range o.TrustedHosts {
		if at, err := url.Parse("https://" + host); err != nil || at.Hostname() == "" || at.Host != host {
			errs = append(errs, fmt.Errorf("--mount-trusted-hosts: %q is not a host such as example.com or example.com:6443", host))
		}
	}
	switch {
	case (o.ClientCertFile == "") != (o.ClientKeyFile == ""):
		errs = append(errs, errors.New("--mount-client-cert-file and --mount-client-key-file belong together"))
	case len(o.TrustedHosts) > 0 && o.ClientCertFile == "":
		errs = append(errs, errors.New("--mount-trusted-hosts needs --mount-client-cert-file: these servers could not tell the front-proxy from anybody else"))
	case len(o.TrustedHosts) == 0 && o.ClientCertFile != "":
		errs = append(errs, errors.New("--mount-client-cert-file is for --mount-trusted-hosts, and there are none"))
	}
	return errs
}
