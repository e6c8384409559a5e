package cachedresource

import (
	"errors"
	"testing"
	"time"

	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/test/documented"
)

// TestNoClientWithoutChanges: a reconcile without changes needs no client, and there is none here.
func TestNoClientWithoutChanges(t *testing.T) {
	t.Parallel()
	object := cachedOf("c", "one", 0, withReplicas)
	same, err := (&controller{}).commit(t.Context(), object, object.DeepCopy())
	require.NoError(t, err)
	require.Equal(t, object, same)
}

// TestDeletionContinuesSoon: the deletion of replicas is retried soon after the cache server is reachable again, even after a
// long outage.
func TestDeletionContinuesSoon(t *testing.T) {
	t.Parallel()
	of, _ := conflicting(t, map[apis.Publisher]bool{}, nil, nil)
	unreachable, err := client.NewFactory(&rest.Config{Host: "https://127.0.0.1:1"})
	require.NoError(t, err)
	of.Cache = unreachable
	deleted := cachedOf("c", "one", 0, withReplicas, func(cached *cachev1alpha1.CachedResource) {
		cached.Finalizers = []string{cachev1alpha1.CachedResourceFinalizer}
		cached.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-time.Hour)}
	})
	result, err := of.finish(t.Context(), deleting(deleted, errors.New("unreachable")))
	require.NoError(t, err)
	require.False(t, result.Backoff)
	require.Equal(t, maxSoon, result.RequeueAfter)
}

func TestDocumented(t *testing.T) {
	var all []string
	for condition, reasons := range map[conditionsv1alpha1.ConditionType][]string{
		cachev1alpha1.CachedResourceValid:         {cachev1alpha1.CachedResourceValidNoResources, cachev1alpha1.ResourceNotClusterScoped, reasonConverted},
		cachev1alpha1.CachedResourceIdentityValid: {cachev1alpha1.IdentityVerificationFailedReason, cachev1alpha1.IdentityGenerationFailedReason},
		cachev1alpha1.ReplicationStarted: {
			reasonWaiting, reasonAlreadyCached, reasonTooMany, reasonIdentityInUse, reasonNoCache, cachev1alpha1.CachedResourceValidDeleting,
		},
	} {
		for _, reason := range reasons {
			all = append(all, string(condition)+" "+reason)
		}
	}
	require.ElementsMatch(t, documented.Conditions(t, "CachedResource"), all)
}
