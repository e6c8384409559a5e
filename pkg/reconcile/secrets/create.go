// Package secrets creates Secrets in which controllers store generated data for tenants.
package secrets

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
)

// Create creates a Secret, and its namespace if necessary. It returns the existing Secret if there is one.
func Create(ctx context.Context, scope client.Scope, secret *corev1.Secret) (*corev1.Secret, error) {
	secrets := kinds.Secrets.InNamespace(scope, secret.Namespace)
	created, err := secrets.Create(ctx, secret, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: secret.Namespace}}
		if _, err := kinds.Namespaces.In(scope).Create(ctx, namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("creating the namespace %s: %w", secret.Namespace, err)
		}
		created, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
	}
	if apierrors.IsAlreadyExists(err) {
		return secrets.Get(ctx, secret.Name, metav1.GetOptions{})
	}
	return created, err
}
