package shard

import (
	"testing"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
)

// TestRootIdentities checks that the last known identity is used while the export of root does not exist or has no
// identity. If there is none, the request must be retried.
func TestRootIdentities(t *testing.T) {
	var export *apisv1alpha2.APIExport
	var failure error
	var identities rootIdentities
	of := func() (string, error) { return identities.of("tenancy.kcp.io", export, failure) }
	absent := func(want func(identity string, err error)) {
		for _, failure = range []error{apierrors.NewNotFound(schema.GroupResource{}, "tenancy.kcp.io"), client.ErrIncomplete, nil} {
			export = &apisv1alpha2.APIExport{}
			want(of())
		}
	}
	absent(func(_ string, err error) { require.True(t, apierrors.IsTooManyRequests(err), "%v", err) })
	for _, hash := range []string{"h", "changed"} {
		export.Status.IdentityHash = hash
		identity, err := of()
		require.NoError(t, err)
		require.Equal(t, hash, identity)
		absent(func(identity string, err error) {
			require.NoError(t, err)
			require.Equal(t, hash, identity)
		})
	}
	identity, err := (&installation{}).knownSystemIdentity(schema.GroupResource{Resource: "configmaps"})
	require.NoError(t, err)
	require.Empty(t, identity, "root has no export for the core group")
}
