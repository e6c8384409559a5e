package kit

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/shardplane/shardplane/test/harness"
)

// parallel is how many tests of a package run at a time, because they mostly wait for servers.
const parallel = 6

// Main runs the tests of a package. If configure is not nil, it completes the options of the shared
// cluster, e.g. with files in dir.
func Main(m *testing.M, configure func(dir string, o *harness.Options)) {
	flag.Parse()
	isSet := false
	flag.Visit(func(f *flag.Flag) { isSet = isSet || f.Name == "test.parallel" })
	if !isSet {
		if err := flag.Set("test.parallel", strconv.Itoa(parallel)); err != nil {
			panic(err)
		}
	}
	dir, err := os.MkdirTemp("", "shardplane-integration")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if configure != nil {
		configure(dir, &sharedCluster.Options)
	}
	code := harness.Main(m)
	_ = os.RemoveAll(dir)
	os.Exit(code)
}
