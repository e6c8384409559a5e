package access

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/integration/kit"
)

// TestWorkspacesInKubectl checks that kubectl shows the shard of a workspace, and reports once why a workspace is waiting.
func TestWorkspacesInKubectl(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	parent := kit.NewWorkspaceClient(e, "seen").ForTest(t)
	ready := e.WorkspaceOn("root:seen", "ready", "shard-1")
	parent.Create(kit.TenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"apps"},"spec":{"extend":{"with":[{"name":"universal","path":"root"}]},"initializer":true}}`)
	waiting := parent.CreateWorkspaceOfType("waiting", "apps", 0)
	parent.Create(kit.TenancyPath+"workspaces", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"nowhere"},"spec":{"location":{"selector":{"matchLabels":{"name":"no-such-shard"}}}}}`)

	for name, message := range map[string]string{
		"nowhere": `(?s)Events:.*Warning +Unschedulable .* workspace +no shard is available: [a-z]`,
		"waiting": `(?s)Events:.*Normal +InitializerExists .* workspace +Initializers still exist`,
	} {
		parent.Eventually("an Event reports the reason for "+name, func() bool {
			return regexp.MustCompile(message).MatchString(parent.Kubectl("describe", "workspace", name))
		})
	}
	for name, reason := range map[string]string{"nowhere": "Unschedulable", "waiting": "InitializerExists"} {
		require.Equal(t, 1, strings.Count(parent.Kubectl("get", "events", "-n", "default", "--field-selector", "involvedObject.name="+name), reason))
	}

	wide := parent.Kubectl("get", "workspaces", "-o", "wide")
	require.Regexp(t, `NAME +TYPE +REGION +PHASE +URL +AGE +SHARD +CLUSTER`, wide)
	require.Regexp(t, `ready .* shard-1 +`+ready.Spec.Cluster, wide)
	require.Regexp(t, `waiting .* root +`+waiting.ClusterName, wide)
	require.NotContains(t, parent.Kubectl("get", "workspaces"), "SHARD")
}
