package integration

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWorkspacesAsPeopleSeeThem: kubectl says what keeps a workspace waiting, once, and where
// one is.
func TestWorkspacesAsPeopleSeeThem(t *testing.T) {
	e := newEnv(t, two.Get(t))
	parent := newAPIKinds(e, "seen").in(t)
	ready := e.workspaceOn("root:seen", "ready", "shard-1")
	parent.create(tenancyPath+"workspacetypes", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"WorkspaceType","metadata":{"name":"apps"},"spec":{"extend":{"with":[{"name":"universal","path":"root"}]},"initializer":true}}`)
	waiting := parent.workspaceOf("waiting", "apps", 0)
	parent.create(tenancyPath+"workspaces", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"nowhere"},"spec":{"location":{"selector":{"matchLabels":{"name":"no-such-shard"}}}}}`)

	for name, says := range map[string]string{
		"nowhere": `(?s)Events:.*Warning +Unschedulable .* workspace +no shard is available: [a-z]`,
		"waiting": `(?s)Events:.*Normal +InitializerExists .* workspace +Initializers still exist`,
	} {
		parent.eventually("an Event tells why "+name+" waits", func() bool {
			return regexp.MustCompile(says).MatchString(parent.kubectl("describe", "workspace", name))
		})
	}
	for name, reason := range map[string]string{"nowhere": "Unschedulable", "waiting": "InitializerExists"} {
		require.Equal(t, 1, strings.Count(parent.kubectl("get", "events", "-n", "default", "--field-selector", "involvedObject.name="+name), reason))
	}
	require.Contains(t, parent.kubectl("describe", "workspace", "ready"), "<none>", "progress is no news")

	wide := parent.kubectl("get", "workspaces", "-o", "wide")
	require.Regexp(t, `NAME +TYPE +REGION +PHASE +URL +AGE +SHARD +CLUSTER`, wide)
	require.Regexp(t, `ready .* shard-1 +`+ready.Spec.Cluster, wide)
	require.Regexp(t, `waiting .* root +`+waiting.cluster, wide)
	require.NotContains(t, parent.kubectl("get", "workspaces"), "SHARD")
}
