// Package serviceaccount manages the service accounts of every logical cluster of a shard.
//
//	Name        creates the account "default" in each namespace
//	TokensName  writes the token of the account into secrets of type
//	            kubernetes.io/service-account-token, and deletes them with the account
//
// Requested tokens need no controller: validation checks the objects that they are bound to.
package serviceaccount

import (
	"context"
	"fmt"
	"maps"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiserverserviceaccount "k8s.io/apiserver/pkg/authentication/serviceaccount"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/request"
)

const (
	// Name is the name of the controller of default accounts.
	Name = "serviceaccount"
	// DefaultAccount is the name of the account in each namespace.
	DefaultAccount = "default"
)

// NewServiceAccountController returns the controller of default accounts. The informers contain the objects of all logical clusters of
// the shard. Its keys are namespaces.
func NewServiceAccountController(local *client.Factory, namespaces *client.Informer[*corev1.Namespace], accounts *client.Informer[*corev1.ServiceAccount]) *reconcile.Controller[client.Key] {
	r := &accountReconciler{
		namespace: namespaces.Lister().Get,
		exists: func(key client.Key) bool {
			_, err := accounts.Lister().Get(client.Key{Cluster: key.Cluster, Namespace: key.Name, Name: DefaultAccount})
			return err == nil
		},
		create: func(ctx context.Context, key client.Key) error {
			accounts := kinds.ServiceAccounts.InNamespace(local.Cluster(key.Cluster.Path()), key.Name)
			_, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: DefaultAccount, Namespace: key.Name}}, metav1.CreateOptions{})
			switch {
			case err == nil, apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
				return nil // it exists, or the namespace was deleted
			default:
				return fmt.Errorf("creating the default service account of namespace %s: %w", key, err)
			}
		},
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: Name, Reconcile: r.reconcile,
		Sources: []reconcile.Source[client.Key]{
			reconcile.Keys(namespaces),
			reconcile.OnDelete(accounts, func(account *corev1.ServiceAccount) []client.Key {
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

// TokensName is the name of the controller of tokens in secrets.
const TokensName = "serviceaccount-tokens"

// AccountIndex is the index of token secrets by account.
const AccountIndex = "account"

// Issuer issues tokens that are valid as long as they are stored in their secret.
type Issuer interface {
	IssueLegacy(cluster logicalcluster.Name, account *corev1.ServiceAccount, secret *corev1.Secret) (string, error)
}

// TokensConfig configures the controller of tokens. The informers contain all objects of the shard.
type TokensConfig struct {
	Local    *client.Factory
	Accounts *client.Informer[*corev1.ServiceAccount]
	// Secrets are those of type kubernetes.io/service-account-token, with the index AccountIndex.
	Secrets *client.Informer[*corev1.Secret]
	Issuer  Issuer
	// RootCA returns the CA for verifying the servers, which is stored in the secrets. The result may be empty.
	RootCA func() []byte
}

// IndexByAccount is the index function of AccountIndex.
func IndexByAccount(secret *corev1.Secret) []string {
	key := client.KeyOf(secret)
	return []string{client.Key{Cluster: key.Cluster, Namespace: key.Namespace, Name: secret.Annotations[corev1.ServiceAccountNameKey]}.String()}
}

// NewTokens returns the controller of tokens in secrets. Its keys are secrets.
func NewTokens(config TokensConfig) *reconcile.Controller[client.Key] {
	secrets := config.Secrets.Lister()
	r := &tokenReconciler{
		secret: secrets.Get, cached: config.Accounts.Lister().Get,
		live: func(ctx context.Context, key client.Key) (*corev1.ServiceAccount, error) {
			return kinds.ServiceAccounts.InNamespace(config.Local.Cluster(key.Cluster.Path()), key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		},
		update: func(ctx context.Context, key client.Key, secret *corev1.Secret) error {
			_, err := kinds.Secrets.InNamespace(config.Local.Cluster(key.Cluster.Path()), key.Namespace).Update(request.WithoutBodies(ctx), secret, metav1.UpdateOptions{})
			return err
		},
		remove: func(ctx context.Context, key client.Key, secret *corev1.Secret) error {
			return kinds.Secrets.InNamespace(config.Local.Cluster(key.Cluster.Path()), key.Namespace).Delete(ctx, key.Name,
				metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &secret.UID}})
		},
		issue: config.Issuer.IssueLegacy, rootCA: config.RootCA,
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name: TokensName, Reconcile: r.reconcile,
		Sources: []reconcile.Source[client.Key]{
			reconcile.Keys(config.Secrets),
			reconcile.FromInformer(config.Accounts, func(account *corev1.ServiceAccount) []client.Key {
				return secrets.KeysByIndex(AccountIndex, client.KeyOf(account).String())
			}),
		},
	})
}

type tokenReconciler struct {
	secret func(key client.Key) (*corev1.Secret, error)
	// cached reads the account from the informer, and live from the server.
	cached         func(key client.Key) (*corev1.ServiceAccount, error)
	live           func(ctx context.Context, key client.Key) (*corev1.ServiceAccount, error)
	update, remove func(ctx context.Context, key client.Key, secret *corev1.Secret) error
	issue          func(cluster logicalcluster.Name, account *corev1.ServiceAccount, secret *corev1.Secret) (string, error)
	rootCA         func() []byte
}

// account returns the account of a secret. If the informer does not contain the account of the secret, it may be
// outdated. account then reads from the server, because otherwise the secret would be deleted.
func (r *tokenReconciler) account(ctx context.Context, key client.Key, secret *corev1.Secret) (*corev1.ServiceAccount, error) {
	if account, err := r.cached(key); err == nil && apiserverserviceaccount.IsServiceAccountToken(secret, account) {
		return account, nil
	}
	return r.live(ctx, key)
}

func (r *tokenReconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	secret, err := r.secret(key)
	if err != nil {
		return reconcile.Result{}, reconcile.IgnoreNotFound(err)
	}
	name := secret.Annotations[corev1.ServiceAccountNameKey]
	if secret.DeletionTimestamp != nil || name == "" {
		return reconcile.Result{}, nil
	}
	account, err := r.account(ctx, client.Key{Cluster: key.Cluster, Namespace: key.Namespace, Name: name}, secret)
	switch {
	case apierrors.IsNotFound(err), err == nil && !apiserverserviceaccount.IsServiceAccountToken(secret, account):
		// The account was deleted, or replaced by another one with the same name.
		return reconcile.Result{}, ignoreDeleted(r.remove(ctx, key, secret))
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("looking up the service account of secret %s: %w", key, err)
	}
	filled, err := r.fill(key, account, secret)
	if err != nil || filled == nil {
		return reconcile.Result{}, err
	}
	if err := ignoreDeleted(r.update(ctx, key, filled)); err != nil {
		return reconcile.Result{}, fmt.Errorf("writing the token into secret %s: %w", key, err)
	}
	return reconcile.Result{}, nil
}

// fill returns the secret with the missing data, or nil if it is complete.
func (r *tokenReconciler) fill(key client.Key, account *corev1.ServiceAccount, secret *corev1.Secret) (*corev1.Secret, error) {
	filled := secret.DeepCopy()
	if filled.Data == nil {
		filled.Data = map[string][]byte{}
	}
	changed := false
	set := func(name string, value []byte) {
		if string(filled.Data[name]) != string(value) {
			filled.Data[name], changed = value, true
		}
	}
	if ca := r.rootCA(); len(ca) > 0 {
		set(corev1.ServiceAccountRootCAKey, ca)
	}
	if len(filled.Data[corev1.ServiceAccountNamespaceKey]) == 0 {
		set(corev1.ServiceAccountNamespaceKey, []byte(key.Namespace))
	}
	if len(filled.Data[corev1.ServiceAccountTokenKey]) == 0 {
		token, err := r.issue(key.Cluster, account, secret)
		if err != nil {
			return nil, fmt.Errorf("issuing the token of secret %s: %w", key, err)
		}
		set(corev1.ServiceAccountTokenKey, []byte(token))
	}
	if filled.Annotations[corev1.ServiceAccountUIDKey] != string(account.UID) {
		filled.Annotations = maps.Clone(filled.Annotations)
		filled.Annotations[corev1.ServiceAccountUIDKey] = string(account.UID)
		changed = true
	}
	if !changed {
		return nil, nil
	}
	return filled, nil
}

// ignoreDeleted drops errors about deleted and replaced objects, which are followed by an event.
func ignoreDeleted(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
