// Package pages runs the commands in pages of the documentation.
package pages

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/ports"
)

// codeFence matches a block of commands, or of a Go program.
var codeFence = regexp.MustCompile("(?ms)^```(go|)\n(.*?)^```$") //nolint:gocritic // ^ is the start of a line here

// TestDocumentedCommands runs the commands of pages as scripts, each in a new directory. Only the
// address of the cluster and the path of the checkout are replaced.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	cluster := harness.Start(t, harness.Options{Mode: harness.Processes, Shards: 2})
	for _, page := range []struct {
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
		{"docs/tasks/publish-api.md", "", []string{
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
		{"docs/tasks/give-access.md", "", []string{
			`(?m)^no access$`,
			`(?m)^configmap/greeting created$`,
			`(?m)^yes$`,
			`(?m)^workspace.tenancy.kcp.io "shop" deleted`,
		}},
		{"docs/tasks/choose-shard.md", "", []string{
			`(?m)^overseas +organization +us +Ready .* shard-1 `,
			`(?m)^workspace.tenancy.kcp.io "overseas" deleted`,
		}},
		{"docs/tasks/follow-shards.md", "", []string{
			`(?m)^https.*/shards/root/.*\nNAME +AGE\nfrom-here `,
			`(?m)^https.*/shards/shard-1/.*\nNAME +AGE\nfrom-there `,
			`(?m)controller-access created\n(.*\n)*NAME +AGE\nfrom-`,
		}},
		{"docs/tasks/write-controller.md", "", []string{
			`(?m)^(configmap/fruit condition met\nconfigmap/fruit patched\nconfigmap/fruit condition met\n){2}workspace`,
		}},
		{"docs/tasks/workspace-not-ready.md", "", []string{
			`(?m)^WorkspaceScheduled=False Unschedulable: `,
			`(?m)^└── nowhere +organization +Ready`,
		}},
		{"docs/tasks/backup.md", "", []string{
			`(?m)^Saved \d+ bytes to shard-1.snapshot`,
			`(?m)^Restored shard-1.snapshot into restored`,
		}},
		{"docs/tasks/roll-back.md", "", []string{`k8s.io/apiserver v`}},
	} {
		t.Run(page.file, func(t *testing.T) {
			output := runPage(t, cluster, page.file, page.section)
			for _, want := range page.wants {
				require.Regexp(t, want, output)
			}
		})
	}
}

// TestInstall runs the commands for installing a cluster and adding a shard, on ports of this machine instead of several hosts.
func TestInstall(t *testing.T) {
	t.Parallel()
	base := ports.Free(t, 5)
	var replacements []string
	for n := range 5 {
		replacements = append(replacements, fmt.Sprint(6442+n), fmt.Sprint(base+n))
	}
	for n := 1; n <= 4; n++ {
		replacements = append(replacements, fmt.Sprintf("host%d.example.com", n), "localhost")
	}
	replacements = append(replacements, "$host.example.com", "localhost", "0.0.0.0", "127.0.0.1")
	commands := commandsOf(t, "docs/tasks/install.md", "") + commandsOf(t, "docs/tasks/add-shard.md", "")
	output := runScript(t, t.TempDir(), strings.NewReplacer(replacements...).Replace(commands))
	require.Regexp(t, `(?m)^workspace.tenancy.kcp.io/first condition met$`, output)
	require.Regexp(t, `(?m)^shard.core.kcp.io/shard-2 condition met$`, output)
}

// runPage runs the commands in a section, or in all sections if it is "", and returns their output.
func runPage(t *testing.T, cluster *harness.Cluster, file, section string) string {
	commands := strings.ReplaceAll(commandsOf(t, file, section), "https://127.0.0.1:6443", cluster.Proxy().Host)
	require.NotContains(t, commands, ":6443")
	commands = strings.ReplaceAll(commands, "docs/examples/", filepath.Join(harness.Root(), "docs/examples")+"/")
	commands = strings.ReplaceAll(commands, "checkout=$PWD\n", "checkout="+harness.Root()+"\n")
	dir := t.TempDir()
	data, err := filepath.Glob(filepath.Join(cluster.Dir, ".kcp*"))
	require.NoError(t, err)
	for _, from := range data {
		require.NoError(t, os.Symlink(from, filepath.Join(dir, filepath.Base(from))))
	}
	return runScript(t, dir, commands)
}

// commandsOf returns the commands in a section, or in all sections if it is "".
func commandsOf(t *testing.T, file, section string) string {
	content := harness.ReadFile(t, filepath.Join(harness.Root(), file))
	text := string(content)
	if section != "" {
		var found bool
		_, text, found = strings.Cut(text, "\n## "+section+"\n")
		require.True(t, found)
		text, _, found = strings.Cut(text, "\n## ")
		require.True(t, found)
	}
	var script strings.Builder
	for _, fence := range codeFence.FindAllStringSubmatch(text, -1) {
		switch language, block := fence[1], fence[2]; {
		case language == "go":
			script.WriteString("cat >main.go <<'END'\n" + block + "END\n")
		case strings.HasPrefix(block, "NAME ") || block == "make dev\n":
			// output of a command, or the command that starts the cluster
		default:
			script.WriteString(block)
		}
	}
	require.NotEmpty(t, script.String())
	return script.String()
}

// runScript runs commands with bash in a directory until one fails, stops the background processes, and returns the output.
func runScript(t *testing.T, dir, commands string) string {
	if _, err := exec.LookPath("openssl"); err != nil {
		require.FailNow(t, "the documented commands need openssl: install it, e.g. apt-get install openssl")
	}
	bin := t.TempDir()
	require.NoError(t, os.Symlink(harness.Binary(t), filepath.Join(bin, "shardplane")))
	command := exec.CommandContext(t.Context(), "bash", "-c", "set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n"+commands)
	command.Dir = dir
	// The caches of Go are below HOME.
	goEnv, err := exec.CommandContext(t.Context(), "go", "env", "GOCACHE", "GOMODCACHE").Output()
	require.NoError(t, err)
	cache, modules, _ := strings.Cut(strings.TrimSpace(string(goEnv)), "\n")
	command.Env = append(os.Environ(), "HOME="+t.TempDir(), "GOCACHE="+cache, "GOMODCACHE="+modules,
		"PATH="+bin+":"+filepath.Dir(harness.Kubectl(t))+":"+os.Getenv("PATH"))
	output, err := command.CombinedOutput()
	t.Logf("%s", output)
	require.NoError(t, err)
	return string(output)
}
