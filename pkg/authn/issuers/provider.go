package issuers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"github.com/shardplane/shardplane/pkg/request/patterns"
)

const (
	// maxProviders is how many there are at most, maxProvidersEach of one logical cluster, and
	// restFor how long one is kept that nobody asks.
	maxProviders, maxProvidersEach = 1000, 64
	restFor                        = 30 * time.Minute
	// maxRules bounds the rules and extra attributes of an entry, what each costs is bounded by
	// the library. maxExpressionBytes bounds its expressions, which take 100 times as much memory.
	maxRules           = 32
	maxExpressionBytes = 4 << 10
)

var (
	errCrowded = errors.New("too many tokens of issuers of the logical cluster that configures them are looked at, try again")
)

// provider knows the tokens of one entry, whoever has it.
type provider struct {
	entry      *tenancyv1alpha1.JWTAuthenticator
	keys       *keySet
	compiler   func() authenticationcel.Compiler
	disallowed []string
	// home is the logical cluster that had the entry first, and used when it was asked for
	// last.
	home logicalcluster.Name
	used time.Time

	compile sync.Once
	tokens  authenticator.Token
	err     error
}

// authenticate returns whose a token is. It waits for keys without having its turn, so that an
// issuer that does not answer delays no token of another one.
func (p *provider) authenticate(ctx context.Context, home *home, token string) (response *authenticator.Response, ok bool, err error) {
	inTurn := func(f func()) error {
		select {
		case home.turn <- struct{}{}:
			defer func() { <-home.turn }()
			f()
			return nil
		case <-ctx.Done():
			return errCrowded
		}
	}
	if err := inTurn(func() { p.compile.Do(p.build) }); err != nil {
		return nil, false, err
	}
	if p.err != nil {
		return nil, false, &faultError{p.err}
	}
	version, asked := 0, 0
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
		if asked++; asked > 2 {
			return nil, false, errUnknownKey // the issuer has it no more
		}
	}
}

// faultError is an error that is no matter of the token.
type faultError struct{ error }

// Unwrap returns what the fault is.
func (f *faultError) Unwrap() error { return f.error }

// build compiles the entry, by Kubernetes' rules.
func (p *provider) build() {
	jwt := toKubernetes(p.entry)
	if n, bytes := rules(&jwt); n > maxRules || bytes > maxExpressionBytes {
		p.err = fmt.Errorf("it has %d rules and extra attributes and may have %d, and %d bytes of expressions and may have %d", n, maxRules, bytes, maxExpressionBytes)
		return
	}
	// Tokens are matched with the patterns before anybody has authenticated.
	if p.err = checkPatterns(&jwt); p.err != nil {
		return
	}
	// These say what is wrong with what the library is not given here.
	if len(jwt.Issuer.Audiences) == 0 {
		p.err = errors.New("issuer.audiences: at least one audience is required")
		return
	}
	if at := jwt.Issuer.DiscoveryURL; at == jwt.Issuer.URL {
		p.err = errors.New("issuer.discoveryURL: it must be another URL than issuer.url")
		return
	}
	jwt.Issuer.DiscoveryURL = "" // the keys are fetched by it
	tokens, err := oidc.New(p.keys.from.life, oidc.Options{
		JWTAuthenticator: jwt, KeySet: p.keys, Compiler: p.compiler(), SupportedSigningAlgs: oidc.AllValidSigningAlgorithms(),
		DisallowedIssuers: p.disallowed,
		// What the library asked itself for would be distributed claims, of which there are none.
		Client: &http.Client{Transport: nowhere{}},
	})
	if err != nil {
		p.err = err
		return
	}
	p.tokens = tokens
}

// nowhere sends nothing.
type nowhere struct{}

// RoundTrip implements http.RoundTripper.
func (nowhere) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("nobody but the issuer is asked")
}

// rules returns how many rules and extra attributes an entry has, and how long all its
// expressions are.
func rules(jwt *apiserver.JWTAuthenticator) (n, bytes int) {
	m := &jwt.ClaimMappings
	bytes = len(m.Username.Expression) + len(m.Groups.Expression) + len(m.UID.Expression)
	for _, r := range jwt.ClaimValidationRules {
		bytes += len(r.Expression)
	}
	for _, r := range jwt.UserValidationRules {
		bytes += len(r.Expression)
	}
	for _, e := range m.Extra {
		bytes += len(e.ValueExpression)
	}
	return len(jwt.ClaimValidationRules) + len(jwt.UserValidationRules) + len(m.Extra), bytes
}

// checkPatterns returns an error if the regular expressions in the expressions of an entry are too large.
func checkPatterns(jwt *apiserver.JWTAuthenticator) error {
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
	for _, expression := range expressions {
		if err := patterns.CheckExpression(expression); err != nil {
			return fmt.Errorf("expression %q: %w", expression, err)
		}
	}
	return nil
}

// toKubernetes returns an entry as Kubernetes' library has it.
func toKubernetes(in *tenancyv1alpha1.JWTAuthenticator) apiserver.JWTAuthenticator {
	prefixed := func(m tenancyv1alpha1.PrefixedClaimOrExpression) apiserver.PrefixedClaimOrExpression {
		return apiserver.PrefixedClaimOrExpression{Claim: m.Claim, Prefix: m.Prefix, Expression: m.Expression}
	}
	out := apiserver.JWTAuthenticator{
		Issuer: apiserver.Issuer{
			URL: in.Issuer.URL, DiscoveryURL: in.Issuer.DiscoveryURL, CertificateAuthority: in.Issuer.CertificateAuthority,
			Audiences: in.Issuer.Audiences, AudienceMatchPolicy: apiserver.AudienceMatchPolicyType(in.Issuer.AudienceMatchPolicy),
		},
		ClaimMappings: apiserver.ClaimMappings{
			Username: prefixed(in.ClaimMappings.Username),
			Groups:   prefixed(in.ClaimMappings.Groups),
			UID:      apiserver.ClaimOrExpression{Claim: in.ClaimMappings.UID.Claim, Expression: in.ClaimMappings.UID.Expression},
		},
	}
	for _, m := range in.ClaimMappings.Extra {
		out.ClaimMappings.Extra = append(out.ClaimMappings.Extra, apiserver.ExtraMapping{Key: m.Key, ValueExpression: m.ValueExpression})
	}
	for _, r := range in.ClaimValidationRules {
		out.ClaimValidationRules = append(out.ClaimValidationRules, apiserver.ClaimValidationRule{Claim: r.Claim, RequiredValue: r.RequiredValue, Expression: r.Expression, Message: r.Message})
	}
	for _, r := range in.UserValidationRules {
		out.UserValidationRules = append(out.UserValidationRules, apiserver.UserValidationRule{Expression: r.Expression, Message: r.Message})
	}
	return out
}
