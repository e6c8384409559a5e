package apibinding

import (
	"context"
	"errors"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

// contested rejects all names, because the servers use them.
type contested struct{ *world }

var errContested = errors.New("the names are in use")

func (contested) Reserve(context.Context, logicalcluster.Name, string, []types.UID) (func(), string, error) {
	return nil, "", errContested
}

// TestSystemExports: system APIs can be bound although the servers use their names, but only by one binding and from root.
func TestSystemExports(t *testing.T) {
	w := newWorld()
	system := bindingTo("root", "tenancy.kcp.io", "b")
	workspaces := []apisv1alpha2.BoundAPIResource{{Group: "tenancy.kcp.io", Resource: "workspaces"}}
	release, conflict, err := reserve(t.Context(), contested{w}, w.r.siblings, consumer, system, &plan{provider: "root", wanted: workspaces})
	require.NoError(t, err)
	require.Empty(t, conflict)
	release()
	for name, p := range map[string]*plan{
		"tenancy.kcp.io": {provider: "provider", wanted: workspaces},
		"mine":           {provider: "root", wanted: workspaces},
	} {
		_, _, err = reserve(t.Context(), contested{w}, w.r.siblings, consumer, bindingTo("root", name, "b"), p)
		require.ErrorIs(t, err, errContested, "only system exports of root may use the names of the servers")
	}
	w.bind("a")
	w.bindings["a"].Status.BoundResources = workspaces
	_, conflict, err = reserve(t.Context(), contested{w}, w.r.siblings, consumer, system, &plan{provider: "root", wanted: workspaces})
	require.NoError(t, err)
	require.Equal(t, `In group "tenancy.kcp.io", "workspaces" is already in use by APIBinding "a"`, conflict)
}
