package kit

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
)

// CreateWorkspaceType creates a type that extends universal, with more fields in its spec.
func (k WorkspaceClient) CreateWorkspaceType(name, spec string) {
	k.T.Helper()
	k.Create(TenancyPath+"workspacetypes", "%s", WorkspaceTypeWith(name, spec))
}

// WorkspaceTypeWith returns a WorkspaceType that extends universal.
func WorkspaceTypeWith(name, spec string) string {
	return fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":%q},"spec":{"extend":{"with":[{"path":"root","name":"universal"}]},%s}}`, name, spec)
}

// CreateWorkspaceOfType creates a child workspace of a type, specified as <path>:<name> or <name>, on a shard. It returns an
// administrator's client of its logical cluster once that exists.
func (k WorkspaceClient) CreateWorkspaceOfType(name, typ string, shard int) WorkspaceClient {
	k.T.Helper()
	ref := fmt.Sprintf(`"name":%q`, typ)
	if i := strings.LastIndex(typ, ":"); i >= 0 {
		ref = fmt.Sprintf(`"path":%q,"name":%q`, typ[:i], typ[i+1:])
	}
	body := fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":%q},"spec":{"type":{%s},"location":{"selector":{"matchLabels":{"name":%q}}}}}`, name, ref, harness.ShardName(shard))
	var text string
	EventuallyEqual(k.Env, http.StatusCreated, func() (code int) { // the shard may not have observed the type yet
		code, text = k.TryDo(http.MethodPost, TenancyPath+"workspaces", body)
		require.Contains(k.T, []int{http.StatusCreated, http.StatusForbidden}, code, text)
		return code
	}, "creation of workspace %s: %v", name, stringer(func() string { return text }))
	made := k
	made.Config = k.Shard(shard)
	k.Eventually("the workspace has a logical cluster", func() bool {
		made.ClusterName, _ = Field(k.Get(TenancyPath+"workspaces/"+name), "spec", "cluster").(string)
		return made.ClusterName != ""
	})
	made.UntilCode(http.StatusOK, http.MethodGet, LogicalClusterPath, "")
	return made
}

// UntilReady waits until the logical cluster is Ready.
func (k WorkspaceClient) UntilReady() {
	k.T.Helper()
	k.Eventually("the logical cluster is Ready", func() bool { return Field(k.Get(LogicalClusterPath), "status", "phase") == "Ready" })
}
