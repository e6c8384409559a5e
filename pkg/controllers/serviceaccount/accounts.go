package serviceaccount

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
)

const (
	// Name is the name of the controller of default accounts.
	Name = "serviceaccount"
	// DefaultAccount is the name of the account in each namespace.
	DefaultAccount = "default"
)

// Config configures the controller of default accounts. The informers contain the objects of all logical clusters of the shard.
type Config struct {
	// Local reaches the shard itself as system:masters.
	Local      *client.Factory
	Namespaces *client.Informer[*corev1.Namespace]
	Accounts   *client.Informer[*corev1.ServiceAccount]
}

// NewServiceAccountController returns the controller of default accounts. Its keys are namespaces.
func NewServiceAccountController(config Config) *reconcile.Controller[client.Key] {
	namespaces, accounts := config.Namespaces.Lister(), config.Accounts.Lister()
	r := &accountReconciler{
		namespace: namespaces.Get,
		exists: func(key client.Key) bool {
			_, err := accounts.Get(accountIn(key))
			return err == nil
		},
		create: func(ctx context.Context, key client.Key) error { return createDefault(ctx, config.Local, key) },
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name, Reconcile: r.reconcile,
		Sources: []reconcile.Source[client.Key]{
			reconcile.Keys(config.Namespaces),
			reconcile.OnDelete(config.Accounts, func(account *corev1.ServiceAccount) []client.Key {
				if account.Name != DefaultAccount {
					return nil
				}
				key := client.KeyOf(account)
				return []client.Key{{Cluster: key.Cluster, Name: key.Namespace}}
			}),
		},
	})
}

type accountReconciler struct {
	namespace func(key client.Key) (*corev1.Namespace, error)
	exists    func(key client.Key) bool
	create    func(ctx context.Context, key client.Key) error
}

func (r *accountReconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	namespace, err := r.namespace(key)
	if err != nil {
		return reconcile.Result{}, reconcile.IgnoreNotFound(err)
	}
	if namespace.DeletionTimestamp != nil || r.exists(key) {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, r.create(ctx, key)
}

func accountIn(namespace client.Key) client.Key {
	return client.Key{Cluster: namespace.Cluster, Namespace: namespace.Name, Name: DefaultAccount}
}

func createDefault(ctx context.Context, local *client.Factory, namespace client.Key) error {
	accounts := kinds.ServiceAccounts.InNamespace(local.Cluster(namespace.Cluster.Path()), namespace.Name)
	_, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: DefaultAccount, Namespace: namespace.Name}}, metav1.CreateOptions{})
	switch {
	case err == nil, apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil // it exists, or the namespace was deleted
	default:
		return fmt.Errorf("creating the default service account of namespace %s: %w", namespace, err)
	}
}
