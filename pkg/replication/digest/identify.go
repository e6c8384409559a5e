package digest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/shardplane/shardplane/pkg/client"
)

const (
	// askTimeout bounds a request for digests, and maxAnswer its answer.
	askTimeout = 15 * time.Second
	maxAnswer  = 64 << 20
)

var (
	// ErrRefused says that a cache server does not take the certificate of who asks, or that it is none.
	ErrRefused = errors.New("it refuses the certificate")
	// ErrNoCacheServer says that something else than a cache server has answered.
	ErrNoCacheServer = errors.New("it is no cache server")
	// errNotJSON and errNoDigests say that an answer has no digests.
	errNotJSON   = errors.New("reading digests")
	errNoDigests = errors.New("the server has no digests of this version")
)

// Identify asks a cache server who it is, by the digests of a shard. Of another server, the error is
// ErrNoCacheServer.
func Identify(ctx context.Context, cache *client.Factory, shard string) (*Answer, error) {
	answer, err := Fetch(ctx, cache.Shard(shard), "")
	var status *StatusError
	switch {
	case err == nil:
		return answer, nil
	case errors.As(err, &status) && (status.Code == http.StatusForbidden || status.Code == http.StatusUnauthorized):
		return nil, fmt.Errorf("%w, with %d", ErrRefused, status.Code)
	case errors.Is(err, errNotJSON), errors.Is(err, errNoDigests):
		return nil, fmt.Errorf("%w: %w", ErrNoCacheServer, err)
	default:
		return nil, err
	}
}

// StatusError is an answer that is neither digests, nor that there are none.
type StatusError struct {
	Code int
	Body string
}

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("asking for digests is answered with %d: %.200s", e.Code, e.Body)
}

// Ask asks a cache server for the digests of the replicas of a shard: of all resources, of one, or of a
// bucket of that.
func Fetch(ctx context.Context, replicas *client.Factory, resource string, bucket ...int) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	url := replicas.Host() + Path
	if resource != "" {
		url += "/" + resource
	}
	if len(bucket) > 0 {
		url += "/" + strconv.Itoa(bucket[0])
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("asking for digests: %w", err)
	}
	response, err := replicas.HTTPClient().Do(request)
	if err != nil {
		return nil, fmt.Errorf("asking for digests: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("reading digests: %w", err)
	}
	answer, err := parseAnswer(response.StatusCode, body, resource != "" && len(bucket) == 0)
	if err == nil {
		answer.Date, _ = http.ParseTime(response.Header.Get("Date")) // zero if it says none
	}
	return answer, err
}

// parseAnswer returns what the cache server has answered. ofResource says that it was asked for the
// buckets of one resource. Servers that are no cache servers answer 404.
func parseAnswer(status int, body []byte, ofResource bool) (*Answer, error) {
	switch status {
	case http.StatusOK:
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return nil, errNoDigests
	default:
		return nil, &StatusError{Code: status, Body: string(body)}
	}
	answer := &Answer{}
	if err := json.Unmarshal(body, answer); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotJSON, err)
	}
	if answer.Form != Form {
		return nil, errNoDigests
	}
	if err := answer.Check(ofResource); err != nil {
		return nil, err
	}
	return answer, nil
}
