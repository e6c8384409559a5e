// Package e2e drives the built binary as its users do, with kubectl and
// client-go, and breaks it as machines do.
package e2e

import (
	"os"
	"testing"

	"github.com/shardplane/shardplane/test/harness"
)

// Tests share these clusters, one after the other, with workspaces of their own.
var (
	// processes are killed and restarted by some.
	processes = harness.Shared{Options: harness.Options{Mode: harness.Processes, Shards: 2, Fsync: true}}
	// withTokens has users who are refused, and do not wait long for that.
	withTokens = harness.Shared{Options: harness.Options{DevTokens: true, ExtraArgs: map[string][]string{"front-proxy": {"--index-timeout=20ms"}}}}
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }
