// Package issuers authenticates tokens of OIDC issuers that tenants configure in
// WorkspaceAuthenticationConfigurations. The number of issuers is not limited, and they may be unreachable,
// slow or malicious, but must not delay the tokens of others.
//
//	token ─► its iss, not verified yet ─► the entries with that issuer, and no others
//	           entry (digest of all of it) ─► provider: compiled rules   ┐ created on first use,
//	           its issuer, CA (digest)     ─► keys: fetched and renewed  ┘ dropped when unused
//
// Each logical cluster has limits: the requests that wait for its issuers, and concurrent fetches. Only one of its
// tokens is verified at a time, because rules may be long and keys large.
package issuers

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

const (
	// waitTimeout limits the time that a token waits for the keys of its issuer, and for its turn.
	waitTimeout = 3 * time.Second
	// maxWaiting and maxWaitingEach limit the concurrent tokens, in total and with issuers of one logical cluster.
	//
	//reference:limit server | concurrent tokens of issuers of workspaces | 401
	//reference:limit cluster | concurrent tokens of its issuers | 401
	maxWaiting, maxWaitingEach = 512, 64
	//reference:limit request | token of an issuer of a workspace: size | 401
	maxTokenBytes = 64 << 10
	// Up to maxRemembered valid tokens are cached for rememberFor.
	rememberFor = 10 * time.Second
	//reference:none
	maxRemembered = 4096
	// maxUserBytes limits the attributes of a user, and rememberedBytes the attributes of a cached
	// user.
	//
	//reference:limit request | token of an issuer of a workspace: size of the attributes of the user | 401
	maxUserBytes    = 64 << 10
	rememberedBytes = 16 << 10
	// maxFaults is the number of faults that wait to be reported. Each fault is reported at most once per reportedFor.
	//
	//reference:none
	maxFaults = 64
	//reference:none
	maxReported = 4096
	reportedFor = 10 * time.Minute
)

// Configuration is a WorkspaceAuthenticationConfiguration.
type Configuration = tenancyv1alpha1.WorkspaceAuthenticationConfiguration

// Component and reason of Events about configurations.
const (
	Component = "workspace-authentication"
	Reason    = "IssuerFailed"
)

// Reference returns the involved object of Events about a configuration or a replica of it.
func Reference(of *Configuration) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: tenancyv1alpha1.SchemeGroupVersion.String(), Kind: "WorkspaceAuthenticationConfiguration", Name: of.Name,
		UID: cmp.Or(types.UID(of.Annotations[request.OriginalUIDAnnotation]), of.UID),
	}
}

// Config configures New.
type Config struct {
	// Documents reads the documents of issuers.
	Documents *webhooktransport.Documents
	// Disallowed are issuers that tenants must not configure, i.e. the issuers of service account
	// tokens.
	Disallowed []string
	// Report reports a fault to the tenant; may be nil. It is called for one fault at a time.
	Report func(ctx context.Context, of *Configuration, fault string) error
}

// Issuers authenticates tokens of the configured issuers. It is safe for concurrent use.
type Issuers struct {
	config  Config
	waiting *slots
	fetcher *fetcher
	// remembered contains immutable responses by the digests of entry and token.
	remembered *cache.LRUExpireCache
	reported   *cache.LRUExpireCache
	faults     chan fault

	mu        sync.Mutex
	providers map[digest]*provider
	keys      map[digest]*keySet
}

type digest [sha256.Size]byte

type fault struct {
	of   *Configuration
	text string
}

// NewIssuers returns Issuers that work until Run ends.
func NewIssuers(config Config) *Issuers {
	return &Issuers{
		config: config, waiting: newSlots(maxWaiting, maxWaitingEach), fetcher: newFetcher(config.Documents),
		remembered: cache.NewLRUExpireCache(maxRemembered), reported: cache.NewLRUExpireCache(maxReported), faults: make(chan fault, maxFaults),
		providers: map[digest]*provider{}, keys: map[digest]*keySet{},
	}
}

