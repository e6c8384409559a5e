package issuers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"github.com/shardplane/shardplane/pkg/request/patterns"
	"github.com/shardplane/shardplane/pkg/request/rsakeys"
)

const (
	// maxProviders and maxProvidersEach limit the providers, in total and of one logical cluster. A provider that is
	// unused for idleTimeout is dropped.
	//
	//reference:none
	maxProviders, maxProvidersEach = 1000, 64
	idleTimeout                    = 30 * time.Minute
	// maxRules limits the rules and extra attributes of an entry; the OIDC library limits the cost of each.
	// maxExpressionBytes limits the expressions, which take 100 times as much memory.
	//
	//reference:limit issuer | rules and extra attributes | 401
	maxRules = 32
	//reference:limit issuer | size of the expressions | 401
	maxExpressionBytes = 4 << 10
)

var compiler = sync.OnceValue(authenticationcel.NewDefaultCompiler)

var errTooManyTokens = errors.New("too many tokens of issuers of the logical cluster are being verified, try again")

// provider authenticates tokens of one entry, which several configurations may share.
type provider struct {
	entry      *tenancyv1alpha1.JWTAuthenticator
	keys       *keySet
	disallowed []string
	// home is the first logical cluster with the entry, and used the time of the last use.
	home logicalcluster.Name
	used time.Time

	compile sync.Once
	tokens  authenticator.Token
	err     error
}

// authenticate waits for keys without occupying the turn of its logical cluster. Otherwise, an issuer that
// does not respond would delay tokens of other issuers.
func (p *provider) authenticate(ctx context.Context, home *home, token string) (response *authenticator.Response, ok bool, err error) {
	inTurn := func(f func()) error {
		select {
		case home.turn <- struct{}{}:
			defer func() { <-home.turn }()
			f()
			return nil
		case <-ctx.Done():
			return errTooManyTokens
		}
	}
	if err := inTurn(func() { p.compile.Do(p.build) }); err != nil {
		return nil, false, err
	}
	if p.err != nil {
		return nil, false, &faultError{p.err}
	}
	version, retries := 0, 0
	for {
		if version, err = p.keys.newer(ctx, version); errors.Is(err, errUnknownKey) {
			return nil, false, err
		} else if err != nil {
			return nil, false, &faultError{err}
		}
		unknown := false
		if turnErr := inTurn(func() {
			if _, err := p.keys.VerifySignature(ctx, token); errors.Is(err, errUnknownKey) {
				unknown = true
				return
			}
			response, ok, err = p.tokens.AuthenticateToken(ctx, token)
		}); turnErr != nil {
			return nil, false, turnErr
		}
		if !unknown {
			return response, ok, err
		}
		if retries++; retries > 2 {
			return nil, false, errUnknownKey // the issuer has removed it
		}
	}
}

// faultError is an error of the configuration or issuer, and not of the token.
type faultError struct{ error }

// Unwrap returns the fault.
func (f *faultError) Unwrap() error { return f.error }

// build compiles the entry with the rules of Kubernetes.
func (p *provider) build() {
	jwt := toKubernetes(p.entry)
	expressions := expressionsOf(&jwt)
	n, bytes := len(jwt.ClaimValidationRules)+len(jwt.UserValidationRules)+len(jwt.ClaimMappings.Extra), len(strings.Join(expressions, ""))
	if n > maxRules || bytes > maxExpressionBytes {
		p.err = fmt.Errorf("%d rules and extra attributes, at most %d allowed, and %d bytes of expressions, at most %d allowed", n, maxRules, bytes, maxExpressionBytes)
		return
	}
	// Unauthenticated clients can send tokens that are matched with the patterns.
	for _, expression := range expressions {
		if err := patterns.CheckExpression(expression); err != nil {
			p.err = fmt.Errorf("expression %q: %w", expression, err)
			return
		}
	}
	// These checks are ours because the library does not get these fields.
	if len(jwt.Issuer.Audiences) == 0 {
		p.err = errors.New("issuer.audiences: at least one audience is required")
		return
	}
	if at := jwt.Issuer.DiscoveryURL; at == jwt.Issuer.URL {
		p.err = errors.New("issuer.discoveryURL must differ from issuer.url")
		return
	}
	if err := rsakeys.CheckBundle([]byte(jwt.Issuer.CertificateAuthority)); err != nil {
		p.err = fmt.Errorf("issuer.certificateAuthority: %w", err)
		return
	}
	jwt.Issuer.DiscoveryURL = "" // keys are fetched by keySet
	p.tokens, p.err = oidc.New(p.keys.from.ctx, oidc.Options{
		JWTAuthenticator: jwt, KeySet: p.keys, Compiler: compiler(), SupportedSigningAlgs: oidc.AllValidSigningAlgorithms(),
		DisallowedIssuers: p.disallowed,
		// The library would use the client only for distributed claims, which are rejected.
		Client: &http.Client{Transport: nowhere{}},
	})
}

// nowhere rejects all requests.
type nowhere struct{}

func (nowhere) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("requests to other servers than the issuer are not allowed")
}

// expressionsOf returns all CEL expressions of an entry.
func expressionsOf(jwt *apiserver.JWTAuthenticator) []string {
	m := &jwt.ClaimMappings
	expressions := []string{m.Username.Expression, m.Groups.Expression, m.UID.Expression}
	for _, r := range jwt.ClaimValidationRules {
		expressions = append(expressions, r.Expression)
	}
	for _, r := range jwt.UserValidationRules {
		expressions = append(expressions, r.Expression)
	}
	for _, e := range m.Extra {
		expressions = append(expressions, e.ValueExpression)
	}
	return expressions
}

func toKubernetes(in *tenancyv1alpha1.JWTAuthenticator) apiserver.JWTAuthenticator {
	out := apiserver.JWTAuthenticator{
		Issuer: apiserver.Issuer{
			URL: in.Issuer.URL, DiscoveryURL: in.Issuer.DiscoveryURL, CertificateAuthority: in.Issuer.CertificateAuthority,
			Audiences: in.Issuer.Audiences, AudienceMatchPolicy: apiserver.AudienceMatchPolicyType(in.Issuer.AudienceMatchPolicy),
		},
		ClaimMappings: apiserver.ClaimMappings{
			Username: apiserver.PrefixedClaimOrExpression(in.ClaimMappings.Username),
			Groups:   apiserver.PrefixedClaimOrExpression(in.ClaimMappings.Groups),
			UID:      apiserver.ClaimOrExpression(in.ClaimMappings.UID),
		},
	}
	for _, m := range in.ClaimMappings.Extra {
		out.ClaimMappings.Extra = append(out.ClaimMappings.Extra, apiserver.ExtraMapping(m))
	}
	for _, r := range in.ClaimValidationRules {
		out.ClaimValidationRules = append(out.ClaimValidationRules, apiserver.ClaimValidationRule(r))
	}
	for _, r := range in.UserValidationRules {
		out.UserValidationRules = append(out.UserValidationRules, apiserver.UserValidationRule(r))
	}
	return out
}
