package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
)

var codeFence = regexp.MustCompile("(?ms)^```\n(.*?)^```$") //nolint:gocritic // ^ is the start of a line here

// TestTour runs the README's tour as one script, word by word but for the
// address of the cluster.
func TestTour(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(harness.Root(), "README.md"))
	require.NoError(t, err)
	_, tour, found := strings.Cut(string(readme), "\n## A tour")
	require.True(t, found)
	tour, _, found = strings.Cut(tour, "\n## ")
	require.True(t, found)

	var script strings.Builder
	script.WriteString("set -e\n")
	for _, fence := range codeFence.FindAllStringSubmatch(tour, -1) {
		if strings.HasPrefix(fence[1], "NAME ") {
			continue // what a command prints
		}
		script.WriteString(fence[1])
	}
	cluster := harness.Start(t, harness.Options{Mode: harness.Processes, Shards: 2})
	text := strings.ReplaceAll(script.String(), "https://127.0.0.1:6443", cluster.Proxy().Host)
	require.NotContains(t, text, ":6443")

	command := exec.CommandContext(t.Context(), "bash", "-c", text)
	command.Dir = cluster.Dir
	command.Env = append(os.Environ(), "HOME="+t.TempDir(), "PATH="+filepath.Dir(harness.Kubectl(t))+":"+os.Getenv("PATH"))
	output, err := command.CombinedOutput()
	t.Logf("%s", output)
	require.NoError(t, err)
	for _, want := range []string{
		`(?m)^workspace.tenancy.kcp.io/demo created$`,
		`(?m)^demo .* Ready .*/clusters/root:demo `,
		`(?m)^default +Active`,
		`(?m)^    kcp.io/cluster: `,
		`(?m)^No resources found in default namespace.$`,
		`(?m)^first `,
		`(?m)^no\nnot yet$`,
		`(?m)^yes$`,
		`(?m)^no\nnot in root$`,
		`"metadata":{"name":"greeting"`,
		`"shardInfo":{"selector":"shardRange\(`,
		`(?m)^workspace.tenancy.kcp.io "demo" deleted`,
	} {
		require.Regexp(t, want, string(output))
	}
}
