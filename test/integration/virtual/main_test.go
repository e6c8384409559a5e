// Package virtual contains integration tests of virtual workspaces, permission claims, and replicated objects, in clusters that run in
// the test process.
package virtual

import (
	"testing"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

func TestMain(m *testing.M) {
	kit.Main(m, func(_ string, o *harness.Options) {
		// For TestCachedResourceBytes. Other workspaces replicate less.
		o.ExtraArgs["shard"] = []string{"--max-cached-bytes=24Ki"}
	})
}
