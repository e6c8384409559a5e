package authn

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
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
	"k8s.io/apiserver/pkg/util/filesystem"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/instruments"
)

const (
	// providerCacheTTL is the lifetime of a verified token in the cache, as in kube-apiserver.
	providerCacheTTL = 10 * time.Second
	// providerTimeout limits the time until the issuers of a new configuration respond. Then the old one remains in use.
	providerTimeout = 30 * time.Second
	providerPoll    = 50 * time.Millisecond
)

// configurations decodes AuthenticationConfigurations strictly.
var configurations = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict)
}()

// providers authenticates tokens of the OIDC issuers in a file. A changed configuration is used once all its
// issuers have responded; an invalid one is ignored.
type providers struct {
	file       string
	disallowed []string
	audiences  authenticator.Audiences
	compiler   authenticationcel.Compiler

	watched *watchedFiles
	initial *apiserver.AuthenticationConfiguration
	current atomic.Pointer[generation]
	// previous may still be used by requests in flight.
	previous *generation
}

// generation authenticates tokens by one version of the configuration.
type generation struct {
	tokens authenticator.Token
	// healthy returns an error if an issuer has not responded yet.
	healthy func() error
	end     context.CancelFunc
}

// newProviders reads the file without contacting issuers.
func newProviders(file string, disallowed []string, audiences authenticator.Audiences, reloads *prometheus.CounterVec) (*providers, error) {
	p := &providers{file: file, disallowed: disallowed, audiences: audiences, compiler: authenticationcel.NewDefaultCompiler()}
	p.watched = newWatchedFiles("authentication-config", []string{file}, reloads, p.load)
	var err error
	p.initial, err = p.read()
	return p, err
}

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
		klog.FromContext(ctx).Error(err, "Failed to start OIDC authentication, rejecting all tokens of OIDC issuers", "file", p.file)
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

// load replaces the configuration by the content of the file after all its issuers have responded.
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
		return fmt.Errorf("not all issuers of the new configuration respond, %w: %w", errRetryLater, errors.Join(unhealthy, err))
	}
	if p.previous != nil {
		p.previous.end()
	}
	p.previous = p.current.Swap(next)
	return nil
}

func (p *providers) read() (*apiserver.AuthenticationConfiguration, error) {
	content, err := os.ReadFile(p.file)
	if err != nil {
		return nil, err
	}
	if len(strings.TrimSpace(string(content))) == 0 {
		return nil, fmt.Errorf("%s is empty: it must contain an AuthenticationConfiguration of apiserver.config.k8s.io/v1", p.file)
	}
	obj, err := runtime.Decode(configurations.UniversalDecoder(), content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.file, err)
	}
	config, ok := obj.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("%s contains a %T instead of an AuthenticationConfiguration", p.file, obj)
	}
	if err := validation.ValidateAuthenticationConfiguration(p.compiler, config, p.disallowed).ToAggregate(); err != nil {
		return nil, fmt.Errorf("%s: %w", p.file, err)
	}
	if err := checkReserved(config); err != nil {
		return nil, fmt.Errorf("%s: %w", p.file, err)
	}
	return config, nil
}

// checkReserved rejects configuration of settings that are fixed here.
func checkReserved(config *apiserver.AuthenticationConfiguration) error {
	if config.Anonymous != nil {
		return errors.New("anonymous must not be set, because anonymous requests are accepted for health probes only")
	}
	for i, provider := range config.JWT {
		for _, extra := range provider.ClaimMappings.Extra {
			if isReservedExtra(extra.Key) {
				return fmt.Errorf("jwt[%d].claimMappings.extra: the key %q is reserved because servers use it for authorization", i, extra.Key)
			}
		}
	}
	return nil
}

// ownDomain is the domain of extra attributes that servers use for authorization.
const ownDomain = "kcp.io"

// isReservedExtra reports whether servers use an extra attribute for authorization.
func isReservedExtra(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return domain == ownDomain || strings.HasSuffix(domain, "."+ownDomain)
}

// build starts to contact the issuers. It ends with ctx or with generation.end.
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

// pollInterval is the interval at which files are checked without a notification, as in kube-apiserver.
const pollInterval = time.Minute

// errRetryLater is wrapped by errors after which the same content is loaded again.
var errRetryLater = errors.New("retrying within a minute")

// watchedFiles calls load when the content of files has changed. If load fails, the error is logged and
// counted, and the previous content remains in use.
type watchedFiles struct {
	name    string
	files   []string
	load    func(ctx context.Context) error
	reloads *prometheus.CounterVec

	mu   sync.Mutex
	seen [sha256.Size]byte
}

// newWatchedFiles assumes that the current content is loaded.
func newWatchedFiles(name string, files []string, reloads *prometheus.CounterVec, load func(ctx context.Context) error) *watchedFiles {
	return &watchedFiles{name: name, files: files, load: load, reloads: reloads, seen: digest(files)}
}

func (w *watchedFiles) run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, file := range w.files {
		wg.Go(func() { filesystem.WatchUntil(ctx, pollInterval, file, func() { w.check(ctx) }, nil) })
	}
	wg.Wait()
}

func (w *watchedFiles) check(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := digest(w.files)
	if now == w.seen {
		return
	}
	w.seen = now
	logger := klog.FromContext(ctx).WithValues("what", w.name, "files", w.files)
	err := w.load(ctx)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		if errors.Is(err, errRetryLater) {
			w.seen = [sha256.Size]byte{}
		}
		w.reloads.WithLabelValues(w.name, "failure").Inc()
		logger.Error(err, "Failed to reload a file for authentication, using the previous content")
	default:
		w.reloads.WithLabelValues(w.name, "success").Inc()
		logger.Info("Reloaded a file for authentication")
	}
}

// digest identifies the content of files. A file that cannot be read differs from any that can.
func digest(files []string) (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, file := range files {
		content, err := os.ReadFile(file)
		_, _ = fmt.Fprintf(h, "%d %t ", len(content), err == nil)
		_, _ = h.Write(content)
	}
	h.Sum(sum[:0])
	return sum
}

func newReloads(registerer prometheus.Registerer) *prometheus.CounterVec {
	return instruments.NewCounterVec(registerer, "shardplane_authentication_reloads_total",
		"Reloads of changed authentication files, by content and result (success or failure). After a failure, the previous content remains in use.", "what", "result")
}
