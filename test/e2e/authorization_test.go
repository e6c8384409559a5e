package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKubectlAuth checks kubectl auth for a user with different permissions in two workspaces.
func TestKubectlAuth(t *testing.T) {
	t.Parallel()
	c := withTokens.Get(t)
	k := newKubectl(t, c)
	for name, verb := range map[string]string{"one": "get", "two": "create"} {
		k.run(t, "root", workspaceYAML(name, "root"), "apply", "-f", "-")
		k.run(t, "root", "", "wait", "--for=jsonpath={.status.phase}=Ready", "workspace/"+name, "--timeout=60s")
		path := "root:" + name
		k.run(t, path, "", "create", "clusterrolebinding", "access", "--clusterrole=system:kcp:workspace:access", "--user=user-1")
		k.run(t, path, "", "create", "role", "same", "--verb="+verb, "--resource=configmaps")
		k.run(t, path, "", "create", "rolebinding", "same", "--role=same", "--group=team-1")
	}
	// The administrator impersonates the user, because client certificates in the kubeconfig take precedence over a token.
	as := []string{"--as=user-1", "--as-group=team-1", "auth"}
	auth := func(path string, args ...string) string {
		output, _ := k.try(t, path, "", append(append([]string{}, as...), args...)...) // kubectl fails if the response is "no"
		return output
	}
	require.Equal(t, "yes\n", auth("root:one", "can-i", "get", "configmaps"))
	require.Equal(t, "no\n", auth("root:one", "can-i", "create", "configmaps"))
	require.Equal(t, "no\n", auth("root:two", "can-i", "get", "configmaps"))
	require.Equal(t, "yes\n", auth("root:two", "can-i", "create", "configmaps"))
	list := auth("root:one", "can-i", "--list")
	require.Regexp(t, `configmaps +\[\] +\[\] +\[get\]`, list)
	require.Regexp(t, `\[/\] +\[\] +\[access\]`, list)
	require.Regexp(t, `selfsubjectaccessreviews.authorization.k8s.io +\[\] +\[\] +\[create\]`, list)
	require.NotContains(t, list, "secrets")
	require.NotContains(t, list, "*.*")
	require.Regexp(t, `Username +user-1\s`, auth("root:one", "whoami"))
	require.Contains(t, k.run(t, "root:one", "", "auth", "can-i", "--list"), "*.*")

	output, err := k.try(t, "root:two", "", append([]string{"--as=user-5"}, "get", "--raw", "/api/v1/configmaps")...)
	require.Error(t, err)
	require.Contains(t, output, "workspace access not permitted")
	output, err = k.try(t, "root:two", "", "--as=user-5", "get", "configmaps")
	require.Error(t, err)
	require.Contains(t, output, "Warning: workspace access not permitted: the workspace does not exist, or", "kubectl itself only reports an unknown resource")
	table := k.run(t, "root:one", "", "get", "rolebindings,clusterrolebindings", "-o", "wide")
	require.Regexp(t, `same +Role/same +\S+ +team-1`, table)
	require.Regexp(t, `workspace-admin +ClusterRole/cluster-admin +\S+ +kcp-admin`, table)
}
