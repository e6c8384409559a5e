package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// TestFlags holds the flags of all commands, with their defaults: they are what
// operators have in their files, so that one that goes is deprecated before.
func TestFlags(t *testing.T) {
	var lines []string
	var add func(cmd *cobra.Command)
	add = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			line := cmd.CommandPath() + " --" + f.Name
			if f.Shorthand != "" {
				line += ", -" + f.Shorthand
			}
			line += " " + f.Value.Type() + " = " + f.DefValue
			if strings.HasPrefix(f.Name, "fairness-") && f.Value.Type() == "float64" {
				line = strings.TrimSuffix(line, f.DefValue) + "by the number of cores"
			}
			if f.Deprecated != "" {
				line += fmt.Sprintf(" (deprecated, hidden: %t)", f.Hidden)
			}
			lines = append(lines, line)
		})
		for _, child := range cmd.Commands() {
			if child.Name() != "completion" && child.Name() != "help" { // cobra's
				add(child)
			}
		}
	}
	add(newRootCommand())
	slices.Sort(lines)
	got := strings.Join(lines, "\n") + "\n"
	path := filepath.Join("testdata", "flags.golden")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run the test with -update to write it")
	require.Equal(t, string(want), got)
}
