package frontproxy

import (
	"testing"

	"github.com/shardplane/shardplane/pkg/serving/chaintest"
)

// TestChain holds that docs/chains.md shows what requests pass.
func TestChain(t *testing.T) {
	chaintest.Documented(t, "front-proxy", (&handler{router: &router{}, health: &health{}}).chain())
}
