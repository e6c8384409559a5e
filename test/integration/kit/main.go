package kit

import (
	"flag"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
)

// parallel is the number of tests of a package that run at a time. It exceeds the number of CPUs because tests mostly wait.
const parallel = 6

// shared configures the shared cluster when the first test uses it, because Main also runs in etcd processes, which have no tests.
var shared struct {
	sync.Once

	configure func(dir string, o *harness.Options)
	dir       string
}

// Main runs the tests of a package. If configure is not nil, it completes the options of the shared cluster, e.g. with files in dir.
func Main(m *testing.M, configure func(dir string, o *harness.Options)) {
	// Flags are parsed later, so that -parallel takes precedence.
	if err := flag.Set("test.parallel", strconv.Itoa(parallel)); err != nil {
		panic(err)
	}
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
		dir, err := os.MkdirTemp("", "shardplane-integration") //nolint:usetesting // used by all tests of the package
		require.NoError(t, err)
		shared.dir = dir
		shared.configure(dir, &sharedCluster.Options)
	})
}
