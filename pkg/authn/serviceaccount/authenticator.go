// Package serviceaccount issues and authenticates tokens of service accounts. A token names the logical
// cluster of its account, and is valid while the objects that it is bound to exist there.
//
//	Issuer ─► token ─► Authenticator: signature, issuer, time, audience
//	                        └► Accounts: do account and secret still exist?
//
// The claims are those of kcp: the claims of Kubernetes and clusterName.
package serviceaccount

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"golang.org/x/sync/singleflight"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	apiserverserviceaccount "k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/lru"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/request"
)

// deletionGracePeriod is the time for which a token remains valid after the deletion timestamp of its objects.
const deletionGracePeriod = time.Minute

// Config configures NewAuthenticator.
type Config struct {
	// Issuers are the accepted iss claims of requested tokens.
	Issuers []string
	// KeyFiles are PEM files of the keys that may have signed tokens.
	KeyFiles []string
	// Audiences are the audiences of this API. A token must have one of them.
	Audiences authenticator.Audiences
	Accounts  Accounts
}

// Authenticator authenticates tokens of service accounts. It is safe for concurrent use.
type Authenticator struct {
	config Config
	keys   atomic.Pointer[keyring]
}

const (
	// rememberAtMost limits the number of cached tokens; each takes about 2 KB.
	rememberAtMost = 4096
	// longestRemembered limits the size of cached tokens, because clients can request long audiences.
	longestRemembered = 4096
)

// keyring contains the keys, and caches valid signatures. Time and bound objects are checked for each request.
type keyring struct {
	keys   []verificationKey
	signed *lru.Cache // of [sha256.Size]byte to *signedClaims
}

// signedClaims are the claims of a token with a valid signature.
type signedClaims struct {
	legacy bool
	public jwt.Claims
	bound  boundClaims
	old    legacyClaims
}

// NewAuthenticator returns an Authenticator. It reads the key files.
func NewAuthenticator(config Config) (*Authenticator, error) {
	a := &Authenticator{config: config}
	err := a.Reload()
	return a, err
}

// Reload reads the key files again. If that fails, the old keys remain in use.
func (a *Authenticator) Reload() error {
	keys, err := loadVerificationKeys(a.config.KeyFiles)
	if err != nil {
		return err
	}
	a.keys.Store(&keyring{keys: keys, signed: lru.New(rememberAtMost)})
	return nil
}

// AuthenticateToken implements authenticator.Token. It ignores tokens of other issuers.
func (a *Authenticator) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	claims, err := a.signed(token)
	if claims == nil || err != nil {
		return nil, false, err
	}
	audiences, err := a.audiences(ctx, claims.public.Audience, claims.legacy)
	if err != nil {
		return nil, false, err
	}
	var info *account
	if claims.legacy {
		info, err = a.checkLegacy(ctx, token, &claims.public, &claims.old)
	} else {
		info, err = a.checkBound(ctx, &claims.public, &claims.bound.Kubernetes)
	}
	if err != nil {
		return nil, false, err
	}
	u := info.UserInfo()
	extra := map[string][]string{request.ExtraClusterName: {info.cluster.String()}}
	maps.Copy(extra, u.GetExtra())
	return &authenticator.Response{
		User:      &user.DefaultInfo{Name: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: extra},
		Audiences: audiences,
	}, true, nil
}

// signed returns the claims of a token whose signature is valid, or nil for tokens of other issuers.
func (a *Authenticator) signed(token string) (*signedClaims, error) {
	ring := a.keys.Load()
	id := sha256.Sum256([]byte(token))
	if known, ok := ring.signed.Get(id); ok {
		return known.(*signedClaims), nil
	}
	claimed, parsed, err := unverified(token)
	if err != nil {
		return nil, nil //nolint:nilerr,nilnil // another authenticator may accept it
	}
	claims := &signedClaims{legacy: claimed.Issuer == LegacyIssuer}
	if !claims.legacy && !slices.Contains(a.config.Issuers, claimed.Issuer) {
		return nil, nil //nolint:nilnil // as documented
	}
	if err := ring.verify(parsed, &claims.public, &claims.bound, &claims.old); err != nil {
		return nil, err
	}
	if _, ok := claimed.cluster(); !ok {
		return nil, errors.New("the token must name exactly one logical cluster")
	}
	if len(token) <= longestRemembered {
		ring.signed.Add(id, claims)
	}
	return claims, nil
}

