package remoteparams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/peers"
)

// FromOwn returns a Read that reads from this shard and ignores Location.Shard.
func FromOwn(clients *client.Factory) Read {
	return func(ctx context.Context, at Location, path string, query url.Values) ([]byte, error) {
		return get(ctx, clients.Cluster(at.Cluster.Path()), path, query)
	}
}

// FromPeers returns a Read for other shards. named returns a peer, or nil.
func FromPeers(named func(shard string) *peers.Peer) Read {
	return func(ctx context.Context, at Location, path string, query url.Values) (content []byte, err error) {
		peer := named(at.Shard)
		if peer == nil {
			return nil, fmt.Errorf("%w: unknown shard %q", peers.ErrUnreachable, at.Shard)
		}
		var unfit error
		// ctx limits the read. peer.Do has a longer timeout, because a slow response to one request, e.g. due
		// to a conversion webhook of a tenant, does not mean that the shard is unreachable.
		err = peer.Do(ctx, time.Minute, func(ctx context.Context) error {
			content, err = get(ctx, peer.Clients.Cluster(at.Cluster.Path()), path, query)
			if errors.Is(err, errTooLarge) {
				unfit = err
				return nil
			}
			return err
		})
		return content, errors.Join(err, unfit)
	}
}

// get reads at most maxRead bytes.
func get(ctx context.Context, scope client.Scope, path string, query url.Values) ([]byte, error) {
	config := scope.Config()
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	c, err := rest.UnversionedRESTClientForConfigAndClient(config, scope.HTTPClient())
	if err != nil {
		return nil, fmt.Errorf("making a client for logical cluster %s: %w", scope, err)
	}
	get := c.Get().AbsPath(path)
	for name, values := range query {
		get = get.Param(name, values[0])
	}
	body, err := get.Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	content, err := io.ReadAll(io.LimitReader(body, maxRead+1))
	if err != nil {
		return nil, fmt.Errorf("reading a parameter: %w", err)
	}
	if len(content) > maxRead {
		return nil, errTooLarge
	}
	return content, nil
}