// Run reports faults until ctx ends, and then waits until no issuer is contacted any more.
func (i *Issuers) Run(ctx context.Context) {
	for {
		select {
		case f := <-i.faults:
			if err := i.config.Report(ctx, f.of, f.text); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).V(2).Info("Failed to report the fault of an issuer", "configuration", klog.KObj(f.of), "logicalCluster", logicalcluster.From(f.of), "fault", f.text, "err", err)
			}
		case <-ctx.Done():
			i.fetcher.stop()
			return
		}
	}
}

// AuthenticateToken authenticates a token by the configurations of one logical cluster. If none of them has
// the issuer of the token, no issuer is contacted. Tenants control the attributes of the response, so the
// caller must confine the user to the logical cluster.
func (i *Issuers) AuthenticateToken(ctx context.Context, configurations []*Configuration, token string) (*authenticator.Response, bool, error) {
	claims, err := unverified(token)
	if err != nil {
		return nil, false, nil // not a JWT
	}
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	var errs []error
	sum := sha256.Sum256([]byte(token))
	for _, c := range configurations {
		for n := range c.Spec.JWT {
			entry := &c.Spec.JWT[n]
			if entry.Issuer.URL != claims.issuer {
				continue
			}
			if claims.distributed {
				return nil, false, errors.New("the token has distributed claims, which are not supported: configure the issuer to include the claims in the token")
			}
			response, ok, err := i.authenticate(ctx, c, entry, token, sum)
			if ok && err == nil {
				return response, true, nil
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("WorkspaceAuthenticationConfiguration %s, spec.jwt[%d]: %w", c.Name, n, err))
			}
		}
	}
	return nil, false, errors.Join(errs...)
}

func (i *Issuers) authenticate(ctx context.Context, c *Configuration, entry *tenancyv1alpha1.JWTAuthenticator, token string, sum digest) (*authenticator.Response, bool, error) {
	key := [2]digest{digestOf(entry), sum}
	if known, ok := i.remembered.Get(key); ok {
		response, _ := known.(*authenticator.Response)
		return response, true, nil
	}
	cluster := logicalcluster.From(c)
	home := i.waiting.take(cluster)
	if home == nil {
		return nil, false, errTooManyTokens
	}
	defer i.waiting.give(cluster)
	response, ok, err := i.provider(key[0], cluster, entry).authenticate(ctx, home, token)
	if err != nil {
		if f, ok := errors.AsType[*faultError](err); ok {
			i.report(c, f)
		}
		return nil, false, err
	}
	if !ok {
		return nil, false, nil
	}
	switch bytes := size(response.User); {
	case bytes > maxUserBytes:
		return nil, false, fmt.Errorf("the name, groups and attributes of the user have %d bytes, at most %d allowed", bytes, maxUserBytes)
	case bytes <= rememberedBytes:
		i.remembered.Add(key, response, rememberFor)
	}
	return response, true, nil
}

// size returns the size of the attributes of a user in bytes.
func size(u user.Info) int {
	bytes := len(u.GetName()) + len(u.GetUID())
	for _, group := range u.GetGroups() {
		bytes += len(group)
	}
	for key, values := range u.GetExtra() {
		bytes += len(key)
		for _, value := range values {
			bytes += len(value)
		}
	}
	return bytes
}

func (i *Issuers) provider(of digest, home logicalcluster.Name, entry *tenancyv1alpha1.JWTAuthenticator) *provider {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := time.Now()
	p := i.providers[of]
	if p == nil {
		i.sweep(now, home)
		p = &provider{entry: entry, keys: i.keysOf(home, entry), disallowed: i.config.Disallowed, home: home}
		i.providers[of] = p
	}
	p.used = now
	return p
}

