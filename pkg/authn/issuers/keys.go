package issuers

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	jose "gopkg.in/go-jose/go-jose.v2"

	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

const (
	// fetchTimeout bounds how long an issuer takes to tell its keys.
	fetchTimeout = 10 * time.Second
	// keysLast is how long keys are used before they are fetched again, meanwhile they are
	// used on; it bounds how long a key counts that the issuer has taken back.
	keysLast = 5 * time.Minute
	// leastPause and mostPause bound how soon an issuer is asked again: the first one after
	// an answer, and then twice as long after each failure.
	leastPause = time.Second
	mostPause  = time.Minute
	// maxKeys and maxKeyBits bound what verifying a signature costs, and with maxKeyIDBytes what
	// is kept of an issuer.
	maxKeys       = 50
	maxKeyBits    = 8192
	maxKeyIDBytes = 256
	// maxAsked and maxAskedEach bound the issuers that are asked, in all and of one logical cluster.
	maxAsked, maxAskedEach = 32, 4
)

var (
	errBusy       = errors.New("too many issuers of the logical cluster that configures it are asked at the same time, try again")
	errUnknownKey = errors.New("the token is signed with a key that the issuer does not have")
)

var errStopped = errors.New("the server stops")

// fetcher fetches what issuers publish, in the background, until it is stopped.
type fetcher struct {
	documents *webhooktransport.Documents
	asked     *places
	running   sync.WaitGroup

	mu sync.Mutex
	// life is done when the issuers are not asked any more.
	life context.Context //nolint:containedctx // what is fetched is for all who wait, and outlasts each of them
	end  context.CancelFunc
}

func newFetcher(documents *webhooktransport.Documents) *fetcher {
	f := &fetcher{documents: documents, asked: newPlaces(maxAsked, maxAskedEach)}
	f.life, f.end = context.WithCancel(context.Background()) //nolint:forbidigo // stop ends it
	return f
}

// run runs work in the background, unless the fetcher is stopped.
func (f *fetcher) run(work func(ctx context.Context)) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.life.Err() != nil {
		return false
	}
	f.running.Go(func() { work(f.life) })
	return true
}

// stop returns when no issuer is being asked any more.
func (f *fetcher) stop() {
	f.mu.Lock()
	f.end()
	f.mu.Unlock()
	f.running.Wait()
}

// keySet is the public keys of an issuer. It asks nobody until somebody asks for them.
type keySet struct {
	issuer tenancyv1alpha1.Issuer
	home   logicalcluster.Name
	roots  *x509.CertPool
	from   *fetcher

	mu   sync.Mutex
	keys []jose.JSONWebKey
	// version counts the answers, and loaded is when the last one came.
	version int
	loaded  time.Time
	// err is why the issuer has not answered, after so many failures in succession. Nobody
	// asks it before next.
	err      error
	failures int
	next     time.Time
	// asking is closed when the issuer has answered, or failed to; nil while nobody asks.
	asking chan struct{}
}

// newer waits until there are keys of a later version than the one given, and returns their
// version. It fails where the issuer fails to answer, or is not to be asked again yet.
func (k *keySet) newer(ctx context.Context, version int) (int, error) {
	for {
		k.mu.Lock()
		now := time.Now()
		if k.version > version {
			if now.Sub(k.loaded) > keysLast && now.After(k.next) {
				k.ask()
			}
			defer k.mu.Unlock()
			return k.version, nil
		}
		if k.asking == nil && now.Before(k.next) {
			err := k.err
			if err == nil {
				err = errUnknownKey // the issuer has just been asked
			}
			k.mu.Unlock()
			return version, err
		}
		k.ask()
		asking := k.asking
		k.mu.Unlock()
		select {
		case <-asking:
		case <-ctx.Done():
			return version, fmt.Errorf("the issuer %s has not told its keys in time", k.issuer.URL)
		}
	}
}

