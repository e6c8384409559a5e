package authn

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	apiserverserviceaccount "k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"

	"github.com/shardplane/shardplane/pkg/authn/issuers"
	"github.com/shardplane/shardplane/pkg/authn/serviceaccount"
	"github.com/shardplane/shardplane/pkg/request"
)

// The headers in which the front-proxy names the user to a shard. HeaderPrefix starts all of them.
const (
	HeaderPrefix      = "X-Remote-"
	HeaderUser        = HeaderPrefix + "User"
	HeaderUID         = HeaderPrefix + "Uid"
	HeaderGroup       = HeaderPrefix + "Group"
	HeaderExtraPrefix = HeaderPrefix + "Extra-"
)

// Authentication is what a server needs to authenticate requests.
type Authentication struct {
	// Authenticator answers who a request is from. It is safe for concurrent use.
	Authenticator authenticator.Request
	// Tokens answers whose a bearer token is, as Authenticator does. Which
	// logical cluster it is asked in makes no difference; see Reviewer.
	Tokens authenticator.Token
	// Audiences are those of the API.
	Audiences authenticator.Audiences
	// RequestHeader is nil where no front-proxy is trusted.
	RequestHeader *authenticatorfactory.RequestHeaderConfig
	// CAs are the providers of client CAs that the TLS listener announces. They
	// reload their files once the listener runs them.
	CAs []dynamiccertificates.CAContentProvider
	// Issuer makes tokens of service accounts; nil where no signing key is given.
	Issuer *serviceaccount.Issuer

	options Options
	from    Sources
	// proxy verifies certificates of front-proxies; it may be nil.
	proxy     *remembering
	providers *providers
	// issuers are those of tenants; it may be nil.
	issuers *issuers.Issuers
	watched []*watchedFiles
	reloads *prometheus.CounterVec
}

// Sources is what a server knows of its logical clusters; what is left out, it knows nothing of.
type Sources struct {
	// Accounts looks up service accounts.
	Accounts serviceaccount.Accounts
	// Workspace finds the logical cluster that a request with that context is for, and whom it
	// knows beside the users of the installation.
	Workspace func(ctx context.Context) Workspace
	// Tell has the tenant know what is wrong with a configuration.
	Report func(ctx context.Context, of *issuers.Configuration, fault string) error
	// Metrics registers metrics.
	Metrics prometheus.Registerer
}

// Workspace is a logical cluster, and whom it knows beside the users of the installation.
type Workspace struct {
	// Cluster is empty for requests that are for none, or whose users are not known by it.
	Cluster logicalcluster.Name
	// Configurations are those that the type of the logical cluster names.
	Configurations []*issuers.Configuration
	// Incomplete is set while there may be more, of a logical cluster that is new.
	Incomplete bool
}

// Name adds a configuration, unless it is being deleted: of its issuers nobody gets in any more,
// however long it is until it has gone.
func (w *Workspace) Name(c *issuers.Configuration) {
	if c.DeletionTimestamp == nil {
		w.Configurations = append(w.Configurations, c)
	}
}

// New builds the authenticator of o. It reads all files, and fails where one
// cannot be used. Tokens of OIDC issuers are accepted, and files read again,
// once Run runs.
func New(o Options, from Sources) (*Authentication, error) {
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
	a.Authenticator = union.NewFailOnError(
		group.NewAuthenticatedGroupAdder(wellFormed(union.New(chain...))),
		anonymous.NewAuthenticator(probes()),
	)
	return a, nil
}

// Run keeps the authenticator true to its files until ctx is done.
func (a *Authentication) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	if a.providers != nil {
		wg.Go(func() { a.providers.run(ctx) })
	}
	if a.issuers != nil {
		wg.Go(func() { a.issuers.Run(ctx) })
	}
	for _, files := range a.watched {
		wg.Go(func() { files.run(ctx) })
	}
	<-ctx.Done()
	return nil
}

// Forwarded reports whether a front-proxy has sent r, whoever's it is.
func (a *Authentication) Forwarded(r *http.Request) bool {
	if a.proxy == nil {
		return false
	}
	_, ok, err := a.proxy.AuthenticateRequest(r)
	return ok && err == nil
}

