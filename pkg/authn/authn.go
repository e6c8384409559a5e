// Package authn authenticates requests. Shards, the front-proxy and the cache server share it.
//
//	New(Options) ─► Authentication.Authenticator
//	                  certificates   of users, and of a front-proxy that names the user
//	                  tokens         development, serviceaccount, providers (OIDC), webhook
//	                                 issuers, of tenants, in their workspaces
//	                  anonymous      health probes only
//	Run(ctx)     ─► reloads changed files
//
// GroupFilter removes groups. WithTokenCluster sends requests without a logical cluster to the logical cluster of
// their token.
package authn

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	apiserverserviceaccount "k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/shardplane/shardplane/pkg/authn/issuers"
	"github.com/shardplane/shardplane/pkg/authn/serviceaccount"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
)

// Headers in which the front-proxy names the user to a shard.
const (
	HeaderPrefix      = "X-Remote-"
	HeaderUser        = HeaderPrefix + "User"
	HeaderUID         = HeaderPrefix + "Uid"
	HeaderGroup       = HeaderPrefix + "Group"
	HeaderExtraPrefix = HeaderPrefix + "Extra-"
)

// Authentication authenticates the requests of a server.
type Authentication struct {
	// Authenticator and Tokens are safe for concurrent use. Tokens ignores the logical cluster, unlike Reviewer.
	Authenticator authenticator.Request
	Tokens        authenticator.Token
	// Audiences are the audiences of the API.
	Audiences authenticator.Audiences
	// RequestHeader is nil if no front-proxy is trusted.
	RequestHeader *authenticatorfactory.RequestHeaderConfig
	// CAs are the client CAs that the TLS listener announces. The listener reloads their files.
	CAs []dynamiccertificates.CAContentProvider
	// Issuer issues tokens of service accounts; nil without a signing key.
	Issuer *serviceaccount.Issuer

	options Options
	from    Sources
	// proxy verifies certificates of front-proxies; may be nil.
	proxy *certificateCache
	// providers may be nil, too.
	providers *providers
	// background contains the functions that Run runs.
	background []func(ctx context.Context)
	reloads    *prometheus.CounterVec
}

// Sources provide information about the logical clusters of a server. All fields are optional.
type Sources struct {
	Accounts serviceaccount.Accounts
	// Workspace returns the logical cluster of a request, and the issuers that its tenant has configured.
	Workspace func(ctx context.Context) Workspace
	// Report reports a fault of a configuration to its tenant.
	Report  func(ctx context.Context, of *issuers.Configuration, fault string) error
	Metrics prometheus.Registerer
}

// Workspace is a logical cluster with the issuers that its tenant has configured.
type Workspace struct {
	// Cluster is empty if the request is for no logical cluster, or for one without issuers.
	Cluster logicalcluster.Name
	// Configurations are those that the workspace type names.
	Configurations []*issuers.Configuration
	// Incomplete is true while the configurations of a new logical cluster may not all be known.
	Incomplete bool
}

// Name adds a configuration, unless it is being deleted: its issuers are rejected immediately, even if
// finalizers delay the deletion.
func (w *Workspace) Name(c *issuers.Configuration) {
	if c.DeletionTimestamp == nil {
		w.Configurations = append(w.Configurations, c)
	}
}

// NewAuthentication returns the authenticator for o. It reads all files, and fails if one is invalid. Run must be
// called to accept tokens of OIDC issuers and to reload files.
func NewAuthentication(o Options, from Sources) (*Authentication, error) {
	a := &Authentication{options: o, from: from, reloads: newReloads(from.Metrics), Audiences: o.audiences()}
	certificates, err := a.certificates()
	if err != nil {
		return nil, err
	}
	if a.Tokens, err = a.tokens(); err != nil {
		return nil, err
	}
	chain := []authenticator.Request{certificates}
	if a.Tokens != nil {
		chain = append(chain, bearertoken.New(a.Tokens), websocket.NewProtocolAuthenticator(a.Tokens))
	}
	known := union.New(chain...)
	wellFormed := authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		return wellFormed(known.AuthenticateRequest(r))
	})
	var probes []apiserver.AnonymousAuthCondition
	for _, path := range ProbePaths() {
		probes = append(probes, apiserver.AnonymousAuthCondition{Path: path})
	}
	a.Authenticator = union.NewFailOnError(group.NewAuthenticatedGroupAdder(wellFormed), anonymous.NewAuthenticator(probes))
	return a, nil
}

// Run reloads changed files until ctx ends.
func (a *Authentication) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, run := range a.background {
		wg.Go(func() { run(ctx) })
	}
	<-ctx.Done()
	return nil
}

// Forwarded reports whether a front-proxy has forwarded r.
func (a *Authentication) Forwarded(r *http.Request) bool {
	if a.proxy == nil {
		return false
	}
	_, ok, err := a.proxy.AuthenticateRequest(r)
	return ok && err == nil
}

