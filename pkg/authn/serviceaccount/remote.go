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
	key := client.Key{Cluster: cluster, Namespace: namespace, Name: name}
	return remember(ctx, r, "serviceaccount "+key.String(), cluster, func(ctx context.Context, scope client.Scope) (*corev1.ServiceAccount, error) {
		return kinds.ServiceAccounts.InNamespace(scope, namespace).Get(ctx, name, metav1.GetOptions{})
	})
}

// Secret implements Accounts.
func (r *Remote) Secret(ctx context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.Secret, error) {
	key := client.Key{Cluster: cluster, Namespace: namespace, Name: name}
	return remember(ctx, r, "secret "+key.String(), cluster, func(ctx context.Context, scope client.Scope) (*corev1.Secret, error) {
		return kinds.Secrets.InNamespace(scope, namespace).Get(ctx, name, metav1.GetOptions{})
	})
}

// lookup is the result of a request: an object or an error.
type lookup[T any] struct {
	object T
	err    error
}

// remember returns a cached result or sends a request. Other errors are not cached.
func remember[T any](ctx context.Context, r *Remote, key string, cluster logicalcluster.Name, get func(context.Context, client.Scope) (T, error)) (T, error) {
	if known, ok := r.known.Get(key); ok {
		a := known.(lookup[T])
		return a.object, a.err
	}
	result, err, _ := r.flight.Do(key, func() (any, error) {
		// The result is shared by several requests.
		object, err := lookUp(context.WithoutCancel(ctx), r.where, cluster, get)
		a := lookup[T]{object: object, err: err}
		if err == nil || apierrors.IsNotFound(err) {
			r.known.Set(key, a, remoteTTL)
		}
		return a, nil
	})
	if err != nil {
		var none T
		return none, err
	}
	a := result.(lookup[T])
	return a.object, a.err
}

var errNotAll = errors.New("not all shards are known yet, try again")

// lookUp sends the request to all shards. NotFound is returned only after all have returned it.
func lookUp[T any](ctx context.Context, where Where, cluster logicalcluster.Name, get func(context.Context, client.Scope) (T, error)) (T, error) {
	shards, all := where(cluster)
	var requests sync.WaitGroup
	defer requests.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lookups := make(chan lookup[T], len(shards))
	for _, shard := range shards {
		requests.Go(func() {
			var a lookup[T]
			a.err = shard.Do(ctx, remoteTimeout, func(ctx context.Context) (err error) {
				a.object, err = get(ctx, shard.Clients.Cluster(cluster.Path()))
				return err
			})
			lookups <- a
		})
	}
	missing := error(apierrors.NewNotFound(corev1.Resource("logicalclusters"), cluster.String()))
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
	var none T
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
