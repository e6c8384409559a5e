package apibinding

import (
	"context"
	"errors"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/reconcile"
	"github.com/shardplane/shardplane/pkg/request"
)

// TestNoDeletionsWithIncompleteData: while the exports of other shards are unknown, another binding may take the objects over.
func TestNoDeletionsWithIncompleteData(t *testing.T) {
	for name, forget := range map[string]func(*world){
		"path": func(w *world) {
			w.r.resolve = func(logicalcluster.Path, string) (logicalcluster.Name, error) { return "", errIncomplete }
		},
		"export": func(w *world) {
			w.r.export = func(client.Key) (*apisv1alpha2.APIExport, error) { return nil, errIncomplete }
		},
		"schema": func(w *world) {
			w.r.schema = func(client.Key) (*metav1.PartialObjectMetadata, error) { return nil, errIncomplete }
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := offering("a")
			w.converge(t)
			w.bind("b")
			w.bindings["b"].Status.APIExportClusterName = ""
			w.objects["widgets/"+widgetsOne] = 3
			export, schema, resolve := w.r.export, w.r.schema, w.r.resolve
			forget(w)
			w.remove("a")
			require.Equal(t, reconcile.Result{Backoff: true}, w.mustReconcile(t, "a"))
			require.NotNil(t, w.bindings["a"])
			require.Equal(t, 3, w.objects["widgets/"+widgetsOne])

			w.r.export, w.r.schema, w.r.resolve = export, schema, resolve
			w.converge(t)
			require.Nil(t, w.bindings["a"])
			require.Equal(t, 3, w.objects["widgets/"+widgetsOne], "taken over")
		})
	}
}

// TestDeletionWhileIncomplete: a logical cluster that is being deleted does not wait for the exports of other shards,
// because it deletes unserved objects itself.
func TestDeletionWhileIncomplete(t *testing.T) {
	w := newWorld()
	w.bind("a")
	w.r.resolve = func(logicalcluster.Path, string) (logicalcluster.Name, error) { return "", errIncomplete }
	w.remove("a")
	require.True(t, w.mustReconcile(t, "a").Backoff)
	require.Contains(t, conditions.GetMessage(w.bindings["a"], apisv1alpha2.BindingResourceDeleteSuccess), "the cache server is unreachable")
	w.lc.DeletionTimestamp = new(metav1.Now())
	w.mustReconcile(t, "a")
	require.Nil(t, w.bindings["a"])
}

type copyless struct{ *world }

func (copyless) Reserve(context.Context, logicalcluster.Name, string, []types.UID) (func(), string, error) {
	return nil, "", errNone
}

func (copyless) Empty(context.Context, logicalcluster.Name, *apisv1alpha2.BoundAPIResource) (int, map[string]int, error) {
	return 0, nil, errNone
}

// TestDeletedCopies: bindings that need a deleted copy of a schema are requeued, because there is no event for its
// creation. A deleted binding is not an error.
func TestDeletedCopies(t *testing.T) {
	w := bound(t)
	w.r.apis = copyless{w}
	w.remove("a")
	require.ErrorIs(t, w.reconcile(t, "a"), errNone)
	w.bind("b")
	require.ErrorIs(t, w.reconcile(t, "b"), errNone)
	require.Equal(t, resourceDeletionFailed, conditions.GetReason(w.bindings["a"], apisv1alpha2.BindingResourceDeleteSuccess))
	w.r.apis = w
	w.r.commit = func(context.Context, *apisv1alpha2.APIBinding, *apisv1alpha2.APIBinding) (*apisv1alpha2.APIBinding, error) {
		return nil, errNone
	}
	require.NoError(t, w.reconcile(t, "a"))
	require.NoError(t, w.reconcile(t, "b"))
}

