package harness

import (
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/shardplane/shardplane/pkg/dev"
)

// secondCache returns a second cache server with a separate database.
func secondCache(t testing.TB, o Options, command dev.Command, dir string, port int) *Component {
	t.Helper()
	command.Name, command.URL = command.Name+"-2", localURL("https", port)
	command.Args = append(slices.Clone(command.Args), "--secure-port="+strconv.Itoa(port), "--data-dir="+filepath.Join(dir, ".kcp-cache-2"), "--cache-name=second")
	return newComponent(t, o, command, dir)
}
