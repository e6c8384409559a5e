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

// readyTimeout is the time that a write waits for informers after a server start, as in upstream's plugins.
const readyTimeout = 10 * time.Second

var errNotReady = errors.New("not yet ready to handle request")

// Ready are informers that must be synced before a write is admitted.
type Ready []client.Runner

// Wait waits until all informers have synced. After a timeout it returns an error that clients retry, because
// a denial would be final.
func (r Ready) Wait(ctx context.Context) error {
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

// Objects are admission configuration of all logical clusters, including replicas from other shards
// (replicas.Dual).
type Objects interface {
	client.Runner
	// Read returns an error until the objects of all other shards have been read.
	Read() error
}

// Judges are the informers and replicas that must be complete before a write is admitted.
type Judges struct {
	ready Ready
	hooks []Objects
	local func(cluster logicalcluster.Name) bool
}

// NewJudges returns Judges for namespaces and hooks. local reports whether a logical cluster is on this
// shard.
func NewJudges(namespaces client.Runner, local func(cluster logicalcluster.Name) bool, hooks ...Objects) *Judges {
	j := &Judges{ready: Ready{namespaces}, hooks: hooks, local: local}
	for _, h := range hooks {
		j.ready = append(j.ready, h)
	}
	return j
}

// Wait waits like Ready.Wait. If the configuration of another shard is incomplete, it does not wait, but
// returns an error that clients retry.
func (j *Judges) Wait(ctx context.Context, a admission.Attributes, judge, in logicalcluster.Name) error {
	if err := j.ready.Wait(ctx); err != nil || judge == in || j.local(judge) {
		return err
	}
	for _, hooks := range j.hooks {
		if err := hooks.Read(); err != nil {
			return apierrors.NewTooManyRequests(fmt.Sprintf("the webhooks and policies of the provider of %s have not been read yet, try again: %v", a.GetResource().GroupResource(), err), 1)
		}
	}
	return nil
}
