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

// TokensName is the name of the controller of tokens in secrets.
const TokensName = "serviceaccount-tokens"

// AccountIndex is the index of token secrets by their account; see IndexByAccount.
const AccountIndex = "account"

// Issuer makes tokens that are valid while they stand in their secret.
type Issuer interface {
	IssueLegacy(cluster logicalcluster.Name, account *corev1.ServiceAccount, secret *corev1.Secret) (string, error)
}

// TokensConfig is what the controller of tokens in secrets needs.
type TokensConfig struct {
	// Local reaches the shard itself as system:masters.
	Local *client.Factory
	// Accounts are those of all logical clusters of the shard.
	Accounts *client.Informer[*corev1.ServiceAccount]
	// Secrets are those of type kubernetes.io/service-account-token, with the
	// index AccountIndex.
	Secrets *client.Informer[*corev1.Secret]
	// Issuer makes the tokens.
	Issuer Issuer
	// RootCA is what clients verify servers with; it goes into the secrets.
	// Empty: clients must know themselves.
	RootCA func() []byte
}

// IndexByAccount indexes a token secret by its account.
func IndexByAccount(secret *corev1.Secret) []string {
	key := client.KeyOf(secret)
	return []string{client.Key{Cluster: key.Cluster, Namespace: key.Namespace, Name: secret.Annotations[corev1.ServiceAccountNameKey]}.String()}
}

// NewTokens returns the controller of tokens in secrets. Its keys are secrets.
func NewTokens(config TokensConfig) *reconcile.Controller[client.Key] {
	secrets := config.Secrets.Lister()
	r := &tokenReconciler{
		secret: secrets.Get,
		cached: config.Accounts.Lister().Get,
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
		issue:  config.Issuer.IssueLegacy,
		rootCA: config.RootCA,
	}
	return reconcile.New(reconcile.Config[client.Key]{
		Name:      TokensName,
		Reconcile: r.reconcile,
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
	// cached is the account as the informer has it, and live as the server has it.
	cached func(key client.Key) (*corev1.ServiceAccount, error)
	live   func(ctx context.Context, key client.Key) (*corev1.ServiceAccount, error)
	update func(ctx context.Context, key client.Key, secret *corev1.Secret) error
	remove func(ctx context.Context, key client.Key, secret *corev1.Secret) error
	issue  func(cluster logicalcluster.Name, account *corev1.ServiceAccount, secret *corev1.Secret) (string, error)
	rootCA func() []byte
}

// account finds the account of a secret. The informer may not have seen one that
// was just created, or created again, so that a miss or another account than the
// secret's is asked again at the source: the secret would be deleted.
func (r *tokenReconciler) account(ctx context.Context, key client.Key, secret *corev1.Secret) (*corev1.ServiceAccount, error) {
	if account, err := r.cached(key); err == nil && apiserverserviceaccount.IsServiceAccountToken(secret, account) {
		return account, nil
	}
	return r.live(ctx, key)
}

func (r *tokenReconciler) reconcile(ctx context.Context, key client.Key) (reconcile.Result, error) {
	secret, err := r.secret(key)
	if apierrors.IsNotFound(err) {
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	name := secret.Annotations[corev1.ServiceAccountNameKey]
	if secret.DeletionTimestamp != nil || name == "" {
		return reconcile.Result{}, nil
	}
	account, err := r.account(ctx, client.Key{Cluster: key.Cluster, Namespace: key.Namespace, Name: name}, secret)
	switch {
	case apierrors.IsNotFound(err):
		return reconcile.Result{}, ignoreGone(r.remove(ctx, key, secret))
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("looking up the service account of secret %s: %w", key, err)
	case !apiserverserviceaccount.IsServiceAccountToken(secret, account):
		// The account that it was for has been replaced by another one.
		return reconcile.Result{}, ignoreGone(r.remove(ctx, key, secret))
	}
	filled, err := r.fill(key, account, secret)
	if err != nil || filled == nil {
		return reconcile.Result{}, err
	}
	if err := ignoreGone(r.update(ctx, key, filled)); err != nil {
		return reconcile.Result{}, fmt.Errorf("writing the token into secret %s: %w", key, err)
	}
	return reconcile.Result{}, nil
}

// fill returns the secret with what is missing, or nil where nothing is.
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
			return nil, fmt.Errorf("making the token of secret %s: %w", key, err)
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

// ignoreGone drops errors about an object that is not there any more, or is
// another one by now: an event tells about that.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