// TestWaitingIsReported: only a binding that has not been bound reports what it waits for.
func TestWaitingIsReported(t *testing.T) {
	w := offering("a")
	w.converge(t)
	bound := w.bindings["a"].DeepCopy()
	w.bind("b")
	resolve, schema, readSchema := w.r.resolve, w.r.schema, w.r.readSchema
	reports := func(want string) {
		t.Helper()
		for range 2 { // the second time, nothing changes
			before := w.version
			for _, name := range []string{"a", "b"} {
				require.True(t, w.mustReconcile(t, name).Backoff || name == "a", "the binding must be retried")
			}
			require.LessOrEqual(t, w.version, before+1)
		}
		before := w.version
		w.mustReconcile(t, "b")
		require.Equal(t, before, w.version)
		require.Equal(t, bound, w.bindings["a"])
		for _, kind := range []conditionsv1alpha1.ConditionType{apisv1alpha2.InitialBindingCompleted, apisv1alpha2.BindingUpToDate, conditionsv1alpha1.ReadyCondition} {
			require.Equal(t, "WaitingForReplicas", conditions.GetReason(w.bindings["b"], kind))
			require.Equal(t, "Waiting for the state of other shards: "+want, conditions.GetMessage(w.bindings["b"], kind))
		}
		require.Equal(t, []string{apis.BindingFinalizer}, w.bindings["b"].Finalizers)
	}
	w.r.resolve = func(logicalcluster.Path, string) (logicalcluster.Name, error) { return "", errIncomplete }
	reports("not all objects are loaded yet: the cache server is unreachable")

	// The location of a schema is part of the observed state.
	w.r.resolve = resolve
	w.r.schema = func(key client.Key) (*metav1.PartialObjectMetadata, error) {
		found, err := schema(key)
		if found != nil {
			found.Annotations = map[string]string{request.ShardAnnotation: "far"}
		}
		return found, err
	}
	w.r.readSchema = func(context.Context, client.Key) (*apis.APIResourceSchema, error) {
		return nil, errors.New("connection refused by 10.0.0.1")
	}
	w.pinned = map[types.UID]bool{}
	reports("resource widgets of APIExport e: not all objects are loaded yet: the cache server did not return the APIResourceSchema " + widgetsOne + " of shard far")

	w.r.readSchema = func(context.Context, client.Key) (*apis.APIResourceSchema, error) { return nil, errNone }
	reports("resource widgets of APIExport e: not all objects are loaded yet: the cache server does not contain the APIResourceSchema " + widgetsOne + " of shard far")

	w.r.readSchema = readSchema
	w.remove("a")
	w.converge(t)
	require.True(t, conditions.IsTrue(w.bindings["b"], apisv1alpha2.InitialBindingCompleted))
}

// TestClaimsWhileIncomplete: bound resources stay bound, and claims are accepted and rejected, while other shards are unknown.
func TestClaimsWhileIncomplete(t *testing.T) {
	w := offering("b")
	secrets := claimFor("secrets", "get", "list")
	claims([]apisv1alpha2.PermissionClaim{secrets}, accepts(secrets, "*"))(w)
	w.converge(t)
	before := w.bindings["b"].DeepCopy()
	require.Len(t, before.Status.AppliedPermissionClaims, 1)
	w.r.schema = func(client.Key) (*metav1.PartialObjectMetadata, error) { return nil, errIncomplete }
	for _, verbs := range [][]string{{}, {"get"}, {"*"}} {
		accepted := accepts(secrets, verbs...)
		if len(verbs) == 0 {
			accepted.State = apisv1alpha2.ClaimRejected
		}
		w.bindings["b"].Spec.PermissionClaims = []apisv1alpha2.AcceptablePermissionClaim{accepted}
		require.True(t, w.mustReconcile(t, "b").Backoff)
		applied := w.bindings["b"].Status.AppliedPermissionClaims
		require.Equal(t, len(verbs) > 0, len(applied) == 1, "%v", verbs)
		if len(verbs) == 1 && verbs[0] == "get" {
			require.Equal(t, verbs, applied[0].Verbs)
			require.Contains(t, conditionOf(w.bindings["b"], claimsValid), "PermissionClaimsMismatch")
		}
	}
	require.Equal(t, before.Status.AppliedPermissionClaims, w.bindings["b"].Status.AppliedPermissionClaims)
	require.Equal(t, before.Status.BoundResources, w.bindings["b"].Status.BoundResources)
}
