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
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

const (
	// waitTimeout is how long a token waits for the keys of its issuer, and for its turn.
	waitTimeout = 3 * time.Second
	// maxWaiting and maxWaitingEach bound the tokens that are looked at, in all and with
	// issuers of one logical cluster.
	maxWaiting, maxWaitingEach = 512, 64
	// maxTokenBytes is how long a token of a tenant's issuer may be.
	maxTokenBytes = 64 << 10
	// rememberFor is how long a token that was good is not looked at again, and maxRemembered
	// of how many that is remembered.
	rememberFor   = 10 * time.Second
	maxRemembered = 4096
	// maxUserBytes is how much may be said of a user, and rememberedBytes of one to remember.
	maxUserBytes    = 64 << 10
	rememberedBytes = 16 << 10
	// maxFaults is how many faults wait to be told, and toldFor how long none is told again.
	maxFaults = 64
	maxTold   = 4096
	toldFor   = 10 * time.Minute
)

// Configuration is what a WorkspaceAuthenticationConfiguration object says.
type Configuration = tenancyv1alpha1.WorkspaceAuthenticationConfiguration

// Events about configurations have this component and reason.
const (
	Component = "workspace-authentication"
	Reason    = "IssuerFailed"
)

// Reference returns what Events about a configuration refer to, of a replica of it too.
func Reference(of *Configuration) corev1.ObjectReference {
	return corev1.ObjectReference{
		APIVersion: tenancyv1alpha1.SchemeGroupVersion.String(), Kind: "WorkspaceAuthenticationConfiguration", Name: of.Name,
		UID: cmp.Or(types.UID(of.Annotations[request.OriginalUIDAnnotation]), of.UID),
	}
}

// Config is what Issuers are made of.
type Config struct {
	// Documents reads what issuers publish.
	Documents *webhooktransport.Documents
	// Disallowed are issuers that no tenant may name: those of service accounts.
	Disallowed []string
	// Tell has those know of a fault who can mend it; nil tells nobody. It is called for one
	// fault at a time, and not again soon for the same one.
	Report func(ctx context.Context, of *Configuration, fault string) error
}

// Issuers knows the tokens of the issuers that configurations name. It is safe for concurrent
// use.
type Issuers struct {
	config   Config
	compiler func() authenticationcel.Compiler
	waiting  *places
	fetcher  *fetcher
	// remembered has responses that nobody may change.
	remembered *cache.LRUExpireCache
	told       *cache.LRUExpireCache
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

// remembering is a token, of an entry.
type remembering struct{ entry, token digest }

// New returns Issuers that work until Run ends.
func New(config Config) *Issuers {
	return &Issuers{
		config: config, compiler: sync.OnceValue(authenticationcel.NewDefaultCompiler),
		waiting: newPlaces(maxWaiting, maxWaitingEach), fetcher: newFetcher(config.Documents),
		remembered: cache.NewLRUExpireCache(maxRemembered), told: cache.NewLRUExpireCache(maxTold), faults: make(chan fault, maxFaults),
		providers: map[digest]*provider{}, keys: map[digest]*keySet{},
	}
}

// Run tells of faults until ctx is done, and returns when no issuer is being asked any more.
func (i *Issuers) Run(ctx context.Context) {
	for {
		select {
		case f := <-i.faults:
			if err := i.config.Report(ctx, f.of, f.text); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).V(2).Info("Nobody could be told of a fault of an issuer", "configuration", klog.KObj(f.of), "cluster", logicalcluster.From(f.of), "fault", f.text, "err", err)
			}
		case <-ctx.Done():
			i.fetcher.stop()
			return
		}
	}
}

