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

// TestTour runs the README's tour, and that of bindings, as scripts, word by word but for
// the address of the cluster.
func TestTour(t *testing.T) {
	cluster := harness.Start(t, harness.Options{Mode: harness.Processes, Shards: 2})
	for file, wants := range map[string][]string{
		"README.md": {
			`(?m)^workspace.tenancy.kcp.io/demo created$`,
			`(?m)^demo .* Ready .*/clusters/root:demo `,
			`(?m)^default +Active`,
			`(?m)^    kcp.io/cluster: `,
			`(?m)^NAME +DATA +AGE\nkube-root-ca.crt +1 +\w+\ncustomresourcedefinition`,
			`(?m)^first `,
			`(?m)^no\nnot yet$`,
			`(?m)^yes$`,
			`(?m)^no\nnot in root$`,
			`"metadata":{"name":"greeting"`,
			`"shardInfo":{"selector":"shardRange\(`,
			`(?m)^workspace.tenancy.kcp.io "demo" deleted`,
		},
		"docs/bindings.md": {
			`(?m)^apibinding.apis.kcp.io/widgets condition met$`,
			`(?m)^FIELD: size <integer>$`,
			`(?m)^first +\d+s$`,
			`(?m)^widgets +example.org/v1 +true +Widget$`,
			`(?m)^default +first +\d+s\nNo resources found$`,
			`(?m)^default +greeting +1 `,
			`(?m)^size 5$`,
			`(?m)^apiexport.apis.kcp.io "widgets.example.org" deleted\nwidget.example.org/first$`,
			`(?m)^no widgets any more$`,
			`(?m)^workspace.tenancy.kcp.io "consumer" deleted`,
		},
	} {
		t.Run(file, func(t *testing.T) {
			output := runTour(t, cluster, file)
			for _, want := range wants {
				require.Regexp(t, want, output)
			}
		})
	}
}

// runTour runs the tour of a file, and returns what it prints.
func runTour(t *testing.T, cluster *harness.Cluster, file string) string {
	text, err := os.ReadFile(filepath.Join(harness.Root(), file))
	require.NoError(t, err)
	_, tour, found := strings.Cut(string(text), "\n## A tour")
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
	commands := strings.ReplaceAll(script.String(), "https://127.0.0.1:6443", cluster.Proxy().Host)
	require.NotContains(t, commands, ":6443")

	command := exec.CommandContext(t.Context(), "bash", "-c", commands)
	command.Dir = cluster.Dir
	command.Env = append(os.Environ(), "HOME="+t.TempDir(), "PATH="+filepath.Dir(harness.Kubectl(t))+":"+os.Getenv("PATH"))
	output, err := command.CombinedOutput()
	t.Logf("%s", output)
	require.NoError(t, err)
	return string(output)
}
