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
	// Path is the path of digests below that of a shard. A resource with its group, and a bucket number may follow.
	Path = "/digests"
	// Form is the version of the hash. Digests of different forms cannot be compared.
	Form = 1
)

// Response contains digests of the replicas of a shard: of all resources, of one resource, or of one of its buckets.
type Response struct {
	// DataID is a random ID of the cache server's data. It changes if the data was lost.
	DataID string `json:"dataID"`
	// Name is the name of the cache server. Date is its time of the response.
	Name string    `json:"name,omitempty"`
	Date time.Time `json:"-"`
	// Full reports that the etcd is nearly full and no new replicas are accepted.
	Full bool `json:"full,omitempty"`
	// Form is the version of the hash.
	Form int `json:"form"`
	// Resources contains the roots of all resources with replicas.
	Resources map[string]Root `json:"resources,omitempty"`
	// Buckets contains the sums of all buckets of a resource.
	Buckets []Number `json:"buckets,omitempty"`
	// Keys contains the hashes of one bucket.
	Keys map[string]Number `json:"keys,omitempty"`
}

// Sums returns the sums of the buckets.
func (a *Response) Sums() Sums {
	var s Sums
	for i := range min(len(a.Buckets), Buckets) {
		s[i] = uint64(a.Buckets[i])
	}
	return s
}

const (
	// fetchTimeout limits a request for digests, and maxResponse its response in bytes.
	fetchTimeout = 15 * time.Second
	maxResponse  = 64 << 20
)

var (
	// ErrRefused means that the server rejects the client certificate.
	ErrRefused = errors.New("the server rejects the client certificate")
	// ErrNoCacheServer means that the server is not a cache server.
	ErrNoCacheServer = errors.New("the server is not a cache server")
	errNotJSON       = errors.New("reading digests")
	errNoDigests     = errors.New("the server does not serve digests of this version")
)

// Identify reads the digests of a shard. It returns ErrNoCacheServer if the server is not a cache server.
func Identify(ctx context.Context, cache *client.Factory, shard string) (*Response, error) {
	response, err := Fetch(ctx, cache.Shard(shard), "")
	if errors.Is(err, errNotJSON) || errors.Is(err, errNoDigests) {
		return nil, fmt.Errorf("%w: %w", ErrNoCacheServer, err)
	}
	return response, err
}

// Fetch reads digests of the replicas of a shard: of all resources, of one resource, or of one of its buckets.
func Fetch(ctx context.Context, replicas *client.Factory, resource string, bucket ...int) (*Response, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
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
		return nil, fmt.Errorf("requesting digests: %w", err)
	}
	response, err := replicas.HTTPClient().Do(request)
	if err != nil {
		return nil, fmt.Errorf("requesting digests: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxResponse))
	if err != nil {
		return nil, fmt.Errorf("reading digests: %w", err)
	}
	parsed, err := parseResponse(response.StatusCode, body, resource != "" && len(bucket) == 0)
	if err == nil {
		parsed.Date, _ = http.ParseTime(response.Header.Get("Date")) // zero if there is none
	}
	return parsed, err
}

// parseResponse parses a response, with buckets if ofResource is set. Other servers respond with e.g. 404.
func parseResponse(status int, body []byte, ofResource bool) (*Response, error) {
	switch status {
	case http.StatusOK:
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return nil, errNoDigests
	case http.StatusForbidden, http.StatusUnauthorized:
		return nil, fmt.Errorf("%w, with %d", ErrRefused, status)
	default:
		return nil, fmt.Errorf("unexpected response to a request for digests: %d: %.200s", status, body)
	}
	response := &Response{}
	if err := json.Unmarshal(body, response); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotJSON, err)
	}
	switch {
	case response.Form != Form:
		return nil, errNoDigests
	case response.DataID == "":
		return nil, errors.New("the response has no dataID")
	case ofResource && len(response.Buckets) != Buckets:
		return nil, fmt.Errorf("the response does not have %d buckets", Buckets)
	}
	return response, nil
}
