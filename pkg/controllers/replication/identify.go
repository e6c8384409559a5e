package replication

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/controllers/replication/digest"
)

var (
	// ErrRefused says that a cache server does not take the certificate of who asks, or that it is none.
	ErrRefused = errors.New("it refuses the certificate")
	// ErrNoCacheServer says that something else than a cache server has answered.
	ErrNoCacheServer = errors.New("it is no cache server")
	// errNotJSON says that an answer with digests is none.
	errNotJSON = errors.New("reading digests")
)

// Identify asks a cache server who it is, by the digests of a shard. Of another server, the error is
// ErrNoCacheServer.
func Identify(ctx context.Context, cache *client.Factory, shard string) (*digest.Answer, error) {
	answer, err := AskDigests(ctx, cache.Shard(shard), "")
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
