package percluster

import (
	"context"
	"errors"
	"time"

	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/client"
)

// readyTimeout is how long a write waits for what must be known before it, on a
// server that has just started. It is upstream's.
const readyTimeout = 10 * time.Second

var errNotReady = errors.New("not yet ready to handle request")

// Ready are the informers without which no write can be judged.
type Ready []client.Runner

// Wait waits until all informers have synced, and denies the write if that
// takes too long.
func (r Ready) Wait(ctx context.Context, a admission.Attributes) error {
	for _, informer := range r {
		if informer.HasSynced() {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, readyTimeout)
		err := informer.WaitForSync(ctx)
		cancel()
		if err != nil {
			return admission.NewForbidden(a, errNotReady)
		}
	}
	return nil
}
