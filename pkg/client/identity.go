package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
)

// identityPlaceholder stands for the identity in URLs until requests are sent.
const identityPlaceholder = ":identity-of-export"

type exportIdentity struct {
	fetch func(context.Context) (string, error)

	mu     sync.Mutex
	cached string
}

// get returns the identity, and requests it if it is not cached. Concurrent requests are possible.
func (i *exportIdentity) get(ctx context.Context) (string, error) {
	i.mu.Lock()
	known := i.cached
	i.mu.Unlock()
	if known != "" {
		return known, nil
	}
	known, err := i.fetch(ctx)
	if err == nil && known == "" {
		err = errNoIdentity
	}
	if err != nil {
		return "", fmt.Errorf("failed to get the identity of the resource: %w", err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.cached = known
	return known, nil
}

var errNoIdentity = errors.New("the identity is empty")

func (i *exportIdentity) invalidate(identity string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.cached == identity {
		i.cached = ""
	}
}

// fresh returns an identity with its own cache. A watch must not continue at the resourceVersion of a resource
// with another identity, so each follower must see each change.
func (i *exportIdentity) fresh() *exportIdentity {
	if i == nil {
		return nil
	}
	return &exportIdentity{fetch: i.fetch}
}

type identityTransport struct {
	http.RoundTripper
	*exportIdentity
}

func (t *identityTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	identity, err := t.get(request.Context())
	if err != nil {
		return nil, err
	}
	sent := request.Clone(request.Context())
	sent.URL.Path = strings.Replace(sent.URL.Path, identityPlaceholder, ":"+identity, 1)
	sent.URL.RawPath = ""
	response, err := t.RoundTripper.RoundTrip(sent)
	if err == nil && response.StatusCode == http.StatusNotFound {
		t.invalidate(identity)
	}
	return response, err
}

func (t *identityTransport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }
