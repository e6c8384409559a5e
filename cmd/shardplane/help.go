package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	cliflag "k8s.io/component-base/cli/flag"
)

const (
	defaultHelpWidth = 100
	maxHelpWidth     = 120
)

// addFlags adds flags in sections, which the help shows.
func addFlags(cmd *cobra.Command, sections cliflag.NamedFlagSets) {
	sections.FlagSet("Other").BoolP("help", "h", false, "help for "+cmd.Name())
	for _, section := range sections.FlagSets {
		cmd.Flags().AddFlagSet(section)
	}
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		out := cmd.OutOrStderr()
		_, _ = fmt.Fprintf(out, "Usage:\n  %s\n", cmd.UseLine())
		if cmd.HasExample() {
			_, _ = fmt.Fprintf(out, "\nExamples:\n%s\n", cmd.Example)
		}
		width := helpWidth(cmd.Root().OutOrStdout()) // the output is a buffer while the help is rendered
		for _, name := range sections.Order {
			_, _ = fmt.Fprintf(out, "\n%s:\n%s", name, sections.FlagSets[name].FlagUsagesWrapped(width))
		}
		return nil
	})
}

func helpWidth(out io.Writer) int {
	file, ok := out.(*os.File)
	if !ok {
		return defaultHelpWidth
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil || width <= 0 {
		return defaultHelpWidth
	}
	return min(width, maxHelpWidth)
}

const (
	groupDev     = "dev"
	groupServers = "servers"
	groupClients = "clients"
	groupData    = "data"
)
