package replication

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/controllers/replication/digest"
	"github.com/shardplane/shardplane/pkg/request"
)

var (
	// ErrRefused says that a cache server does not take the certificate of who asks, or that it is none.
	ErrRefused = errors.New("it refuses the certificate")
	// ErrNoCacheServer says that something else than a cache server has answered.
	ErrNoCacheServer = errors.New("it is no cache server")
	// errNotJSON says that an answer with digests is none.
	errNotJSON = errors.New("reading digests")
)

// Identify asks a cache server who it is, by the digests of a shard. Of one that has none, as one of a previous
// release, the error is ErrNoDigests.
func Identify(ctx context.Context, cache *client.Factory, shard string) (*digest.Answer, error) {
	answer, err := AskDigests(ctx, cache.Shard(shard), "")
	var status *StatusError
	switch {
	case err == nil:
		return answer, nil
	case errors.As(err, &status) && (status.Code == http.StatusForbidden || status.Code == http.StatusUnauthorized):
		return nil, fmt.Errorf("%w, with %d", ErrRefused, status.Code)
	case errors.Is(err, errNotJSON):
		return nil, fmt.Errorf("%w: %w", ErrNoCacheServer, err)
	case !errors.Is(err, ErrNoDigests):
		return nil, err
	}
	// Each has Shards, and nothing else has them at such a URL.
	clients, made := cache.Shard(request.Wildcard).Wildcard().Metadata()
	if made != nil {
		return nil, made
	}
	_, listed := clients.Resource(corev1alpha1.SchemeGroupVersion.WithResource("shards")).List(ctx, metav1.ListOptions{Limit: 1})
	switch {
	case listed == nil:
		return nil, err
	case apierrors.IsForbidden(listed), apierrors.IsUnauthorized(listed):
		return nil, fmt.Errorf("%w: %w", ErrRefused, listed)
	case apierrors.IsNotFound(listed), apierrors.IsBadRequest(listed), apierrors.IsMethodNotSupported(listed):
		return nil, fmt.Errorf("%w: %w", ErrNoCacheServer, listed)
	}
	return nil, listed
}
