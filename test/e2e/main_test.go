// Package e2e tests the built binary with kubectl and client-go, and with failing processes and networks.
package e2e

import (
	"os"
	"testing"

	"github.com/shardplane/shardplane/test/harness"
)

// Other tests start private clusters, because they require other flags, or restart components.
var (
	processes = harness.Shared{Options: harness.Options{Mode: harness.Processes, Shards: 2, Fsync: true}}
	// withTokens has users without access, and a short timeout for unknown workspaces.
	withTokens = harness.Shared{Options: harness.Options{DevTokens: true, ExtraArgs: map[string][]string{"front-proxy": {"--index-timeout=20ms"}}}}
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }
