package percluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/request"
)

// readyTimeout is how long a write waits for what must be known before it, on a
// server that has just started. It is upstream's.
const readyTimeout = 10 * time.Second

var errNotReady = errors.New("not yet ready to handle request")

// Ready are the informers without which no write can be judged.
type Ready []client.Runner

// Wait waits until all informers have synced. If that takes too long, the client is told to try again: a denial would be
// final.
func (r Ready) Wait(ctx context.Context, _ admission.Attributes) error {
	for _, informer := range r {
		if informer.HasSynced() {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, readyTimeout)
		err := informer.WaitForSync(ctx)
		cancel()
		if err != nil {
			return request.Unavailable(errNotReady.Error())
		}
	}
	return nil
}

// Objects are what logical clusters have configured, here and on other shards, as a
// replicas.Dual knows them.
type Objects interface {
	client.Runner
	// Read returns an error as long as not all were read that others have.
	Read() error
}

// Judges are what has to be known before a write can be judged, also by what is
// configured elsewhere.
type Judges struct {
	ready Ready
	hooks []Objects
	local func(cluster logicalcluster.Name) bool
}

// NewJudges returns what has to be known beside namespaces. local reports whether a
// logical cluster is on this shard.
func NewJudges(namespaces client.Runner, local func(cluster logicalcluster.Name) bool, hooks ...Objects) *Judges {
	j := &Judges{ready: Ready{namespaces}, hooks: hooks, local: local}
	for _, h := range hooks {
		j.ready = append(j.ready, h)
	}
	return j
}

// Wait waits as Ready does. What judges on another shard is not waited for: the client is
// told to come again.
func (j *Judges) Wait(ctx context.Context, a admission.Attributes, judge, in logicalcluster.Name) error {
	if err := j.ready.Wait(ctx, a); err != nil || judge == in || j.local(judge) {
		return err
	}
	for _, hooks := range j.hooks {
		if err := hooks.Read(); err != nil {
			return apierrors.NewTooManyRequests(fmt.Sprintf("the webhooks and policies of the provider of %s are not known yet, try again: %v", a.GetResource().GroupResource(), err), 1)
		}
	}
	return nil
}