// AuthenticateToken returns whose a token is, by the configurations of one logical cluster.
// Where its issuer is in none of them, it is nobody's, and nobody is asked. What the response
// says, tenants have said: see that it means nobody else.
func (i *Issuers) AuthenticateToken(ctx context.Context, configurations []*Configuration, token string) (*authenticator.Response, bool, error) {
	claims, err := unverified(token)
	if err != nil {
		return nil, false, nil // it is no token of an issuer
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
				return nil, false, errors.New("the token has distributed claims, which are not asked for: let the issuer put the claims into the token")
			}
			response, ok, err := i.ask(ctx, c, entry, token, sum)
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

// ask asks the provider of an entry.
func (i *Issuers) ask(ctx context.Context, c *Configuration, entry *tenancyv1alpha1.JWTAuthenticator, token string, sum digest) (*authenticator.Response, bool, error) {
	key := remembering{digestOf(entry), sum}
	if known, ok := i.remembered.Get(key); ok {
		response, _ := known.(*authenticator.Response)
		return response, true, nil
	}
	cluster := logicalcluster.From(c)
	home := i.waiting.take(cluster)
	if home == nil {
		return nil, false, errCrowded
	}
	defer i.waiting.give(cluster)
	response, ok, err := i.provider(key.entry, cluster, entry).authenticate(ctx, home, token)
	if err != nil {
		if f, ok := errors.AsType[*faultError](err); ok {
			i.tell(c, f)
		}
		return nil, false, err
	}
	if !ok {
		return nil, false, nil
	}
	switch bytes := size(response.User); {
	case bytes > maxUserBytes:
		return nil, false, fmt.Errorf("the name, groups and attributes of the user have %d bytes and may have %d", bytes, maxUserBytes)
	case bytes <= rememberedBytes:
		i.remembered.Add(key, response, rememberFor)
	}
	return response, true, nil
}

// size returns how much is said of a user.
func size(who user.Info) int {
	bytes := len(who.GetName()) + len(who.GetUID())
	for _, group := range who.GetGroups() {
		bytes += len(group)
	}
	for key, values := range who.GetExtra() {
		bytes += len(key)
		for _, value := range values {
			bytes += len(value)
		}
	}
	return bytes
}

// provider returns the provider of an entry, made if there is none.
func (i *Issuers) provider(of digest, home logicalcluster.Name, entry *tenancyv1alpha1.JWTAuthenticator) *provider {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := time.Now()
	p := i.providers[of]
	if p == nil {
		i.sweep(now, home)
		p = &provider{entry: entry, keys: i.keysOf(home, entry), compiler: i.compiler, disallowed: i.config.Disallowed, home: home}
		i.providers[of] = p
	}
	p.used = now
	return p
}

// keysOf returns the keys of an entry's issuer. Entries that differ in their rules only share
// them. The caller holds the lock.
func (i *Issuers) keysOf(home logicalcluster.Name, entry *tenancyv1alpha1.JWTAuthenticator) *keySet {
	issuer := tenancyv1alpha1.Issuer{URL: entry.Issuer.URL, DiscoveryURL: entry.Issuer.DiscoveryURL, CertificateAuthority: entry.Issuer.CertificateAuthority}
	of := digestOf(issuer)
	k := i.keys[of]
	if k == nil {
		k = &keySet{issuer: issuer, home: home, from: i.fetcher}
		if issuer.CertificateAuthority != "" {
			k.roots = x509.NewCertPool()
			k.roots.AppendCertsFromPEM([]byte(issuer.CertificateAuthority)) // the provider says what is wrong with it
		}
		i.keys[of] = k
	}
	return k
}

// sweep ends providers that rest, and makes room for one of a logical cluster: where that has as
// many as it may, the one of them that has rested most goes, and where there are too many, that of
// the logical cluster that has most. The caller holds the lock.
func (i *Issuers) sweep(now time.Time, home logicalcluster.Name) {
	homes := map[logicalcluster.Name]int{}
	most := home
	for of, p := range i.providers {
		if now.Sub(p.used) > restFor {
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
		var eldest digest
		for of, p := range i.providers {
			if p.home == most && (i.providers[eldest] == nil || p.used.Before(i.providers[eldest].used)) {
				eldest = of
			}
		}
		delete(i.providers, eldest)
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

// tell has a fault told, unless it has been lately, or too many are to be told.
func (i *Issuers) tell(c *Configuration, err error) {
	if i.config.Report == nil {
		return
	}
	key := string(c.UID) + " " + err.Error()
	if _, told := i.told.Get(key); told {
		return
	}
	select {
	case i.faults <- fault{c, err.Error()}:
		i.told.Add(key, struct{}{}, toldFor)
	default:
	}
}

// digestOf identifies what is encoded alike.
func digestOf(of any) digest {
	text, err := json.Marshal(of)
	if err != nil {
		panic(err) // it has come as JSON
	}
	return sha256.Sum256(text)
}

// IsToken reports whether a token may be of an issuer.
func IsToken(token string) bool {
	_, err := unverified(token)
	return err == nil
}

// claims is what a token says of itself.
type claims struct {
	issuer string
	// distributed is set if other servers are to be asked for a part of it.
	distributed bool
}

// unverified reads a token without believing it.
func unverified(token string) (claims, error) {
	if len(token) > maxTokenBytes {
		return claims{}, errors.New("the token is too long")
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return claims{}, errors.New("the token is no JWT")
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
		c.issuer = "https://accounts.google.com" // as the library takes it
	}
	_, names := all["_claim_names"]
	_, sources := all["_claim_sources"]
	c.distributed = names || sources
	return c, nil
}
