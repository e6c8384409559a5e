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

// TestTour runs the commands of the documented tours as scripts. Only the address of the cluster
// is replaced.
func TestTour(t *testing.T) {
	cluster := harness.Start(t, harness.Options{Mode: harness.Processes, Shards: 2})
	for _, tour := range []struct {
		file, section string
		wants         []string
	}{
		{"docs/tour.md", "A tour in five minutes", []string{
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
		}},
		{"README.md", "Quickstart", []string{
			`(?m)^workspace.tenancy.kcp.io/demo condition met$`,
			`(?m)^configmap/greeting created$`,
		}},
		{"docs/bindings.md", "A tour", []string{
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
		}},
	} {
		t.Run(tour.file, func(t *testing.T) {
			output := runTour(t, cluster, tour.file, tour.section)
			for _, want := range tour.wants {
				require.Regexp(t, want, output)
			}
		})
	}
}

// runTour runs the commands in a section of a page and returns their output.
func runTour(t *testing.T, cluster *harness.Cluster, file, section string) string {
	text, err := os.ReadFile(filepath.Join(harness.Root(), file))
	require.NoError(t, err)
	_, tour, found := strings.Cut(string(text), "\n## "+section+"\n")
	require.True(t, found)
	tour, _, found = strings.Cut(tour, "\n## ")
	require.True(t, found)

	var script strings.Builder
	script.WriteString("set -e\n")
	for _, fence := range codeFence.FindAllStringSubmatch(tour, -1) {
		if strings.HasPrefix(fence[1], "NAME ") || fence[1] == "make dev\n" {
			continue // output of a command, or the cluster that is already running
		}
		script.WriteString(fence[1])
	}
	commands := strings.ReplaceAll(script.String(), "https://127.0.0.1:6443", cluster.Proxy().Host)
	require.NotContains(t, commands, ":6443")
	commands = strings.ReplaceAll(commands, "docs/examples/", filepath.Join(harness.Root(), "docs/examples")+"/")

	command := exec.CommandContext(t.Context(), "bash", "-c", commands)
	command.Dir = cluster.Dir
	command.Env = append(os.Environ(), "HOME="+t.TempDir(), "PATH="+filepath.Dir(harness.Kubectl(t))+":"+os.Getenv("PATH"))
	output, err := command.CombinedOutput()
	t.Logf("%s", output)
	require.NoError(t, err)
	return string(output)
}
