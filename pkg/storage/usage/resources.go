package usage

import (
	"bytes"
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// askAgain is how often somebody who waits has etcd asked how far the watch is.
const askAgain = 50 * time.Millisecond

// resources are the resources that have objects.
type resources struct {
	// counts are how many objects each has, by the prefix of its keys.
	counts map[string]int
	// revision is that up to which all is counted; moved is closed and renewed when it
	// grows.
	revision int64
	moved    chan struct{}
	// appeared is closed, if it is not nil, when a resource comes or goes.
	appeared chan struct{}
}

// streamContext is the context of the counter's own etcd stream: etcd tells the progress of a
// stream to all watches on it.
func streamContext(ctx context.Context) context.Context {
	return clientv3.WithRequireLeader(metadata.AppendToOutgoingContext(ctx, "source", "usage"))
}

// resourceOf returns the prefix of the keys of a resource, without that of all keys, such as
// "/core/secrets/". The key is one of an object.
func (c *Counter) resourceOf(key []byte) string {
	rest := key[len(c.root)-1:]
	group := bytes.IndexByte(rest[1:], '/') + 1
	return string(rest[:group+2+bytes.IndexByte(rest[group+1:], '/')])
}

func (c *Counter) countLocked(resource string, more int) {
	before := c.counts[resource]
	if now := before + more; now > 0 {
		c.counts[resource] = now
	} else {
		delete(c.counts, resource)
	}
	if (before > 0) != (before+more > 0) {
		c.tellAppearedLocked()
	}
}

func (c *Counter) tellAppearedLocked() {
	if c.appeared != nil {
		close(c.appeared)
		c.appeared = nil
	}
}

// moveLocked says that all is counted up to a revision.
func (c *Counter) moveLocked(revision int64) {
	c.revision = revision
	close(c.moved)
	c.moved = make(chan struct{})
}

// Resources returns the prefixes of the keys of all resources that have objects, without that
// of all keys, and false as long as they are not known. changed is closed when that is not so
// any more.
func (c *Counter) Resources() (prefixes []string, changed <-chan struct{}, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for prefix := range c.counts {
		prefixes = append(prefixes, prefix)
	}
	if c.appeared == nil {
		c.appeared = make(chan struct{})
	}
	return prefixes, c.appeared, c.counts != nil
}

// WaitFor waits until all is counted that was written up to a revision, as long as ctx lets it.
func (c *Counter) WaitFor(ctx context.Context, revision uint64) error {
	ticker := time.NewTicker(askAgain)
	defer ticker.Stop()
	for first := true; ; first = false {
		c.mu.Lock()
		seen, moved := c.counts != nil && uint64(c.revision) >= revision, c.moved //nolint:gosec // revisions are positive
		c.mu.Unlock()
		if seen {
			return nil
		}
		if first {
			c.askProgress(ctx)
		}
		select {
		case <-moved:
		case <-ticker.C:
			c.askProgress(ctx)
		case <-ctx.Done():
			return errors.Join(errors.New("not all that is stored is known yet"), ctx.Err())
		}
	}
}

// askProgress has etcd tell how far the watch is. Should it not, the one who waits asks again.
func (c *Counter) askProgress(ctx context.Context) {
	_ = c.client.RequestProgress(streamContext(ctx))
}
