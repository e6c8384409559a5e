package registry_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationapply "k8s.io/client-go/applyconfigurations/coordination/v1"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	eventsapply "k8s.io/client-go/applyconfigurations/events/v1"
	"k8s.io/client-go/kubernetes"
)

func TestServerSideApply(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, namespace string) {
		ctx, cms := t.Context(), client.CoreV1().ConfigMaps(namespace)
		alice, bob := metav1.ApplyOptions{FieldManager: "alice"}, metav1.ApplyOptions{FieldManager: "bob"}

		created, err := cms.Apply(ctx, coreapply.ConfigMap("c", namespace).WithData(map[string]string{"a": "alice", "both": "x"}), alice)
		require.NoError(t, err)
		require.NotEmpty(t, created.UID)
		require.Equal(t, metav1.ManagedFieldsOperationApply, created.ManagedFields[0].Operation)
		require.JSONEq(t, `{"f:data":{"f:a":{},"f:both":{}}}`, string(created.ManagedFields[0].FieldsV1.GetRawBytes()))

		_, err = cms.Apply(ctx, coreapply.ConfigMap("c", namespace).WithData(map[string]string{"a": "bob"}), bob)
		require.True(t, apierrors.IsConflict(err), "%v", err)
		require.EqualError(t, err, `Apply failed with 1 conflict: conflict with "alice": .data.a`)
		shared, err := cms.Apply(ctx, coreapply.ConfigMap("c", namespace).WithData(map[string]string{"b": "bob", "both": "x"}), bob)
		require.NoError(t, err)
		require.Len(t, shared.ManagedFields, 2)

		// Fields that alice no longer applies are removed, unless bob owns them, too.
		remaining, err := cms.Apply(ctx, coreapply.ConfigMap("c", namespace), alice)
		require.NoError(t, err)
		require.Equal(t, map[string]string{"b": "bob", "both": "x"}, remaining.Data)

		force := bob
		force.FieldManager, force.Force = "carol", true
		forced, err := cms.Apply(ctx, coreapply.ConfigMap("c", namespace).WithData(map[string]string{"b": "carol"}), force)
		require.NoError(t, err)
		require.Equal(t, "carol", forced.Data["b"])

		_, err = cms.Apply(ctx, coreapply.ConfigMap("c", namespace), metav1.ApplyOptions{})
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		require.ErrorContains(t, err, "fieldManager: Required value: is required for apply patch")
	})
}

// Every resource can be applied, and status and finalize have separate managers.
func TestApplyEveryResource(t *testing.T) {
	client := newClient(t, newServer(t), "application/json")
	ctx := t.Context()
	by := metav1.ApplyOptions{FieldManager: "tester", Force: true}

	namespace, err := client.CoreV1().Namespaces().Apply(ctx, coreapply.Namespace("n").WithLabels(map[string]string{"a": "b"}), by)
	require.NoError(t, err)
	require.Equal(t, corev1.NamespaceActive, namespace.Status.Phase)
	require.JSONEq(t, `{"f:metadata":{"f:labels":{"f:a":{}}}}`, string(namespace.ManagedFields[0].FieldsV1.GetRawBytes()))
	namespace, err = client.CoreV1().Namespaces().ApplyStatus(ctx, coreapply.Namespace("n").WithStatus(coreapply.NamespaceStatus().
		WithConditions(coreapply.NamespaceCondition().WithType("Odd").WithStatus(corev1.ConditionTrue))), by)
	require.NoError(t, err)
	require.Len(t, namespace.Status.Conditions, 1)
	require.Len(t, namespace.ManagedFields, 2)

	secret, err := client.CoreV1().Secrets("n").Apply(ctx, coreapply.Secret("s", "n").WithStringData(map[string]string{"a": "b"}), by)
	require.NoError(t, err)
	require.Equal(t, "b", string(secret.Data["a"]))
	require.Empty(t, secret.StringData)
	_, err = client.CoreV1().ServiceAccounts("n").Apply(ctx, coreapply.ServiceAccount("sa", "n").WithSecrets(coreapply.ObjectReference().WithName("s")), by)
	require.NoError(t, err)
	lease, err := client.CoordinationV1().Leases("n").Apply(ctx, coordinationapply.Lease("l", "n").WithSpec(coordinationapply.LeaseSpec().WithHolderIdentity("me")), by)
	require.NoError(t, err)
	require.Equal(t, "me", *lease.Spec.HolderIdentity)

	event := newEvent("e", "n")
	_, err = client.EventsV1().Events("n").Apply(ctx, eventsapply.Event("e", "n").WithEventTime(event.EventTime).
		WithReportingController("example.com/c").WithReportingInstance("c-1").WithAction("Act").WithReason("Because").WithType("Normal").
		WithRegarding(coreapply.ObjectReference().WithKind("Thing").WithName("t").WithNamespace("n")), by)
	require.NoError(t, err)
	// As in kube-apiserver, the core group does not contain the fields of managers
	// that used the other API, and drops those managers.
	old, err := client.CoreV1().Events("n").Apply(ctx, coreapply.Event("e", "n").WithMessage("hello"), metav1.ApplyOptions{FieldManager: "other"})
	require.NoError(t, err)
	require.Equal(t, "hello", old.Message)
	require.Equal(t, "Because", old.Reason)
}
