package peers

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
)

// closeDelay is how long the end of a stream may take.
const closeDelay = time.Second

// ErrUnreachable says that a shard does not answer, or is not known.
var ErrUnreachable = errors.New("the shard does not answer")

// Peer is a shard at one address. It is safe for concurrent use.
type Peer struct {
	// Name is the shard's, URL its address without a trailing slash.
	Name, URL string
	// Clients reach it, a shard's to read only.
	Clients *client.Factory

	breaker
	// gone is set when the book has taken the peer out.
	gone atomic.Bool
}

// NewPeer returns a peer that no book keeps.
func NewPeer(name string, clients *client.Factory) *Peer {
	return &Peer{Name: name, URL: clients.Host(), Clients: clients}
}

// Do makes one request, bounded by timeout. It fails with ErrUnreachable, without
// a request, while the shard is known not to answer, and where it did not. What
// the shard said, errors included, is an answer; that ctx ended is nothing that
// the shard is to blame for.
func (p *Peer) Do(ctx context.Context, timeout time.Duration, request func(context.Context) error) error {
	if !p.Allow() {
		return fmt.Errorf("%w: asking shard %s again in a moment", ErrUnreachable, p.Name)
	}
	judged := false
	defer func() {
		if !judged {
			p.Done()
		}
		p.Used(p.Clients.CloseIdleConnections)
	}()
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := request(limited)
	answer := answered(err)
	if !answer && ctx.Err() != nil {
		return err
	}
	judged = true
	p.Observe(ctx, answer, err)
	if !answer {
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return err
}

// Heard notes whether the shard answered who was allowed to Ask, and logs when
// that changes. err says why it did not.
func (p *Peer) Observe(ctx context.Context, answered bool, err error) {
	switch changed := p.heard(answered); {
	case !changed:
	case answered:
		klog.FromContext(ctx).Info("A shard answers again", "shard", p.Name, "url", p.URL)
	default:
		klog.FromContext(ctx).Error(err, "A shard does not answer; it is asked again until it does", "shard", p.Name, "url", p.URL)
	}
}

// Used is called after each use of a peer. If the book has taken it out meanwhile,
// closeIdle closes the connections, which were not idle then.
func (p *Peer) Used(closeIdle func()) {
	if p.gone.Load() {
		Close(closeIdle)
	}
}

// Close closes idle connections, now and a moment later: the last stream of an
// HTTP/2 connection outlasts its answer, or being given up, by that.
func Close(closeIdle func()) {
	closeIdle()
	time.AfterFunc(closeDelay, closeIdle)
}

// answered reports whether err, if any, is what the shard said.
func answered(err error) bool {
	if err == nil {
		return true
	}
	var status apierrors.APIStatus
	return errors.As(err, &status) && !apierrors.IsServiceUnavailable(err)
}
