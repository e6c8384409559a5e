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
)

const (
	// remoteTTL is for how long an answer of another server is believed: for so
	// long a token may outlive its account there.
	remoteTTL = 2 * time.Second
	// remoteTimeout bounds one question.
	remoteTimeout = 5 * time.Second
)

// Where names the servers that may hold a logical cluster. It may name none.
type Where func(cluster logicalcluster.Name) ([]*client.Factory, error)

// Remote looks accounts up at the servers that hold their logical clusters, and
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
		return client.ServiceAccounts.InNamespace(scope, namespace).Get(ctx, name, metav1.GetOptions{})
	})
}

// Secret implements Accounts.
func (r *Remote) Secret(ctx context.Context, cluster logicalcluster.Name, namespace, name string) (*corev1.Secret, error) {
	key := client.Key{Cluster: cluster, Namespace: namespace, Name: name}
	return remember(ctx, r, "secret "+key.String(), cluster, func(ctx context.Context, scope client.Scope) (*corev1.Secret, error) {
		return client.Secrets.InNamespace(scope, namespace).Get(ctx, name, metav1.GetOptions{})
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
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), remoteTimeout)
		defer cancel()
		object, err := ask(ctx, r.where, cluster, get)
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

// ask asks all servers at once. That nobody has the object is known only once
// all have said so.
func ask[T any](ctx context.Context, where Where, cluster logicalcluster.Name, get func(context.Context, client.Scope) (T, error)) (T, error) {
	var none T
	servers, err := where(cluster)
	if err != nil {
		return none, err
	}
	var asking sync.WaitGroup
	defer asking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer[T], len(servers))
	for _, server := range servers {
		asking.Go(func() {
			object, err := get(ctx, server.Cluster(cluster.Path()))
			answers <- answer[T]{object: object, err: err}
		})
	}
	missing := error(apierrors.NewNotFound(corev1.Resource("logicalclusters"), cluster.String()))
	var failed error
	for range servers {
		switch a := <-answers; {
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