// ask has the keys fetched, unless they are being fetched. The caller holds the lock.
func (k *keySet) ask() {
	if k.asking != nil {
		return
	}
	asking := make(chan struct{})
	k.asking = asking
	if !k.from.run(func(ctx context.Context) { k.answer(k.fetch(ctx)) }) {
		k.err, k.next, k.asking = errStopped, time.Now().Add(mostPause), nil
		close(asking)
	}
}

// answer notes what the issuer has answered, for all who wait.
func (k *keySet) answer(keys []jose.JSONWebKey, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, pause := time.Now(), leastPause
	if k.err = err; err == nil {
		k.keys, k.loaded, k.failures = keys, now, 0
		k.version++
	} else if !errors.Is(err, errBusy) {
		pause = min(leastPause<<min(k.failures, 10), mostPause)
		k.failures++
	}
	k.next = now.Add(pause)
	close(k.asking)
	k.asking = nil
}

// fetch asks the issuer for its keys.
func (k *keySet) fetch(ctx context.Context) ([]jose.JSONWebKey, error) {
	if k.from.asked.take(k.home) == nil {
		return nil, errBusy
	}
	defer k.from.asked.give(k.home)
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	at := k.issuer.DiscoveryURL
	if at == "" {
		at = strings.TrimSuffix(k.issuer.URL, "/") + "/.well-known/openid-configuration"
	}
	data, err := k.from.documents.Get(ctx, at, k.roots)
	if err != nil {
		return nil, fmt.Errorf("discovery document %s: %w", at, err)
	}
	var discovery struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if json.Unmarshal(data, &discovery) != nil || discovery.Keys == "" {
		return nil, fmt.Errorf("discovery document %s: it is not the JSON of a document with jwks_uri", at)
	}
	if discovery.Issuer != k.issuer.URL {
		return nil, fmt.Errorf("discovery document %s: it is of another issuer than %s", at, k.issuer.URL)
	}
	if data, err = k.from.documents.Get(ctx, discovery.Keys, k.roots); err != nil {
		return nil, fmt.Errorf("the keys of issuer %s, at jwks_uri: %w", k.issuer.URL, err)
	}
	keys, err := parseKeys(data)
	if err != nil {
		return nil, fmt.Errorf("the keys of issuer %s, at jwks_uri: %w", k.issuer.URL, err)
	}
	return keys, nil
}

// parseKeys returns the keys of a set that signatures can be verified with.
func parseKeys(data []byte) ([]jose.JSONWebKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if json.Unmarshal(data, &set) != nil {
		return nil, errors.New("they are not the JSON of a set of keys")
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("there are %d and may be %d", len(set.Keys), maxKeys)
	}
	var keys []jose.JSONWebKey
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(raw, &key) != nil || !key.IsPublic() || key.Use == "enc" || len(key.KeyID) > maxKeyIDBytes {
			continue // of a kind that nobody signs with here
		}
		if public, ok := key.Key.(*rsa.PublicKey); ok && public.N.BitLen() > maxKeyBits {
			return nil, fmt.Errorf("one has %d bits and may have %d", public.N.BitLen(), maxKeyBits)
		}
		keys = append(keys, jose.JSONWebKey{Key: key.Key, KeyID: key.KeyID}) // without certificates
	}
	if len(keys) == 0 {
		return nil, errors.New("there is none that signatures can be verified with")
	}
	return keys, nil
}

// VerifySignature implements the key set of the OIDC library, which has looked at the
// algorithm. It asks nobody.
func (k *keySet) VerifySignature(_ context.Context, token string) ([]byte, error) {
	signed, err := jose.ParseSigned(token)
	if err != nil || len(signed.Signatures) != 1 {
		return nil, errors.New("the token is malformed")
	}
	k.mu.Lock()
	keys := k.keys
	k.mu.Unlock()
	id := signed.Signatures[0].Header.KeyID
	for i := range keys {
		if id != "" && keys[i].KeyID != id {
			continue
		}
		if payload, err := signed.Verify(&keys[i]); err == nil {
			return payload, nil
		}
	}
	return nil, errUnknownKey
}
