package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// serviceAccounts is how a person gives a program access to a workspace.
func serviceAccounts(t *testing.T, k kubectl, path string) {
	t.Helper()
	k.run(t, path, "", "create", "serviceaccount", "robot")
	k.run(t, path, "", "create", "clusterrolebinding", "robot", "--clusterrole=view", "--serviceaccount=default:robot")
	token := strings.TrimSpace(k.run(t, path, "", "create", "token", "robot", "--duration=10m"))

	// Flags override a kubeconfig's server and CA, but add a token to its certificate.
	as := []string{"--kubeconfig", "/dev/null", "--certificate-authority", filepath.Join(k.cluster.Dir, ".kcp", "serving-ca.crt"), "--token", token}
	run := func(server string, args ...string) (string, error) {
		return k.try(t, path, "", append(append(append([]string{}, as...), "--server", server), args...)...)
	}
	home := k.cluster.Proxy().Host + "/clusters/" + path
	require.Eventually(t, func() bool {
		output, err := run(home, "get", "serviceaccounts", "-o", "name")
		return err == nil && strings.Contains(output, "serviceaccount/robot")
	}, testTimeout, testTimeout/100)
	output, err := run(home, "auth", "whoami")
	require.NoError(t, err, output)
	require.Regexp(t, `Username\s+system:serviceaccount:default:robot`, output)
	require.Contains(t, output, "authentication.kcp.io/cluster-name")
	output, err = run(k.cluster.Proxy().Host, "get", "serviceaccounts", "-o", "name")
	require.NoError(t, err, "the token says which logical cluster it is for: %s", output)
	require.Contains(t, output, "serviceaccount/robot")
	output, err = run(k.cluster.Proxy().Host+"/clusters/root", "get", "configmaps")
	require.Error(t, err)
	require.Contains(t, output, "forbidden")
	k.run(t, path, "", "delete", "serviceaccount", "robot")
	require.Eventually(t, func() bool {
		output, err := run(home, "get", "configmaps")
		return err != nil && (strings.Contains(output, "Unauthorized") || strings.Contains(output, "provide credentials"))
	}, testTimeout, testTimeout/100)
}
