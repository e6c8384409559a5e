package serviceaccount

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/peers"
)

const (
	// remoteTTL is the lifetime of cached responses, and limits the time for which a token outlives its account.
	remoteTTL     = 2 * time.Second
	remoteTimeout = 5 * time.Second
)

// Where returns the shards that may have a logical cluster, and whether there can be no others.
type Where func(cluster logicalcluster.Name) (shards []*peers.Peer, all bool)

// Remote looks up accounts on the shards of their logical clusters, and caches the responses. It is called
// only for tokens with a valid signature.
type Remote struct {
	where  Where
	known  *cache.Expiring
	flight singleflight.Group
}

var _ Accounts = &Remote{}

// NewRemote returns a Remote.
func NewRemote(where Where) *Remote {
	return &Remote{where: where, known: cache.NewExpiring()}
}

// ServiceAccount implements Accounts.
func (r *Remote) ServiceAccount(ctx context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.ServiceAccount, error) {
	return remember(ctx, r, kinds.ServiceAccounts, client.Key{Cluster: cluster, Namespace: namespace, Name: name})
}

// Secret implements Accounts.
func (r *Remote) Secret(ctx context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.Secret, error) {
	return remember(ctx, r, kinds.Secrets, client.Key{Cluster: cluster, Namespace: namespace, Name: name})
}

// lookup is the result of a request: an object or an error.
type lookup[T any] struct {
	object T
	err    error
}

// remember returns a cached result or sends a request. Other errors are not cached.
func remember[T client.Object, L runtime.Object](ctx context.Context, r *Remote, kind client.Resource[T, L], of client.Key) (T, error) {
	key := kind.Resource + " " + of.String()
	known, ok := r.known.Get(key)
	if !ok {
		known, _, _ = r.flight.Do(key, func() (any, error) {
			// The result is shared by several requests.
			object, err := lookUp(context.WithoutCancel(ctx), r.where, kind, of)
			a := lookup[T]{object: object, err: err}
			if err == nil || apierrors.IsNotFound(err) {
				r.known.Set(key, a, remoteTTL)
			}
			return a, nil
		})
	}
	a := known.(lookup[T])
	return a.object, a.err
}

var errNotAll = errors.New("not all shards are known yet, try again")

// lookUp sends the request to all shards. NotFound is returned only after all have returned it.
func lookUp[T client.Object, L runtime.Object](ctx context.Context, where Where, kind client.Resource[T, L], of client.Key) (none T, err error) {
	shards, all := where(of.Cluster)
	var requests sync.WaitGroup
	defer requests.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lookups := make(chan lookup[T], len(shards))
	for _, shard := range shards {
		requests.Go(func() {
			var a lookup[T]
			a.err = shard.Do(ctx, remoteTimeout, func(ctx context.Context) (err error) {
				a.object, err = kind.InNamespace(shard.Clients.Cluster(of.Cluster.Path()), of.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
				return err
			})
			lookups <- a
		})
	}
	missing := error(apierrors.NewNotFound(corev1.Resource("logicalclusters"), of.Cluster.String()))
	var failed error
	if !all {
		failed = errNotAll
	}
	for range shards {
		switch a := <-lookups; {
		case a.err == nil:
			return a.object, nil
		case apierrors.IsNotFound(a.err):
			missing = a.err
		default:
			failed = errors.Join(failed, a.err)
		}
	}
	if failed != nil {
		return none, failed
	}
	return none, missing
}

// Accounts looks up the objects that tokens are bound to, on any shard. The methods return a NotFound status
// error if the object does not exist.
type Accounts interface {
	ServiceAccount(ctx context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.ServiceAccount, error)
	Secret(ctx context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.Secret, error)
}