func (r *keyring) verify(token *jwt.JSONWebToken, into ...any) error {
	if len(token.Headers) != 1 {
		return errors.New("the token must have one signature")
	}
	header := token.Headers[0]
	for _, key := range r.keys {
		if header.Algorithm != string(key.algorithm) || header.KeyID != "" && header.KeyID != key.id {
			continue
		}
		if err := token.Claims(key.public, into...); err == nil {
			return nil
		}
	}
	return errors.New("the token's signature does not match any known key")
}

// audiences returns the wanted audiences that the token has.
func (a *Authenticator) audiences(ctx context.Context, of jwt.Audience, legacy bool) (authenticator.Audiences, error) {
	wanted, ok := authenticator.AudiencesFrom(ctx)
	if !ok {
		wanted = a.config.Audiences
	}
	has := authenticator.Audiences(of)
	if legacy && len(has) == 0 {
		has = a.config.Audiences
	}
	fit := has.Intersect(wanted)
	if len(fit) == 0 {
		return nil, fmt.Errorf("token audiences %q is invalid for the target audiences %q", []string(has), []string(wanted))
	}
	return fit, nil
}

type account struct {
	apiserverserviceaccount.ServiceAccountInfo
	cluster logicalcluster.Name
}

func (a *Authenticator) checkBound(ctx context.Context, public *jwt.Claims, claim *kubernetesClaim) (*account, error) {
	now := time.Now()
	if public.Expiry == nil {
		return nil, errors.New("the token has no expiration time")
	}
	if err := public.ValidateWithLeeway(jwt.Expected{Time: now}, 0); err != nil {
		// The clocks of servers differ. Only the expiration is exact.
		if !errors.Is(err, jwt.ErrNotValidYet) && !errors.Is(err, jwt.ErrIssuedInTheFuture) {
			return nil, err
		}
		if err := public.ValidateWithLeeway(jwt.Expected{Time: now}, jwt.DefaultLeeway); err != nil {
			return nil, err
		}
	}
	if claim.Pod != nil || claim.Node != nil {
		return nil, errors.New("the token is bound to a pod or node, which are not supported")
	}
	info := &account{cluster: claim.ClusterName}
	info.Namespace, info.Name, info.UID = claim.Namespace, claim.ServiceAccount.Name, claim.ServiceAccount.UID
	if public.ID != "" {
		info.CredentialID = "JTI=" + public.ID
	}
	if err := a.checkAccount(ctx, info, public.Subject); err != nil {
		return nil, err
	}
	if claim.Secret != nil {
		if _, err := a.secret(ctx, info, claim.Secret.Name, &claim.Secret.UID); err != nil {
			return nil, err
		}
	}
	return info, nil
}

func (a *Authenticator) checkLegacy(ctx context.Context, token string, public *jwt.Claims, claim *legacyClaims) (*account, error) {
	info := &account{cluster: claim.ClusterName}
	info.Namespace, info.Name, info.UID = claim.Namespace, claim.ServiceAccountName, claim.ServiceAccountUID
	if claim.SecretName == "" {
		return nil, errors.New("the token does not name its secret")
	}
	if err := a.checkAccount(ctx, info, public.Subject); err != nil {
		return nil, err
	}
	secret, err := a.secret(ctx, info, claim.SecretName, nil)
	if err != nil {
		return nil, err
	}
	if secret.Type != corev1.SecretTypeServiceAccountToken ||
		subtle.ConstantTimeCompare(secret.Data[corev1.ServiceAccountTokenKey], []byte(token)) != 1 {
		return nil, errors.New("the token does not match its secret")
	}
	return info, nil
}

// checkAccount checks that the claims name an existing account.
func (a *Authenticator) checkAccount(ctx context.Context, info *account, subject string) error {
	if info.cluster == "" {
		return errors.New("the token does not name a logical cluster in the claim of its kind")
	}
	if info.Namespace == "" || info.Name == "" || info.UID == "" {
		return errors.New("the token does not name a service account")
	}
	if subject != apiserverserviceaccount.MakeUsername(info.Namespace, info.Name) {
		return errors.New("the token's subject does not match its service account")
	}
	found, err := a.config.Accounts.ServiceAccount(ctx, info.cluster, info.Namespace, info.Name)
	return checkExists("service account", found, err, &info.UID)
}

