// Package e2e drives the built binary as its users do, with kubectl and
// client-go, and breaks it as machines do.
package e2e

import (
	"os"
	"testing"

	"github.com/shardplane/shardplane/test/harness"
)

func TestMain(m *testing.M) {
	code := m.Run()
	harness.RemoveBinaries()
	os.Exit(code)
}