// certificates returns the authenticator by client certificates of users and front-proxies.
func (a *Authentication) certificates() (authenticator.Request, error) {
	var client, headers authenticator.Request
	if file := a.options.RequestHeaderCAFile; file != "" {
		ca, err := dynamiccertificates.NewDynamicCAContentFromFile("request-header", file)
		if err != nil {
			return nil, fmt.Errorf("reading --requestheader-client-ca-file: %w", err)
		}
		a.CAs = append(a.CAs, ca)
		a.RequestHeader = &authenticatorfactory.RequestHeaderConfig{
			UsernameHeaders:     headerrequest.StaticStringSlice{HeaderUser},
			UIDHeaders:          headerrequest.StaticStringSlice{HeaderUID},
			GroupHeaders:        headerrequest.StaticStringSlice{HeaderGroup},
			ExtraHeaderPrefixes: headerrequest.StaticStringSlice{HeaderExtraPrefix},
			CAContentProvider:   ca,
			AllowedClientNames:  headerrequest.StaticStringSlice(a.options.RequestHeaderAllowedNames),
		}
		a.proxy = newCertificateCache(x509request.NewDynamicCAVerifier(ca.VerifyOptions, anyUser, a.RequestHeader.AllowedClientNames), ca.VerifyOptions)
		headers = headerrequest.NewDynamic(a.RequestHeader.UsernameHeaders, a.RequestHeader.UIDHeaders, a.RequestHeader.GroupHeaders, a.RequestHeader.ExtraHeaderPrefixes)
	}
	if file := a.options.ClientCAFile; file != "" {
		ca, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", file)
		if err != nil {
			return nil, fmt.Errorf("reading --client-ca-file: %w", err)
		}
		a.CAs = append(a.CAs, ca)
		owner := ownerOf(x509request.NewDynamic(ca.VerifyOptions, x509request.CommonNameUserConversion), a.options.certificateGroups())
		client = newCertificateCache(owner, ca.VerifyOptions)
	}
	// The certificate of a front-proxy never authenticates a user, regardless of its CA. A request that a front-proxy
	// forwards without a user is anonymous, unless it contains other credentials.
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		var refused error
		if a.proxy != nil {
			_, ok, err := a.proxy.AuthenticateRequest(r)
			if ok && err == nil {
				return headers.AuthenticateRequest(r)
			}
			refused = err
		}
		if client == nil {
			return nil, false, refused
		}
		response, ok, err := client.AuthenticateRequest(r)
		if err != nil {
			return nil, false, errors.Join(refused, err)
		}
		return response, ok, nil
	}), nil
}

// ownerOf authenticates a user by a verified client certificate, and filters the groups.
func ownerOf(verified authenticator.Request, groups GroupFilter) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		response, ok, err := verified.AuthenticateRequest(r)
		if err != nil || !ok {
			return nil, false, err
		}
		if name := response.User.GetName(); strings.HasPrefix(name, apiserverserviceaccount.ServiceAccountUsernamePrefix) || strings.HasPrefix(name, request.GlobalAccountPrefix) {
			// The certificate would be the account of that name in every logical cluster.
			return nil, false, errors.New("the common name of a certificate must not be the name of a service account: use another common name, or a token")
		}
		return withGroups(response, groups), true, nil
	})
}

// ProbePaths are the paths that anonymous users may read.
func ProbePaths() []string { return []string{"/healthz", "/livez", "/readyz"} }

// OpenPaths are ProbePaths and the patterns of their single checks, which any user may read.
func OpenPaths() []string {
	paths := ProbePaths()
	for _, path := range ProbePaths() {
		paths = append(paths, path+"/*")
	}
	return paths
}

// wellFormed rejects users that the next server would interpret as other users; see
// identity.WellFormed.
func wellFormed(response *authenticator.Response, ok bool, err error) (*authenticator.Response, bool, error) {
	if ok && err == nil {
		err = identity.CheckWellFormed(response.User)
	}
	if err != nil {
		return nil, false, err
	}
	return response, ok, nil
}

const (
	// rememberFor and rememberAtMost limit the time and the number of cached verifications.
	rememberFor    = time.Minute
	rememberAtMost = 4096
)

// certificateCache caches successful authentications by client certificate, because a verification costs an
// elliptic curve operation and a digest. All requests of a connection have the same certificate.
type certificateCache struct {
	verify  authenticator.Request
	options x509request.VerifyOptionFunc
	// valid contains immutable responses.
	valid *cache.LRUExpireCache
}

// verified is a key. The TLS stack uses the same certificate object for all requests of a connection.
type verified struct {
	leaf  *x509.Certificate
	roots *x509.CertPool
}

func newCertificateCache(verify authenticator.Request, options x509request.VerifyOptionFunc) *certificateCache {
	return &certificateCache{verify: verify, options: options, valid: cache.NewLRUExpireCache(rememberAtMost)}
}

func (c *certificateCache) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	options, ok := c.options()
	if !ok {
		return nil, false, nil
	}
	key, now := verified{leaf: r.TLS.PeerCertificates[0], roots: options.Roots}, time.Now()
	if known, ok := c.valid.Get(key); ok {
		return known.(*authenticator.Response), true, nil
	}
	response, ok, err := c.verify.AuthenticateRequest(r)
	if err != nil || !ok {
		return nil, false, err
	}
	until := now.Add(rememberFor)
	for _, cert := range r.TLS.PeerCertificates {
		if cert.NotAfter.Before(until) {
			until = cert.NotAfter
		}
	}
	c.valid.Add(key, response, until.Sub(now))
	return response, true, nil
}

// anyUser is used if only the success of a verification matters.
var anyUser = authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
	return &authenticator.Response{}, true, nil
})
