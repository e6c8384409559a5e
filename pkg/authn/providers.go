package authn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	"k8s.io/klog/v2"
)

const (
	// providerCacheTTL is for how long a token of an OIDC issuer is not verified
	// again, as in kube-apiserver.
	providerCacheTTL = 10 * time.Second
	// providerTimeout is how long the issuers of a new configuration may take
	// to answer before the old one is kept for the time being.
	providerTimeout = 30 * time.Second
	providerPoll    = 50 * time.Millisecond

	configurationName = "authentication-config"
)

// configurations decodes AuthenticationConfigurations, strictly.
var configurations = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict)
}()

// providers knows the tokens of the OIDC issuers that a file names. It follows
// the file: a new configuration takes over once all its issuers have answered,
// and one that cannot be used changes nothing.
type providers struct {
	file       string
	disallowed []string
	audiences  authenticator.Audiences
	compiler   authenticationcel.Compiler

	watched *watchedFiles
	initial *apiserver.AuthenticationConfiguration
	current atomic.Pointer[generation]
	// previous is what requests in flight may still use.
	previous *generation
}

// generation is what knows the tokens of one version of the configuration.
type generation struct {
	tokens authenticator.Token
	// healthy says which issuer has not answered yet.
	healthy func() error
	end     context.CancelFunc
}

// newProviders reads the file, but asks nobody yet.
func newProviders(file string, disallowed []string, audiences authenticator.Audiences, reloads *prometheus.CounterVec) (*providers, error) {
	p := &providers{file: file, disallowed: disallowed, audiences: audiences, compiler: authenticationcel.NewDefaultCompiler()}
	p.watched = newWatchedFiles(configurationName, []string{file}, reloads, p.load)
	var err error
	p.initial, err = p.read()
	return p, err
}

// AuthenticateToken implements authenticator.Token.
func (p *providers) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	current := p.current.Load()
	if current == nil {
		return nil, false, nil
	}
	return current.tokens.AuthenticateToken(ctx, token)
}

func (p *providers) run(ctx context.Context) {
	first, err := p.build(ctx, p.initial)
	if err != nil { // New has validated it
		klog.FromContext(ctx).Error(err, "No tokens of OIDC issuers are accepted", "file", p.file)
	} else {
		p.current.Store(first)
	}
	p.watched.run(ctx)
	for _, g := range []*generation{p.previous, p.current.Load()} {
		if g != nil {
			g.end()
		}
	}
}

// load lets the present file's configuration take over once all its issuers
// have answered.
func (p *providers) load(ctx context.Context) error {
	config, err := p.read()
	if err != nil {
		return err
	}
	next, err := p.build(ctx, config)
	if err != nil {
		return err
	}
	var unhealthy error
	err = wait.PollUntilContextTimeout(ctx, providerPoll, providerTimeout, true, func(context.Context) (bool, error) {
		unhealthy = next.healthy()
		return unhealthy == nil, nil
	})
	if err != nil {
		next.end()
		return fmt.Errorf("not all issuers of the new configuration answer, %w: %w", errAgain, errors.Join(unhealthy, err))
	}
	if p.previous != nil {
		p.previous.end()
	}
	p.previous = p.current.Swap(next)
	return nil
}

// read reads and validates the file.
func (p *providers) read() (*apiserver.AuthenticationConfiguration, error) {
	content, err := os.ReadFile(p.file)
	if err != nil {
		return nil, err
	}
	if len(strings.TrimSpace(string(content))) == 0 {
		return nil, fmt.Errorf("%s is empty: it must hold an AuthenticationConfiguration of apiserver.config.k8s.io/v1", p.file)
	}
	obj, err := runtime.Decode(configurations.UniversalDecoder(), content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.file, err)
	}
	config, ok := obj.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("%s holds a %T and no AuthenticationConfiguration", p.file, obj)
	}
	if err := validation.ValidateAuthenticationConfiguration(p.compiler, config, p.disallowed).ToAggregate(); err != nil {
		return nil, fmt.Errorf("%s: %w", p.file, err)
	}
	if err := checkReserved(config); err != nil {
		return nil, fmt.Errorf("%s: %w", p.file, err)
	}
	return config, nil
}

// checkReserved refuses what is decided here and not by configuration.
func checkReserved(config *apiserver.AuthenticationConfiguration) error {
	if config.Anonymous != nil {
		return errors.New("anonymous: remove it, anonymous requests reach the health probes and nothing else")
	}
	for i, provider := range config.JWT {
		for _, extra := range provider.ClaimMappings.Extra {
			if isReservedExtra(extra.Key) {
				return fmt.Errorf("jwt[%d].claimMappings.extra: the key %q is reserved: servers decide by it", i, extra.Key)
			}
		}
	}
	return nil
}

// ownDomain is that of the extra attributes by which servers decide.
const ownDomain = "kcp.io"

// isReservedExtra reports whether servers decide by an extra attribute.
func isReservedExtra(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return domain == ownDomain || strings.HasSuffix(domain, "."+ownDomain)
}

// build makes what knows the tokens of the configured issuers. It starts to ask
// the issuers, and ends with ctx or when the generation is ended.
func (p *providers) build(ctx context.Context, config *apiserver.AuthenticationConfiguration) (*generation, error) {
	ctx, cancel := context.WithCancel(ctx)
	known := make([]authenticator.Token, 0, len(config.JWT))
	checks := make([]func() error, 0, len(config.JWT))
	for _, provider := range config.JWT {
		options := oidc.Options{
			JWTAuthenticator:     provider,
			Compiler:             p.compiler,
			SupportedSigningAlgs: oidc.AllValidSigningAlgorithms(),
			DisallowedIssuers:    p.disallowed,
		}
		if ca := provider.Issuer.CertificateAuthority; ca != "" {
			content, err := dynamiccertificates.NewStaticCAContent("oidc", []byte(ca))
			if err != nil {
				cancel()
				return nil, fmt.Errorf("issuer %s: %w", provider.Issuer.URL, err)
			}
			options.CAContentProvider = content
		}
		tokens, err := oidc.New(ctx, options)
		if err != nil {
			cancel()
			return nil, fmt.Errorf("issuer %s: %w", provider.Issuer.URL, err)
		}
		known = append(known, tokens)
		checks = append(checks, tokens.HealthCheck)
	}
	return &generation{
		tokens: tokencache.New(authenticator.WrapAudienceAgnosticToken(p.audiences, tokenunion.New(known...)), false, providerCacheTTL, 0),
		healthy: func() error {
			errs := make([]error, 0, len(checks))
			for _, check := range checks {
				errs = append(errs, check())
			}
			return errors.Join(errs...)
		},
		end: cancel,
	}, nil
}