// keysOf returns the keys of an issuer, which entries with other rules share. The lock must be held.
func (i *Issuers) keysOf(home logicalcluster.Name, entry *tenancyv1alpha1.JWTAuthenticator) *keySet {
	issuer := tenancyv1alpha1.Issuer{URL: entry.Issuer.URL, DiscoveryURL: entry.Issuer.DiscoveryURL, CertificateAuthority: entry.Issuer.CertificateAuthority}
	of := digestOf(issuer)
	k := i.keys[of]
	if k == nil {
		k = &keySet{issuer: issuer, home: home, from: i.fetcher}
		if issuer.CertificateAuthority != "" {
			k.roots = x509.NewCertPool()
			k.roots.AppendCertsFromPEM([]byte(issuer.CertificateAuthority)) // the provider reports errors
		}
		i.keys[of] = k
	}
	return k
}

// sweep drops unused providers to free capacity for one of a logical cluster. If the logical cluster has
// reached its maximum, its least recently used provider is dropped. If the total is reached, a provider
// of the logical cluster with the most providers is dropped. The lock must be held.
func (i *Issuers) sweep(now time.Time, home logicalcluster.Name) {
	homes := map[logicalcluster.Name]int{}
	most := home
	for of, p := range i.providers {
		if now.Sub(p.used) > idleTimeout {
			delete(i.providers, of)
			continue
		}
		if homes[p.home]++; homes[p.home] > homes[most] {
			most = p.home
		}
	}
	ends := homes[home] >= maxProvidersEach
	if ends {
		most = home
	}
	if ends || len(i.providers) >= maxProviders {
		var oldest digest
		for of, p := range i.providers {
			if p.home == most && (i.providers[oldest] == nil || p.used.Before(i.providers[oldest].used)) {
				oldest = of
			}
		}
		delete(i.providers, oldest)
	}
	used := map[*keySet]bool{}
	for _, p := range i.providers {
		used[p.keys] = true
	}
	for of, k := range i.keys {
		if !used[k] {
			delete(i.keys, of)
		}
	}
}

// report queues a fault, unless it was reported recently or the queue is full.
func (i *Issuers) report(c *Configuration, err error) {
	if i.config.Report == nil {
		return
	}
	key := string(c.UID) + " " + err.Error()
	if _, reported := i.reported.Get(key); reported {
		return
	}
	select {
	case i.faults <- fault{c, err.Error()}:
		i.reported.Add(key, struct{}{}, reportedFor)
	default:
	}
}

func digestOf(of any) digest {
	text, err := json.Marshal(of)
	if err != nil {
		panic(err) // it was decoded from JSON
	}
	return sha256.Sum256(text)
}

// IsToken reports whether a token may be of an issuer.
func IsToken(token string) bool {
	_, err := unverified(token)
	return err == nil
}

// claims are unverified claims of a token.
type claims struct {
	issuer string
	// distributed is true if the token refers to claims on other servers.
	distributed bool
}

// unverified reads the claims of a token without verifying it.
func unverified(token string) (claims, error) {
	if len(token) > maxTokenBytes {
		return claims{}, errors.New("the token is too long")
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return claims{}, errors.New("the token is not a JWT")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return claims{}, err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(payload, &all); err != nil {
		return claims{}, err
	}
	var c claims
	if err := json.Unmarshal(all["iss"], &c.issuer); err != nil {
		return claims{}, err
	}
	if c.issuer == "accounts.google.com" {
		c.issuer = "https://accounts.google.com" // as in the OIDC library
	}
	_, names := all["_claim_names"]
	_, sources := all["_claim_sources"]
	c.distributed = names || sources
	return c, nil
}

// latency is the metric of the OIDC library that has a label for the issuer.
const latency = "apiserver_authentication_jwt_authenticator_latency_seconds"

// BoundSeries reserves metric series for the issuers of the operator. The issuers of tenants, whose number is
// not limited, share the series "unexpected". It must be called before tokens are authenticated. It is global
// to the process, and later calls have no effect.
func BoundSeries(operators []string) {
	bound.Do(func() {
		labels := []string{""}
		for _, url := range operators {
			labels = append(labels, fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(url))))
		}
		metrics.SetLabelAllowList(map[string]string{latency + ",jwt_issuer_hash": strings.Join(labels, ",")})
	})
}

var bound sync.Once
