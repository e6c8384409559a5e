package workspace

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/peers"
	"github.com/shardplane/shardplane/pkg/request"
)

// placesFor is how long an answer from there holds. A leader of the previous version may
// take over while replicas are exchanged.
const placesFor = 10 * time.Second

// placer knows whether a shard places for others.
type placer struct {
	peer *peers.Peer

	mu     sync.Mutex
	asked  time.Time
	answer bool
}

// places asks the shard, unless it has answered just now.
func (p *placer) places(ctx context.Context) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.asked.IsZero() && time.Since(p.asked) < placesFor {
		return p.answer, nil
	}
	err := p.peer.Do(ctx, requestTimeout, func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.peer.Clients.Host()+request.PlacementPath, http.NoBody)
		if err != nil {
			return err
		}
		res, err := p.peer.Clients.HTTPClient().Do(r)
		if err != nil {
			return err
		}
		defer func() { _ = res.Body.Close() }()
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 1<<10)) // so that the connection is used again
		switch res.StatusCode {
		case http.StatusOK, http.StatusForbidden, http.StatusNotFound:
			p.answer, p.asked = res.StatusCode == http.StatusOK, time.Now()
			return nil
		default:
			return apierrors.NewGenericServerResponse(res.StatusCode, http.MethodGet, schema.GroupResource{}, request.PlacementPath, "", 0, true)
		}
	})
	return p.answer && err == nil, err
}
