package shard

import (
	"testing"

	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client"
)

// TestIdentityFromRoot: while the export of root does not exist or has no identity, nobody is told that the
// resource has none.
func TestIdentityFromRoot(t *testing.T) {
	workspaces := schema.GroupResource{Group: "tenancy.kcp.io", Resource: "workspaces"}
	var export *apisv1alpha2.APIExport
	var failure error
	get := func(name string) (*apisv1alpha2.APIExport, error) {
		require.Equal(t, "tenancy.kcp.io", name)
		return export, failure
	}
	for _, failure = range []error{apierrors.NewNotFound(schema.GroupResource{}, "tenancy.kcp.io"), client.ErrIncomplete} {
		_, err := identityFromRoot(workspaces, get)
		require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
	}
	failure, export = nil, &apisv1alpha2.APIExport{}
	_, err := identityFromRoot(workspaces, get)
	require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
	export.Status.IdentityHash = "h"
	identity, err := identityFromRoot(workspaces, get)
	require.NoError(t, err)
	require.Equal(t, "h", identity)
	identity, err = identityFromRoot(schema.GroupResource{Resource: "configmaps"}, get)
	require.NoError(t, err)
	require.Empty(t, identity, "root exports none of the core group")
}
