package apis

import (
	"os"
	"testing"

	"github.com/shardplane/shardplane/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }
