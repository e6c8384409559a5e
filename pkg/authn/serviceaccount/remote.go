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
	// remoteTTL is for how long an answer of another server is believed: for so
	// long a token may outlive its account there.
	remoteTTL = 2 * time.Second
	// remoteTimeout bounds one question.
	remoteTimeout = 5 * time.Second
)

// Where names the shards that may hold a logical cluster, of which there may be
// none, and reports whether there can be no others.
type Where func(cluster logicalcluster.Name) (shards []*peers.Peer, all bool)

// Remote looks accounts up at the shards that hold their logical clusters, and
// remembers the answers for a moment. Only tokens with a valid signature get as
// far as to be looked up.
type Remote struct {
	where  Where
	known  *cache.Expiring
	flight singleflight.Group
}

var _ Accounts = &Remote{}

// NewRemote returns a Remote that asks where it is told to.
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

// answer is what servers said: an object, or that there is none.
type answer[T any] struct {
	object T
	err    error
}

// remember asks unless it has asked a moment ago. Failures are not remembered.
func remember[T any](ctx context.Context, r *Remote, key string, cluster logicalcluster.Name, get func(context.Context, client.Scope) (T, error)) (T, error) {
	if known, ok := r.known.Get(key); ok {
		a := known.(answer[T])
		return a.object, a.err
	}
	result, err, _ := r.flight.Do(key, func() (any, error) {
		// The answer is for everybody who waits, not only for this request.
		object, err := ask(context.WithoutCancel(ctx), r.where, cluster, get)
		a := answer[T]{object: object, err: err}
		if err == nil || apierrors.IsNotFound(err) {
			r.known.Set(key, a, remoteTTL)
		}
		return a, nil
	})
	if err != nil {
		var none T
		return none, err
	}
	a := result.(answer[T])
	return a.object, a.err
}

// errNotAll is why nobody's saying no is not enough.
var errNotAll = errors.New("not all shards are known yet, try again")

// ask asks all shards at once. That nobody has the object is known only once
// all have said so.
func ask[T any](ctx context.Context, where Where, cluster logicalcluster.Name, get func(context.Context, client.Scope) (T, error)) (T, error) {
	shards, all := where(cluster)
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer[T], len(shards))
	for _, shard := range shards {
		asking.Go(func() {
			var a answer[T]
			a.err = shard.Do(ctx, remoteTimeout, func(ctx context.Context) (err error) {
				a.object, err = get(ctx, shard.Clients.Cluster(cluster.Path()))
				return err
			})
			answers <- a
		})
	}
	missing := error(apierrors.NewNotFound(corev1.Resource("logicalclusters"), cluster.String()))
	var failed error
	if !all {
		failed = errNotAll
	}
	for range shards {
		switch a := <-answers; {
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
