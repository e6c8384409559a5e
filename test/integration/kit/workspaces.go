package kit

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/stretchr/testify/require"
)

// CreateWorkspaceType makes a type that extends universal, with more in its spec.
func (k WorkspaceClient) CreateWorkspaceType(name, spec string) {
	k.T.Helper()
	k.Create(TenancyPath+"workspacetypes", "%s", WorkspaceTypeWith(name, spec))
}

// WorkspaceTypeWith returns a WorkspaceType that extends universal.
func WorkspaceTypeWith(name, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":%q},"spec":{"extend":{"with":[{"path":"root","name":"universal"}]},%s}}`, name, spec)
}

// CreateChildOn creates a workspace below the one of k, of a type with its path, on a shard.
func (k WorkspaceClient) CreateChildOn(shard int, name, wt string) WorkspaceClient {
	k.T.Helper()
	path := Field(k.Get(LogicalClusterPath), "metadata", "annotations", "kcp.io/path")
	if of, elsewhere, ok := strings.Cut(wt, ":"); ok {
		path, wt = of, elsewhere
	}
	k.Create(TenancyPath+"workspaces", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":%q},"spec":{"type":{"name":%q,"path":%q},"location":{"selector":{"matchLabels":{"name":%q}}}}}`,
		name, wt, path, []string{"root", "shard-1"}[shard])
	c := k
	c.Config = k.Shard(shard)
	k.Eventually("workspace "+name+" has a logical cluster", func() bool {
		c.ClusterName, _ = Field(k.Get(TenancyPath+"workspaces/"+name), "spec", "cluster").(string)
		if c.ClusterName == "" {
			return false
		}
		code, _ := c.TryDo(http.MethodGet, LogicalClusterPath, "")
		return code == http.StatusOK
	})
	return c
}

// UntilReady waits until the logical cluster is Ready.
func (k WorkspaceClient) UntilReady() {
	k.T.Helper()
	k.Eventually("the logical cluster is Ready", func() bool { return Field(k.Get(LogicalClusterPath), "status", "phase") == "Ready" })
}

// CreateWorkspaceOfType makes a workspace of a type on a shard, and returns its logical cluster, as an
// administrator sees it there, once it exists.
func (k WorkspaceClient) CreateWorkspaceOfType(name, typeName string, shard int) WorkspaceClient {
	k.T.Helper()
	body := fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":%q},"spec":{"type":{"name":%q},"location":{"selector":{"matchLabels":{"name":%q}}}}}`, name, typeName, []string{"root", "shard-1"}[shard])
	k.Eventually("it is made", func() bool { // the type may not be known yet
		code, says := k.TryDo(http.MethodPost, TenancyPath+"workspaces", body)
		require.Contains(k.T, []int{http.StatusCreated, http.StatusForbidden}, code, says)
		return code == http.StatusCreated
	})
	made := k
	made.Config = k.Shard(shard)
	k.Eventually("the logical cluster exists", func() bool {
		made.ClusterName, _ = Field(k.Get(TenancyPath+"workspaces/"+name), "spec", "cluster").(string)
		return made.ClusterName != ""
	})
	made.Eventually("it is there", func() bool {
		code, _ := made.TryDo(http.MethodGet, LogicalClusterPath, "")
		return code == http.StatusOK
	})
	return made
}