// certificates returns the authenticator by client certificates, those that
// speak for others included.
func (a *Authentication) certificates() (authenticator.Request, error) {
	c := &certificates{}
	if file := a.options.RequestHeaderCAFile; file != "" {
		ca, err := dynamiccertificates.NewDynamicCAContentFromFile("request-header", file)
		if err != nil {
			return nil, fmt.Errorf("reading --requestheader-client-ca-file: %w", err)
		}
		a.CAs = append(a.CAs, ca)
		a.RequestHeader = requestHeaderConfig(ca, a.options.RequestHeaderAllowedNames)
		a.proxy = newRemembering(x509.NewDynamicCAVerifier(ca.VerifyOptions, anybody, a.RequestHeader.AllowedClientNames), ca.VerifyOptions)
		c.proxy = a.proxy
		c.headers = headerrequest.NewDynamic(a.RequestHeader.UsernameHeaders, a.RequestHeader.UIDHeaders, a.RequestHeader.GroupHeaders, a.RequestHeader.ExtraHeaderPrefixes)
	}
	if file := a.options.ClientCAFile; file != "" {
		ca, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", file)
		if err != nil {
			return nil, fmt.Errorf("reading --client-ca-file: %w", err)
		}
		a.CAs = append(a.CAs, ca)
		owner := ownerOf(x509.NewDynamic(ca.VerifyOptions, x509.CommonNameUserConversion), a.options.certificateGroups())
		c.client = newRemembering(owner, ca.VerifyOptions)
	}
	return c, nil
}

// certificates authenticates by client certificate. Whoever may speak for
// others is never a user by its own certificate, whatever CA signed that: a
// request that the front-proxy forwards without a user has none, or brings
// credentials of its own.
type certificates struct {
	proxy, client *remembering
	headers       authenticator.Request
}

// AuthenticateRequest implements authenticator.Request.
func (c *certificates) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	var refused error
	if c.proxy != nil {
		_, ok, err := c.proxy.AuthenticateRequest(r)
		if ok && err == nil {
			return c.headers.AuthenticateRequest(r)
		}
		refused = err
	}
	if c.client == nil {
		return nil, false, refused
	}
	response, ok, err := c.client.AuthenticateRequest(r)
	if err != nil {
		return nil, false, errors.Join(refused, err)
	}
	return response, ok, nil
}

// ownerOf returns what says who a verified client certificate is of, with the groups
// that a filter leaves.
func ownerOf(verified authenticator.Request, groups GroupFilter) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		response, ok, err := verified.AuthenticateRequest(r)
		if err != nil || !ok {
			return nil, false, err
		}
		if namesAccount(response.User.GetName()) {
			return nil, false, errAccountCertificate
		}
		return withGroups(response, groups), true, nil
	})
}

// errAccountCertificate is why a certificate with the name of a service account
// is refused: it would be the account of that name in every logical cluster.
var errAccountCertificate = errors.New("a certificate cannot be a service account's: issue it to another common name, or use a token")

func namesAccount(name string) bool {
	return strings.HasPrefix(name, apiserverserviceaccount.ServiceAccountUsernamePrefix) || strings.HasPrefix(name, request.GlobalAccountPrefix)
}

func requestHeaderConfig(ca dynamiccertificates.CAContentProvider, names []string) *authenticatorfactory.RequestHeaderConfig {
	return &authenticatorfactory.RequestHeaderConfig{
		UsernameHeaders:     headerrequest.StaticStringSlice{HeaderUser},
		UIDHeaders:          headerrequest.StaticStringSlice{HeaderUID},
		GroupHeaders:        headerrequest.StaticStringSlice{HeaderGroup},
		ExtraHeaderPrefixes: headerrequest.StaticStringSlice{HeaderExtraPrefix},
		CAContentProvider:   ca,
		AllowedClientNames:  headerrequest.StaticStringSlice(names),
	}
}

// ProbePaths are the paths that everybody may read, without a name.
func ProbePaths() []string { return []string{"/healthz", "/livez", "/readyz"} }

func probes() []apiserver.AnonymousAuthCondition {
	paths := ProbePaths()
	conditions := make([]apiserver.AnonymousAuthCondition, 0, len(paths))
	for _, path := range paths {
		conditions = append(conditions, apiserver.AnonymousAuthCondition{Path: path})
	}
	return conditions
}
