package workspace

import (
	"errors"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"

	"github.com/shardplane/shardplane/pkg/client"
)

// Type is a WorkspaceType and the path of its logical cluster.
type Type struct {
	*tenancyv1alpha1.WorkspaceType
	Path logicalcluster.Path
}

// Types finds the types of Workspaces as the controller does.
type Types struct{ lookup lookupType }

// NewTypes returns Types of the informers that Config has too.
func NewTypes(clusters *client.Informer[*corev1alpha1.LogicalCluster], types []*client.Informer[*tenancyv1alpha1.WorkspaceType]) Types {
	return Types{lookupIn(clusters.Lister(), types)}
}

// Of returns the type that a Workspace in the logical cluster of parent has or
// will get, and then all that it extends.
func (t Types) Of(ws *tenancyv1alpha1.Workspace, parent *corev1alpha1.LogicalCluster) ([]Type, error) {
	found, _, p := t.lookup.find(ws, parent)
	if p != nil {
		return nil, errors.New(p.message)
	}
	types := make([]Type, 0, len(found))
	for _, one := range found {
		types = append(types, Type{one.WorkspaceType, one.path})
	}
	return types, nil
}
