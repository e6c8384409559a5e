package workspaceindex

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "write the results of the scripts in testdata into their .golden files")

// TestScripts runs the scripts in testdata: announcements and lookups, with results in golden files.
func TestScripts(t *testing.T) {
	scripts, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, scripts)
	for _, script := range scripts {
		t.Run(filepath.Base(script), func(t *testing.T) {
			text, err := os.ReadFile(script)
			require.NoError(t, err)
			x, again := NewWorkspaceIndex(), map[string]func(){}
			var out strings.Builder
			for line := range strings.Lines(string(text)) {
				line = strings.TrimSpace(line)
				fmt.Fprintln(&out, line)
				if line == "" || strings.HasPrefix(line, "#") {
					continue
				}
				output, err := runLine(x, again, strings.Fields(line))
				require.NoError(t, err, line)
				out.WriteString(output)
			}
			golden := strings.TrimSuffix(script, ".txt") + ".golden"
			if *rewrite {
				require.NoError(t, os.WriteFile(golden, []byte(out.String()), 0o600))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), out.String())
		})
	}
}

func runLine(x *Index, again map[string]func(), words []string) (string, error) {
	var args []string
	options := map[string]string{}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "phase", "on", "cluster", "created", "migrating", "deleting":
			options[key] = value
		default:
			args = append(args, word)
		}
	}
	phase := corev1alpha1.LogicalClusterPhaseType(options["phase"])
	switch words[0] {
	case "shard":
		x.UpsertShard(args[0], args[1])
	case "delete-shard":
		x.DeleteShard(args[0])
	case "lc":
		created, _ := strconv.ParseInt(options["created"], 10, 64)
		_, migrating := options["migrating"]
		_, deleting := options["deleting"]
		announce := func() {
			x.UpsertLogicalCluster(args[0], LogicalCluster{
				Name: logicalcluster.Name(args[1]), Shard: options["on"], Phase: phase,
				Created: created, Migrating: migrating, Deleting: deleting,
			})
		}
		again[args[0]+" "+args[1]] = announce
		announce()
	case "delete-lc":
		x.DeleteLogicalCluster(args[0], logicalcluster.Name(args[1]))
	case "ws":
		announce := func() {
			x.UpsertWorkspace(args[0], Workspace{
				Parent: logicalcluster.Name(args[1]), Name: args[2],
				Cluster: logicalcluster.Name(options["cluster"]), Phase: phase,
			})
		}
		again[args[0]+" "+args[1]+"/"+args[2]] = announce
		announce()
	case "delete-ws":
		x.DeleteWorkspace(args[0], logicalcluster.Name(args[1]), args[2])
	case "resync": // the shard repeats the announcements of all its logical clusters, and of parent/workspace
		x.Begin(args[0], Workspaces)
		x.Begin(args[0], LogicalClusters)
		for _, arg := range args[1:] {
			again[args[0]+" "+arg]()
		}
		x.Sweep(args[0], Workspaces)
		x.Sweep(args[0], LogicalClusters)
	case "lookup":
		var out strings.Builder
		for _, path := range args {
			target, outcome := x.Lookup(strings.Trim(path, `"`))
			fmt.Fprintf(&out, "    %s: %s %s\n", path, outcome, describe(target))
		}
		return out.String(), nil
	case "stats":
		return fmt.Sprintf("    %+v\n", x.Stats()), nil
	default:
		return "", fmt.Errorf("unknown command %q", words[0])
	}
	return "", nil
}

func describe(target Target) string {
	if target == (Target{}) {
		return "-"
	}
	return fmt.Sprintf("%s on %s (%s) %s", target.Cluster, target.Shard, target.URL, target.Phase)
}