// secret returns a secret of an account. Legacy tokens do not contain its UID, but are in the secret.
func (a *Authenticator) secret(ctx context.Context, of *account, name string, uid *string) (*corev1.Secret, error) {
	secret, err := a.config.Accounts.Secret(ctx, of.cluster, of.Namespace, name)
	return secret, checkExists("secret", secret, err, uid)
}

// checkExists checks that an object was found without an error, has the UID in the token, if any, and is not deleted.
func checkExists(kind string, object metav1.Object, err error, uid *string) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("the token has been invalidated: its %s does not exist", kind)
	}
	if err != nil {
		return fmt.Errorf("looking up the token's %s: %w", kind, err)
	}
	if uid != nil && string(object.GetUID()) != *uid {
		return fmt.Errorf("the token's %s has been deleted and recreated", kind)
	}
	if deleted := object.GetDeletionTimestamp(); deleted != nil && time.Since(deleted.Time) > deletionGracePeriod {
		return fmt.Errorf("the token's %s has been deleted", kind)
	}
	return nil
}

const (
	// remoteTTL is the lifetime of cached responses, and limits the time for which a token outlives its account.
	remoteTTL     = 2 * time.Second
	remoteTimeout = 5 * time.Second
)

// Where returns the shards that may have a logical cluster. all reports whether no other shard can
// have it.
type Where func(cluster logicalcluster.Name) (shards []*peers.Peer, all bool)

// Remote looks up and caches the accounts of tokens with a valid signature on the shards of their logical clusters.
type Remote struct {
	where  Where
	known  *cache.Expiring
	flight singleflight.Group
}

// NewRemote returns a Remote.
func NewRemote(where Where) *Remote {
	return &Remote{where: where, known: cache.NewExpiring()}
}

// ServiceAccount implements Accounts.
func (r *Remote) ServiceAccount(ctx context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.ServiceAccount, error) {
	return remember(ctx, r, kinds.ServiceAccounts, client.Key{Cluster: cluster, Namespace: namespace, Name: name})
}

// Secret implements Accounts.
func (r *Remote) Secret(ctx context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.Secret, error) {
	return remember(ctx, r, kinds.Secrets, client.Key{Cluster: cluster, Namespace: namespace, Name: name})
}

// lookup is the result of a request: an object or an error.
type lookup[T any] struct {
	object T
	err    error
}

// remember returns a cached result or sends a request. Other errors are not cached.
func remember[T client.Object, L runtime.Object](ctx context.Context, r *Remote, kind client.Resource[T, L], of client.Key) (T, error) {
	key := kind.Resource + " " + of.String()
	known, ok := r.known.Get(key)
	if !ok {
		known, _, _ = r.flight.Do(key, func() (any, error) {
			// The result is shared by several requests.
			object, err := lookUp(context.WithoutCancel(ctx), r.where, kind, of)
			a := lookup[T]{object: object, err: err}
			if err == nil || apierrors.IsNotFound(err) {
				r.known.Set(key, a, remoteTTL)
			}
			return a, nil
		})
	}
	a := known.(lookup[T])
	return a.object, a.err
}

// lookUp sends the request to all shards. NotFound is returned only after all have returned it.
func lookUp[T client.Object, L runtime.Object](ctx context.Context, where Where, kind client.Resource[T, L], of client.Key) (none T, err error) {
	shards, all := where(of.Cluster)
	var requests sync.WaitGroup
	defer requests.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lookups := make(chan lookup[T], len(shards))
	for _, shard := range shards {
		requests.Go(func() {
			var a lookup[T]
			a.err = shard.Do(ctx, remoteTimeout, func(ctx context.Context) (err error) {
				a.object, err = kind.InNamespace(shard.Clients.Cluster(of.Cluster.Path()), of.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
				return err
			})
			lookups <- a
		})
	}
	missing := error(apierrors.NewNotFound(corev1.Resource("logicalclusters"), of.Cluster.String()))
	var failed error
	if !all {
		failed = errors.New("not all shards are known yet, try again")
	}
	for range shards {
		switch a := <-lookups; {
		case a.err == nil:
			return a.object, nil
		case apierrors.IsNotFound(a.err):
			missing = a.err
		default:
			failed = errors.Join(failed, a.err)
		}
	}
	if failed != nil {
		return none, failed
	}
	return none, missing
}

// Accounts looks up the objects that tokens are bound to, on any shard, or returns a NotFound status error.
type Accounts interface {
	ServiceAccount(ctx context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.ServiceAccount, error)
	Secret(ctx context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.Secret, error)
}
