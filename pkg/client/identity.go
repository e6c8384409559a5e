package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
)

// identityMark stands in URLs for the identity, until they are sent.
const identityMark = ":identity-of-export"

// identified is the identity of a resource.
type identified struct {
	ask func(context.Context) (string, error)

	mu    sync.Mutex
	known string
}

// get returns the identity, which it asks for unless it is known. Several may ask at once.
func (i *identified) get(ctx context.Context) (string, error) {
	i.mu.Lock()
	known := i.known
	i.mu.Unlock()
	if known != "" {
		return known, nil
	}
	known, err := i.ask(ctx)
	if err == nil && known == "" {
		err = errNoIdentity
	}
	if err != nil {
		return "", fmt.Errorf("asking for the identity of the resource: %w", err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.known = known
	return known, nil
}

var errNoIdentity = errors.New("it is empty")

func (i *identified) forget(identity string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.known == identity {
		i.known = ""
	}
}

// fresh returns the same for somebody who has to see each change: who follows a resource must
// not go on at another one's version.
func (i *identified) fresh() *identified {
	if i == nil {
		return nil
	}
	return &identified{ask: i.ask}
}

// identityTransport puts the identity into URLs.
type identityTransport struct {
	http.RoundTripper
	*identified
}

// RoundTrip implements http.RoundTripper.
func (t *identityTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	identity, err := t.get(request.Context())
	if err != nil {
		return nil, err
	}
	sent := request.Clone(request.Context())
	sent.URL.Path = strings.Replace(sent.URL.Path, identityMark, ":"+identity, 1)
	sent.URL.RawPath = ""
	answer, err := t.RoundTripper.RoundTrip(sent)
	if err == nil && answer.StatusCode == http.StatusNotFound {
		t.forget(identity)
	}
	return answer, err
}

// WrappedRoundTripper implements what finds the transport below.
func (t *identityTransport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }
