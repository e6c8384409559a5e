package issuers

import (
	"cmp"
	"context"
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

	"github.com/shardplane/shardplane/pkg/request/rsakeys"
	"github.com/shardplane/shardplane/pkg/webhooktransport"
)

const (
	// fetchTimeout limits a fetch of the keys of an issuer.
	//
	//reference:limit issuer | time for a response | 401
	fetchTimeout = 10 * time.Second
	// keysTTL is the age at which keys are fetched again, and for which a revoked key is accepted.
	keysTTL = 5 * time.Minute
	// minPause is the minimum time between fetches. It doubles with each failure, up to maxPause.
	minPause = time.Second
	//reference:none
	maxPause = time.Minute
	// maxKeys limits the cost of verifying a signature, and with maxKeyIDBytes the memory of an issuer.
	//
	//reference:limit issuer | keys | 401
	maxKeys = 50
	//reference:none
	maxKeyIDBytes = 256
	// maxFetches and maxFetchesEach limit the concurrent fetches, in total and for one logical cluster.
	//
	//reference:limit server | issuers of workspaces from which keys are read concurrently | 401
	//reference:limit cluster | issuers from which keys are read concurrently | 401
	maxFetches, maxFetchesEach = 32, 4
)

var (
	errBusy       = errors.New("too many concurrent requests to issuers of the logical cluster, try again")
	errUnknownKey = errors.New("the token is signed with a key that the issuer does not have")
	errStopped    = errors.New("the server is shutting down")
)

// fetcher fetches documents of issuers in the background until it is stopped.
type fetcher struct {
	documents *webhooktransport.Documents
	fetching  *slots
	running   sync.WaitGroup

	mu sync.Mutex
	// ctx ends with stop.
	ctx context.Context //nolint:containedctx // a fetch is shared by requests and may outlast each of them
	end context.CancelFunc
}

func newFetcher(documents *webhooktransport.Documents) *fetcher {
	f := &fetcher{documents: documents, fetching: newSlots(maxFetches, maxFetchesEach)}
	f.ctx, f.end = context.WithCancel(context.Background()) //nolint:forbidigo // stop ends it
	return f
}

// run runs work in the background, unless the fetcher is stopped.
func (f *fetcher) run(work func(ctx context.Context)) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ctx.Err() != nil {
		return false
	}
	f.running.Go(func() { work(f.ctx) })
	return true
}

// stop waits for running fetches.
func (f *fetcher) stop() {
	f.mu.Lock()
	f.end()
	f.mu.Unlock()
	f.running.Wait()
}

// keySet contains the public keys of an issuer. They are fetched on demand.
type keySet struct {
	issuer tenancyv1alpha1.Issuer
	home   logicalcluster.Name
	roots  *x509.CertPool
	from   *fetcher

	mu   sync.Mutex
	keys []jose.JSONWebKey
	// version counts successful fetches, and loaded is the time of the last one.
	version int
	loaded  time.Time
	// err is the error of the last fetch, after failures in succession. There is no fetch before next.
	err      error
	failures int
	next     time.Time
	// fetched is closed at the end of a running fetch; nil if there is none.
	fetched chan struct{}
}

// newer waits for a higher version of the keys. It fails if a fetch fails, or is not permitted yet.
func (k *keySet) newer(ctx context.Context, version int) (int, error) {
	for {
		k.mu.Lock()
		now := time.Now()
		if k.version > version {
			if now.Sub(k.loaded) > keysTTL && now.After(k.next) {
				k.refresh()
			}
			defer k.mu.Unlock()
			return k.version, nil
		}
		if k.fetched == nil && now.Before(k.next) {
			err := cmp.Or(k.err, errUnknownKey) // without an error, the keys have just been fetched
			k.mu.Unlock()
			return version, err
		}
		k.refresh()
		fetched := k.fetched
		k.mu.Unlock()
		select {
		case <-fetched:
		case <-ctx.Done():
			return version, fmt.Errorf("the issuer %s did not return its keys in time", k.issuer.URL)
		}
	}
}

// refresh starts a fetch unless one is running. The lock must be held.
func (k *keySet) refresh() {
	if k.fetched != nil {
		return
	}
	fetched := make(chan struct{})
	k.fetched = fetched
	if !k.from.run(func(ctx context.Context) { k.finish(k.fetch(ctx)) }) {
		k.err, k.next, k.fetched = errStopped, time.Now().Add(maxPause), nil
		close(fetched)
	}
}

// finish stores the result of a fetch and wakes up all waiting requests.
func (k *keySet) finish(keys []jose.JSONWebKey, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, pause := time.Now(), minPause
	if k.err = err; err == nil {
		k.keys, k.loaded, k.failures = keys, now, 0
		k.version++
	} else if !errors.Is(err, errBusy) {
		pause = min(minPause<<min(k.failures, 10), maxPause)
		k.failures++
	}
	k.next = now.Add(pause)
	close(k.fetched)
	k.fetched = nil
}

func (k *keySet) fetch(ctx context.Context) ([]jose.JSONWebKey, error) {
	if k.from.fetching.take(k.home) == nil {
		return nil, errBusy
	}
	defer k.from.fetching.give(k.home)
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	at := cmp.Or(k.issuer.DiscoveryURL, strings.TrimSuffix(k.issuer.URL, "/")+"/.well-known/openid-configuration")
	data, err := k.from.documents.Get(ctx, at, k.roots)
	if err != nil {
		return nil, fmt.Errorf("discovery document %s: %w", at, err)
	}
	var discovery struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if json.Unmarshal(data, &discovery) != nil || discovery.Keys == "" {
		return nil, fmt.Errorf("discovery document %s must be JSON with a jwks_uri", at)
	}
	if discovery.Issuer != k.issuer.URL {
		return nil, fmt.Errorf("discovery document %s belongs to another issuer than %s", at, k.issuer.URL)
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

// parseKeys returns the keys that can verify signatures.
func parseKeys(data []byte) ([]jose.JSONWebKey, error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if json.Unmarshal(data, &set) != nil {
		return nil, errors.New("not a JSON Web Key Set")
	}
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("%d keys, at most %d allowed", len(set.Keys), maxKeys)
	}
	var keys []jose.JSONWebKey
	for _, raw := range set.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(raw, &key) != nil || !key.IsPublic() || key.Use == "enc" || len(key.KeyID) > maxKeyIDBytes {
			continue // not usable for signatures here
		}
		if err := rsakeys.Check(key.Key); err != nil {
			return nil, err
		}
		keys = append(keys, jose.JSONWebKey{Key: key.Key, KeyID: key.KeyID}) // without certificates
	}
	if len(keys) == 0 {
		return nil, errors.New("none of them can verify signatures")
	}
	return keys, nil
}

// VerifySignature implements the key set of the OIDC library, which has checked the algorithm.
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

// slots limits concurrent operations, in total and per logical cluster.
type slots struct {
	all, each int

	mu    sync.Mutex
	taken int
	homes map[logicalcluster.Name]*home
}

// home is a logical cluster with operations in progress.
type home struct {
	taken int
	// turn is a semaphore for the verification of a token.
	turn chan struct{}
}

func newSlots(all, each int) *slots {
	return &slots{all: all, each: each, homes: map[logicalcluster.Name]*home{}}
}

// take acquires a slot for a logical cluster, or returns nil.
func (p *slots) take(cluster logicalcluster.Name) *home {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.homes[cluster]
	if h == nil {
		h = &home{turn: make(chan struct{}, 1)}
	}
	if p.taken == p.all || h.taken == p.each {
		return nil
	}
	p.taken++
	h.taken++
	p.homes[cluster] = h
	return h
}

func (p *slots) give(cluster logicalcluster.Name) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	h := p.homes[cluster]
	if h.taken--; h.taken == 0 {
		delete(p.homes, cluster)
	}
}
