package kit

import (
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/parallel"
)

// shared configures the shared cluster, when the first test asks for it: Main also runs in processes
// of an etcd, which have no tests.
var shared struct {
	sync.Once

	configure func(dir string, o *harness.Options)
	dir       string
}

// Main runs the tests of a package. If configure is not nil, it completes the options of the shared
// cluster, e.g. with files in dir.
func Main(m *testing.M, configure func(dir string, o *harness.Options)) {
	parallel.Set(6)
	shared.configure = configure
	code := harness.Main(m)
	if shared.dir != "" {
		_ = os.RemoveAll(shared.dir)
	}
	os.Exit(code)
}

// configureShared completes the options of the shared cluster once.
func configureShared(t *testing.T) {
	t.Helper()
	shared.Do(func() {
		if shared.configure == nil {
			return
		}
		dir, err := os.MkdirTemp("", "shardplane-integration") //nolint:usetesting // it lasts until the package ends
		require.NoError(t, err)
		shared.dir = dir
		shared.configure(dir, &sharedCluster.Options)
	})
}
