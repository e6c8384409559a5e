package cachedresource

import (
	"context"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/reconcile/secrets"
)

// secretKey returns where the secret is with the identity of a cached resource.
func secretKey(object *cachev1alpha1.CachedResource) client.Key {
	ref := apis.CachedSecretOf(object)
	return client.Key{Cluster: logicalcluster.From(object), Namespace: ref.Namespace, Name: ref.Name}
}

// identify brings the identity of a cached resource to what its secret says, which is made if it
// names none.
func (c *controller) identify(ctx context.Context, object *cachev1alpha1.CachedResource) error {
	key := client.KeyOf(object)
	if conditions.IsTrue(object, cachev1alpha1.CachedResourceIdentityValid) && c.watched.verified(key) {
		return nil
	}
	verified := c.watched.verify(key)
	ref := apis.CachedSecretOf(object)
	scope := c.Local.Cluster(logicalcluster.From(object).Path())
	secret, err := kinds.Secrets.InNamespace(scope, ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	named := object.Spec.Identity != nil && object.Spec.Identity.SecretRef != nil
	if apierrors.IsNotFound(err) && object.Status.IdentityHash == "" && (!named || ref == apis.DefaultSecret(object.Name)) {
		if secret, err = secrets.Create(ctx, scope, apis.NewSecret(ref)); err != nil {
			conditions.MarkFalse(object, cachev1alpha1.CachedResourceIdentityValid, cachev1alpha1.IdentityGenerationFailedReason, conditionsv1alpha1.ConditionSeverityError,
				"The secret %s/%s cannot be made, which is tried again: %v", ref.Namespace, ref.Name, err)
			return nil
		}
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading the secret %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	if err != nil {
		secret = nil
	}
	if problem := verify(object, ref, secret); problem != "" {
		conditions.MarkFalse(object, cachev1alpha1.CachedResourceIdentityValid, cachev1alpha1.IdentityVerificationFailedReason, conditionsv1alpha1.ConditionSeverityError, "%s", problem)
		return nil
	}
	conditions.MarkTrue(object, cachev1alpha1.CachedResourceIdentityValid)
	verified()
	return nil
}

// verify gives a cached resource the identity in a secret, which may be nil, and returns what is
// wrong with it. An identity, once there is one, stays.
func verify(object *cachev1alpha1.CachedResource, ref corev1.SecretReference, secret *corev1.Secret) (problem string) {
	where := ref.Namespace + "/" + ref.Name
	if secret == nil {
		return fmt.Sprintf("The secret %s does not exist: create it with the identity under %q", where, apis.IdentityKey)
	}
	if object.Spec.Identity == nil || object.Spec.Identity.SecretRef == nil {
		object.Spec.Identity = &cachev1alpha1.Identity{SecretRef: &ref}
	}
	key := secret.Data[apis.IdentityKey]
	switch {
	case len(key) == 0:
		return fmt.Sprintf("The secret %s has nothing under %q: put the identity there", where, apis.IdentityKey)
	case object.Status.IdentityHash == "":
		object.Status.IdentityHash = apis.IdentityHash(key)
	case object.Status.IdentityHash != apis.IdentityHash(key):
		return fmt.Sprintf("The secret %s has another identity than status.identityHash, which never changes and under which the objects stay replicated: put the former one back, or make another object", where)
	}
	return ""
}
