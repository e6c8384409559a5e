package registry_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestServiceAccounts(t *testing.T) {
	seen := &warnings{}
	config := rest.CopyConfig(newServer(t))
	config.WarningHandlerWithContext = seen
	forEachEncoding(t, config, func(t *testing.T, client kubernetes.Interface, namespace string) {
		accounts := client.CoreV1().ServiceAccounts(namespace)
		created, err := accounts.Create(t.Context(), &corev1.ServiceAccount{
			ObjectMeta: named("sa"),
			Secrets:    []corev1.ObjectReference{{Name: "s", Namespace: "elsewhere", Kind: "Secret", UID: "u"}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Equal(t, []corev1.ObjectReference{{Name: "s"}}, created.Secrets)

		created.Secrets = append(created.Secrets, corev1.ObjectReference{Name: "t", Kind: "Secret"})
		updated := mustUpdate(t, accounts, created)
		require.Equal(t, []corev1.ObjectReference{{Name: "s"}, {Name: "t"}}, updated.Secrets)

		_, err = accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: named("S_A")}, metav1.CreateOptions{})
		requireCauses(t, err, "metadata.name: FieldValueInvalid")

		seen.texts = nil
		_, err = accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
			Name: "old", Annotations: map[string]string{"kubernetes.io/enforce-mountable-secrets": "true"},
		}}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Equal(t, []string{"metadata.annotations[kubernetes.io/enforce-mountable-secrets]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"}, seen.texts)
	})
}

func TestLeases(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, namespace string) {
		leases := client.CoordinationV1().Leases(namespace)
		invalid := &coordinationv1.Lease{ObjectMeta: named("x")}
		invalid.Spec.LeaseTransitions = new(int32(-1))
		_, err := leases.Create(t.Context(), invalid, metav1.CreateOptions{})
		requireInvalid(t, err, `Lease.coordination.k8s.io "x" is invalid: `,
			"spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0")

		// Fields of coordinated leader election are disabled.
		created, err := leases.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: named("l"), Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("me"), PreferredHolder: new("you"), Strategy: new(coordinationv1.OldestEmulationVersion),
		}}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Nil(t, created.Spec.Strategy)
		require.Nil(t, created.Spec.PreferredHolder)

		// An update must specify a resourceVersion.
		blind := created.DeepCopy()
		blind.ResourceVersion = ""
		_, err = leases.Update(t.Context(), blind, metav1.UpdateOptions{})
		requireRefusal(t, err, metav1.StatusReasonInvalid, `leases.coordination.k8s.io "l" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update`)

		// And a PUT may create, but not for every resource.
		put := mustUpdate(t, leases, &coordinationv1.Lease{ObjectMeta: named("put")})
		require.NotEmpty(t, put.UID)
		_, err = client.CoreV1().ConfigMaps(namespace).Update(t.Context(), configMap("put"), metav1.UpdateOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)

		stale := created.DeepCopy()
		created.Spec.HolderIdentity = new("other")
		mustUpdate(t, leases, created)
		_, err = leases.Update(t.Context(), stale, metav1.UpdateOptions{})
		require.True(t, apierrors.IsConflict(err), "%v", err)
		require.EqualError(t, err, `Operation cannot be fulfilled on leases.coordination.k8s.io "l": the object has been modified; please apply your changes to the latest version and try again`)
	})
}
