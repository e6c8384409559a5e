// Package apis contains integration tests of exports and bindings, in clusters that run in the test process.
package apis

import (
	"testing"

	"github.com/shardplane/shardplane/test/integration/kit"
)

func TestMain(m *testing.M) { kit.Main(m, nil) }
