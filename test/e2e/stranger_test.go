package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKubectlStranger is a user with all rights in one workspace who tries
// others: what kubectl says is helpful, and the same whether they exist or not.
func TestKubectlStranger(t *testing.T) {
	c := withTokens.Get(t)
	k := newKubectl(t, c)
	for _, name := range []string{"mine", "other"} {
		k.run(t, "root", workspaceYAML(name, "root"), "apply", "-f", "-")
		k.run(t, "root", "", "wait", "--for=jsonpath={.status.phase}=Ready", "workspace/"+name, "--timeout=60s")
	}
	k.run(t, "root:mine", "", "create", "clusterrolebinding", "mine", "--clusterrole=cluster-admin", "--user=user-1")
	k.run(t, "root:other", "", "create", "configmap", "treasure")
	other := k.run(t, "root", "", "get", "workspace", "other", "-o", "jsonpath={.spec.cluster}")
	config := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
apiVersion: v1
kind: Config
current-context: me
clusters: [{name: me, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: me, user: {token: user-1-token}}]
contexts: [{name: me, context: {cluster: me, user: me}}]
`, c.Proxy().Host+"/clusters/root:mine", filepath.Join(c.Dir, ".kcp", "serving-ca.crt")), 0o600))
	me := func(path, input string, args ...string) (string, error) {
		return k.try(t, path, input, append([]string{"--kubeconfig", config}, args...)...)
	}

	output, err := me("root:mine", "", "create", "configmap", "treasure")
	require.NoError(t, err, output)
	output, err = me("root:mine", "", "get", "configmaps", "-o", "name")
	require.NoError(t, err, output)
	require.Contains(t, output, "configmap/treasure")

	const configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: treasure}\n"
	for _, command := range []struct {
		input string
		args  []string
	}{
		{args: []string{"get", "configmaps"}},
		{args: []string{"get", "configmap", "treasure", "-o", "yaml"}},
		{args: []string{"get", "workspaces"}},
		{args: []string{"get", "--raw", "/api/v1/namespaces/default/configmaps/treasure"}},
		{args: []string{"get", "--raw", "/openapi/v3"}},
		{args: []string{"create", "-f", "-", "--validate=false"}, input: configMap},
		{args: []string{"delete", "configmap", "treasure"}},
		{args: []string{"auth", "can-i", "--list"}},
		{args: []string{"api-resources"}},
		{args: []string{"--as=kcp-admin", "--as-group=system:masters", "get", "--raw", "/api/v1/secrets"}},
	} {
		t.Run(strings.Join(command.args, " "), func(t *testing.T) {
			for exists, missing := range map[string]string{"root:other": "root:absnt", other: "0123456789abcdef"[:len(other)]} {
				there, thereErr := me(exists, command.input, command.args...)
				nowhere, nowhereErr := me(missing, command.input, command.args...)
				require.Error(t, thereErr)
				require.Error(t, nowhereErr)
				require.Equal(t, nowhereErr.Error(), thereErr.Error(), "exit codes")
				plain := strings.NewReplacer(exists, "THE-WORKSPACE", missing, "THE-WORKSPACE")
				require.Equal(t, timeless(plain.Replace(nowhere)), timeless(plain.Replace(there)))
				require.Contains(t, there, "workspace access not permitted: there is no such workspace, or its administrators have not given this user access to it")
			}
		})
	}
}

// timeless leaves the time of log lines out, and says each line once: kubectl
// repeats some, as often as it asks.
func timeless(output string) string {
	seen := map[string]bool{}
	var lines []string
	for line := range strings.Lines(output) {
		if at := strings.Index(line, "] "); at > 0 && line[0] == 'E' {
			line = line[at:]
		}
		if !seen[line] {
			seen[line] = true
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
