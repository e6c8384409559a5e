// Package chaintest compares handler chains with their documentation in docs/chains.md.
package chaintest

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/serving"
)

var rewrite = flag.Bool("rewrite", false, "write the chain to docs/chains.md instead of comparing it")

// Documented checks that docs/chains.md, two directories above the test, contains the chain of the server.
func Documented(t testing.TB, server string, chain serving.Chain) {
	t.Helper()
	const page, fence = "../../docs/chains.md", "```\n"
	raw, err := os.ReadFile(page)
	require.NoError(t, err)
	before, after, found := strings.Cut(string(raw), "## The "+server+"\n")
	require.True(t, found, "docs/chains.md has no section for the %s", server)
	intro, after, found := strings.Cut(after, fence)
	require.True(t, found)
	shown, after, found := strings.Cut(after, fence)
	require.True(t, found)
	// Filters that an earlier chain contains are only named.
	var filters strings.Builder
	for line := range strings.Lines(chain.String()) {
		if strings.Contains(before, "\n"+line) {
			name, _, _ := strings.Cut(line, "  ")
			line = name + "\n"
		}
		filters.WriteString(line)
	}
	if *rewrite {
		require.NoError(t, os.WriteFile(page, []byte(before+"## The "+server+"\n"+intro+fence+filters.String()+fence+after), 0o600))
		return
	}
	require.Equal(t, shown, filters.String(), "the chain has changed, update docs/chains.md: go test -p 1 ./pkg/shard ./pkg/frontproxy ./pkg/cacheserver -run TestChain -rewrite")
}
