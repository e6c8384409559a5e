package frontproxy

import (
	"context"
	"crypto/tls"
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

	"github.com/shardplane/shardplane/pkg/lifecycle"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/serving/ledger"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

const (
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

// mountTarget is the server that a call goes to through a mount.
type mountTarget struct {
	*backend
	visit *visit
	// trusted is set if it is told who the user is.
	trusted bool
	leave   func()
}

// to returns the target of a visit for a URL.
func (m *mounts) to(u *url.URL, v *visit) *mountTarget {
	way, trusted := m.anywhere, slices.Contains(m.hosts, withPort(u.Host))
	if trusted {
		way = m.trusted
	}
	return &mountTarget{visit: v, trusted: trusted, backend: &backend{
		Peer: &peers.Peer{Name: mountName}, base: u, prefix: strings.TrimSuffix(u.EscapedPath(), "/"),
		multiplexed: way.multiplexed, upgrades: way.upgrades, outside: true,
	}}
}

// withPort returns a host as it is compared.
func withPort(host string) string {
	host = strings.ToLower(host)
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), "443")
}

// enter returns the target of a visit for a URL outside of the installation, by a mount in the logical
// cluster of the visit, which the user may enter, or the answer if there is none.
func (m *mounts) enter(r *http.Request, v *visit, u *url.URL, cluster logicalcluster.Name) (*mountTarget, *apierrors.StatusError) {
	denied, entered := v.ask(r.Context())
	to := m.to(u, v)
	holder := ledger.Holder{User: identity.Flow{Cluster: cluster}} // who mounts pays, not who visits
	switch {
	case denied:
		return nil, v.refusal(r)
	case !entered:
		return nil, unavailable("the workspace is unavailable")
	case to.trusted && !tellable(v.user):
		return nil, statusError(http.StatusForbidden, metav1.StatusReasonForbidden, 0,
			"the mounted server is told who somebody is, and service accounts and users that are restricted to some workspaces mean somebody else there")
	case m.places.Take(holder, 1) != nil:
		return nil, statusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, retrySoon,
			"too many requests are at servers that are mounted here, try again later")
	}
	to.leave = func() { m.places.Give(holder, 1) }
	v.release()
	return to, nil
}

// tellable reports whether the name of a user means the same outside of the installation.
func tellable(who user.Info) bool {
	extra := who.GetExtra()
	return !identity.IsServiceAccount(who) && len(extra[request.ExtraScopes]) == 0 && len(extra[request.ExtraWarrant]) == 0
}

func (t *mountTarget) way() *backend { return t.backend }

func (t *mountTarget) path(string) string { return t.visit.rest }

// identify makes a request say who it is from if the server is trusted, and
// nothing of it otherwise. Tokens go nowhere.
func (t *mountTarget) identify(p *httputil.ProxyRequest) {
	header := p.Out.Header
	for _, name := range []string{"Authorization", "Proxy-Authorization", "Cookie"} {
		header.Del(name)
	}
	if t.trusted {
		p.SetXForwarded()
		told := *t.visit.call
		told.token = ""
		told.identify(header, t.visit.groups)
		return
	}
	identityHeaders{prefixes: []string{"impersonate-"}}.drop(header)
}

// accept keeps an answer from leading the client elsewhere, and from setting anything for this
// server's name.
func (t *mountTarget) accept(_ *http.Request, res *http.Response) *apierrors.StatusError {
	takeMark(res.Header)
	if res.StatusCode >= 300 && res.StatusCode < 400 && res.StatusCode != http.StatusNotModified {
		return statusError(http.StatusBadGateway, metav1.StatusReasonInternalError, 0,
			"the mounted server answered with a redirect (%d), and redirects are not followed", res.StatusCode)
	}
	for _, name := range []string{"Set-Cookie", "Strict-Transport-Security", "Alt-Svc", "Clear-Site-Data", "Location", "Refresh"} {
		res.Header.Del(name)
	}
	return nil
}

func (t *mountTarget) lost(*http.Request, error) *apierrors.StatusError { return nil }
func (t *mountTarget) String() string                                   { return "the mounted server" }
