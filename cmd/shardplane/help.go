package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

const (
	defaultHelpWidth = 100
	maxHelpWidth     = 120
	sectionOther     = "Other"
)

// helpSections are the headings below which flags are shown, in this order;
// the names are those of flags, or with a star their beginnings. What matches
// none is shown last.
var helpSections = []struct {
	title string
	names []string
}{
	{"Cluster", []string{"shards", "work-dir", "start-timeout", "shard-arg"}},
	{"Ports", []string{"front-proxy-port", "shard-port", "cache-server-port"}},
	{"Identity", []string{"name", "cache-server", "external-url", "base-url", "leader-elect"}},
	{"Other components", []string{"kubeconfig", "context", "root-kubeconfig", "cache-kubeconfig", "shard-c*", "proxy-client*"}},
	{"Serving", []string{"bind-address", "secure-port", "tls-*", "disable-http2-serving", "http2-*", "max-*", "feature-gates", "index-patience", "profiling"}},
	{"Fairness", []string{"enable-priority-and-fairness", "fairness-*"}},
	{"Authentication", []string{"client-ca-file", "requestheader-*", "authentication-*", "api-audiences", "service-account-*", "root-ca-file", "dev-tokens"}},
	{"Authorization", []string{"authorization-*"}},
	{"Audit", []string{"audit-*"}},
	{"Storage", []string{"data-dir", "overwrite", "etcd-*", "encryption-*", "unsafe-no-fsync", "watch-cache-*"}},
	{"Logging", []string{"v", "vmodule", "verbose", "log-*", "logging-*"}},
}

// printHelp shows the help of a command.
func printHelp(cmd *cobra.Command, _ []string) {
	out := cmd.OutOrStdout()
	description := cmd.Long
	if description == "" {
		description = cmd.Short
	}
	_, _ = fmt.Fprintf(out, "%s\n\n", strings.TrimSpace(description))
	writeUsage(out, cmd)
}

// printUsage shows how to call a command.
func printUsage(cmd *cobra.Command) error {
	writeUsage(cmd.OutOrStderr(), cmd)
	return nil
}

func writeUsage(out io.Writer, cmd *cobra.Command) {
	var b strings.Builder
	b.WriteString("Usage:\n")
	if cmd.Runnable() {
		fmt.Fprintf(&b, "  %s\n", cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "  %s [command]\n", cmd.CommandPath())
	}
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	writeCommands(&b, cmd)
	writeFlags(&b, cmd.Flags(), helpWidth(out))
	_, _ = io.WriteString(out, b.String()) // nobody is there to be told
}

// writeCommands lists the commands below cmd by group.
func writeCommands(b *strings.Builder, cmd *cobra.Command) {
	groups := slices.Clone(cmd.Groups())
	groups = append(groups, &cobra.Group{Title: "More:"})
	for _, group := range groups {
		var lines []string
		for _, c := range cmd.Commands() {
			if c.GroupID == group.ID && c.IsAvailableCommand() {
				lines = append(lines, fmt.Sprintf("  %-*s  %s\n", c.NamePadding(), c.Name(), c.Short))
			}
		}
		if len(lines) > 0 {
			fmt.Fprintf(b, "\n%s\n%s", group.Title, strings.Join(lines, ""))
		}
	}
}

// writeFlags lists flags by section.
func writeFlags(b *strings.Builder, fs *pflag.FlagSet, width int) {
	bySection := map[string]*pflag.FlagSet{}
	fs.VisitAll(func(f *pflag.Flag) {
		title := sectionOf(f.Name)
		if bySection[title] == nil {
			bySection[title] = pflag.NewFlagSet(title, pflag.ContinueOnError)
		}
		bySection[title].AddFlag(f)
	})
	titles := make([]string, 0, len(helpSections)+1)
	for _, section := range helpSections {
		titles = append(titles, section.title)
	}
	for _, title := range append(titles, sectionOther) {
		if section := bySection[title]; section != nil && section.HasAvailableFlags() {
			fmt.Fprintf(b, "\n%s:\n%s", title, section.FlagUsagesWrapped(width))
		}
	}
}

func sectionOf(flag string) string {
	for _, section := range helpSections {
		for _, name := range section.names {
			prefix, isPrefix := strings.CutSuffix(name, "*")
			if flag == name || isPrefix && strings.HasPrefix(flag, prefix) {
				return section.title
			}
		}
	}
	return sectionOther
}

// helpWidth is the width of the terminal, within limits.
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
