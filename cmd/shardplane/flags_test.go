package main

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shardplane/shardplane/pkg/cacheserver"
	"github.com/shardplane/shardplane/pkg/dev"
	"github.com/shardplane/shardplane/pkg/dev/supervise"
	"github.com/shardplane/shardplane/pkg/frontproxy"
	"github.com/shardplane/shardplane/pkg/shard"
	"github.com/shardplane/shardplane/test/reference"
)

// serverCommands are the commands that run servers.
var serverCommands = []string{"shard", "front-proxy", "cache-server"}

// TestReferenceFlags compares the flags of all commands and their defaults with docs/reference/flags.md, so that no
// flag is removed without a deprecation.
func TestReferenceFlags(t *testing.T) {
	isLimit := map[string]bool{"limit": true}
	for _, l := range reference.Limits(t, reference.Load(t)) {
		isLimit[l.Flag] = true
	}
	isServer := func(path string) bool { return slices.Contains(serverCommands, path) }
	reference.Compare(t, "flags.md", `# Flags

This page is generated from the code. `+"`shardplane <command> --help`"+` shows the same flags by topic.

## Servers

The commands are `+"`shard`, `front-proxy` and `cache-server`"+`. [Limits](limits.md) contains the names
of `+"`--limit`"+`, and [feature gates](feature-gates.md) those of `+"`--feature-gates`"+`.

`+byServers(flagTable("servers", len(serverCommands), isServer, isLimit))+`
## Development cluster

These are the flags of `+"`shardplane dev`"+`.

`+flagTable("", 0, func(path string) bool { return path == "dev" }, nil).String()+`
## Other commands

`+flagTable("commands", 0, func(path string) bool {
		return path != "dev" && !isServer(path) && !strings.HasPrefix(path, "kubectl ")
	}, nil).String()+`
## kubectl plugin

All commands also have the flags of kubectl for connections, such as `+"`--context` and `--as`"+`.

`+flagTable("commands", len(pluginCommands()), func(path string) bool { return slices.Contains(pluginCommands(), path) }, nil).String())
}

// byServers returns a table for each combination of servers in the last column of a table.
func byServers(all reference.Table) string {
	last := len(all.Header) - 1
	tables := map[string]*reference.Table{}
	for _, row := range all.Rows {
		if tables[row[last]] == nil {
			tables[row[last]] = &reference.Table{Header: all.Header[:last]}
		}
		tables[row[last]].Rows = append(tables[row[last]].Rows, row[:last])
	}
	var sections []string
	for _, servers := range slices.Sorted(maps.Keys(tables)) {
		sections = append(sections, "### "+strings.ToUpper(servers[:1])+servers[1:]+"\n\n"+tables[servers].String())
	}
	return strings.Join(sections, "\n")
}

func pluginCommands() (paths []string) {
	for path := range allCommands() {
		if strings.HasPrefix(path, "kubectl ") {
			paths = append(paths, path)
		}
	}
	return paths
}

// flagTable returns the flags of the selected commands, without those of all commands. Equal flags share a row. all is
// the number of commands that "all" stands for. The page of limits describes the limits.
func flagTable(column string, all int, selected func(path string) bool, limits map[string]bool) reference.Table {
	table := reference.Table{Header: []string{"flag", "default", "description"}}
	if column != "" {
		table.Header = append(table.Header, column)
	}
	type row struct{ flag, description string }
	defaults, commands := map[row][]string{}, map[row][]string{}
	for path, cmd := range allCommands() {
		if !selected(path) {
			continue
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && !isConnectionFlag(path, f) {
				cells := flagRow(f)
				if limits[f.Name] {
					cells[2] = "[limit](limits.md)"
				}
				r := row{cells[0], cells[2]}
				defaults[r], commands[r] = append(defaults[r], cells[1]), append(commands[r], path)
			}
		})
	}
	for r, paths := range commands {
		byDefault := defaults[r][0]
		if len(slices.Compact(slices.Sorted(slices.Values(defaults[r])))) > 1 {
			for i := range defaults[r] {
				defaults[r][i] += " (" + paths[i] + ")"
			}
			byDefault = strings.Join(slices.Sorted(slices.Values(defaults[r])), ", ")
		}
		cells := []string{r.flag, byDefault, r.description}
		if len(paths) == all {
			cells = append(cells, "all")
		} else if column != "" {
			cells = append(cells, strings.Join(slices.Sorted(slices.Values(paths)), ", "))
		}
		table.Rows = append(table.Rows, cells)
	}
	slices.SortFunc(table.Rows, slices.Compare)
	return table
}

// isConnectionFlag reports whether a flag of the plugin belongs to the library of kubectl.
func isConnectionFlag(path string, f *pflag.Flag) bool {
	overrides := pflag.NewFlagSet("", pflag.ContinueOnError)
	clientcmd.BindOverrideFlags(&clientcmd.ConfigOverrides{}, overrides, clientcmd.RecommendedConfigOverrideFlags(""))
	return strings.HasPrefix(path, "kubectl ") && overrides.Lookup(f.Name) != nil
}

// allCommands returns the commands by their names below shardplane.
func allCommands() map[string]*cobra.Command {
	all := map[string]*cobra.Command{}
	var add func(cmd *cobra.Command)
	add = func(cmd *cobra.Command) {
		all[strings.TrimPrefix(cmd.CommandPath(), "shardplane ")] = cmd
		for _, child := range cmd.Commands() {
			if child.Name() != "completion" && child.Name() != "help" { // cobra's
				add(child)
			}
		}
	}
	add(newRootCommand())
	return all
}

func flagRow(f *pflag.Flag) []string {
	name := reference.Code("--" + f.Name)
	if f.Shorthand != "" {
		name = reference.Code("--"+f.Name, "-"+f.Shorthand)
	}
	byDefault := f.DefValue
	switch {
	case byDefault == "[]" || f.Name == "limit":
		byDefault = ""
	case byDefault != "":
		byDefault = reference.Code(strings.ReplaceAll(strings.Trim(byDefault, "[]"), ",", ", "))
	}
	_, usage := pflag.UnquoteUsage(f)
	usage, _, _ = strings.Cut(usage, "\n") // the first line is complete without the list that follows
	if f.Deprecated != "" {
		usage = fmt.Sprintf("(deprecated, hidden: %t) %s", f.Hidden, usage)
	}
	return []string{name, byDefault, usage}
}

// scopes are the sections of docs/reference/limits.md.
var scopes = []struct {
	title string
	names map[string]string // with the addition to the description
}{
	{"Per request", map[string]string{"request": "", "watch": "watch: "}},
	{"Per object", map[string]string{"object": ""}},
	{"Per logical cluster", map[string]string{"cluster": ""}},
	{"Per user", map[string]string{"user": "", "connection": "connection: "}},
	{"Per shard or server", map[string]string{"shard": "", "server": "", "resource": "resource: "}},
	{"Per provider or issuer", map[string]string{"provider": "provider: ", "issuer": "issuer: "}},
}

// TestReferenceLimits compares docs/reference/limits.md with the declared limits, and checks that it contains all flags
// of limits.
func TestReferenceLimits(t *testing.T) {
	limits := reference.Limits(t, reference.Load(t))
	flags, unlimited := limitFlags()
	var page strings.Builder
	page.WriteString(`# Limits

This page is generated from the code. A limit without a flag is fixed. "0: none" means that the
value 0 of the flag disables the limit. The limits of requests and users apply to each process, and
those of stored objects to each shard. A response with status 429 contains Retry-After.

An existing object that exceeds a limit of its content can be updated if it does not grow. A
definition is a CustomResourceDefinition or an APIResourceSchema.
`)
	named, shown := map[string]bool{}, 0
	for _, scope := range scopes {
		table := reference.Table{Header: []string{"limit", "maximum, flag, annotation", "if exceeded"}}
		for _, l := range limits {
			if prefix, ok := scope.names[l.Scope]; ok {
				table.Rows = append(table.Rows, limitRow(l, prefix, flags, unlimited))
				named[l.Flag] = true
				shown++
			}
			require.True(t, l.Flag == "" || flags[l.Flag] != "", "no server has --%s", l.Flag)
		}
		page.WriteString("\n## " + scope.title + "\n\n" + table.Sort().String())
	}
	require.Len(t, limits, shown, "each scope must have a section")
	for flag := range flags {
		isLimit := strings.HasPrefix(flag, "max-") || strings.HasPrefix(flag, "limit:") || strings.HasPrefix(flag, "fairness-seats") ||
			strings.HasSuffix(flag, "-limit") || strings.Contains(flag, "-per-") || strings.HasSuffix(flag, "-allowed-cidrs")
		require.True(t, named[flag] || !isLimit, "--%s must have a comment with //reference:limit", flag)
	}
	reference.Compare(t, "limits.md", page.String())
}

// limitRow returns the row of a limit. flags are the defaults, and unlimited the flags of which 0 disables the limit.
func limitRow(l reference.Limit, prefix string, flags map[string]string, unlimited map[string]bool) []string {
	value := cmp.Or(l.Value, flags[l.Flag])
	if value == "none" && strings.Contains(l.What, "; 0: ") {
		value = "0"
	}
	var names []string
	if l.Flag != "" {
		names = append(names, "--"+strings.Replace(l.Flag, ":", " ", 1))
	}
	if l.Annotation != "" {
		names = append(names, l.Annotation)
	}
	by := []string{value}
	if len(names) > 0 {
		by = append(by, reference.Code(names...))
	}
	if unlimited[strings.SplitN(l.Flag, ":", 2)[0]] {
		by = append(by, "0: none")
	}
	return []string{prefix + l.What, strings.Join(by, "; "), l.Exceeded}
}

// limitFlags returns the defaults of the flags of servers, with those of --limit as limit:<name>. Servers with
// different defaults are named. It also returns the flags of which 0 disables the limit.
func limitFlags() (flags map[string]string, unlimited map[string]bool) {
	flags, unlimited = map[string]string{}, map[string]bool{}
	defaults := map[string]map[string][]string{} // the servers by flag and default
	add := func(flag, value, server string) {
		if defaults[flag] == nil {
			defaults[flag] = map[string][]string{}
		}
		defaults[flag][value] = append(defaults[flag][value], server)
	}
	for _, server := range serverCommands {
		allCommands()[server].Flags().VisitAll(func(f *pflag.Flag) {
			unlimited[f.Name] = strings.Contains(f.Usage, "0 means no limit")
			if f.Name != "limit" {
				add(f.Name, limitValue(f.Name, f.DefValue), server)
				return
			}
			for pair := range strings.SplitSeq(f.DefValue, ",") {
				name, value, _ := strings.Cut(pair, "=")
				add("limit:"+name, limitValue(name, value), server)
			}
		})
	}
	for flag, values := range defaults {
		var texts []string
		for value, servers := range values {
			if len(values) > 1 {
				value += " (" + strings.Join(servers, ", ") + ")"
			}
			texts = append(texts, value)
		}
		slices.Sort(texts)
		flags[flag] = strings.Join(texts, ", ")
	}
	return flags, unlimited
}

func limitValue(name, text string) string {
	n, err := strconv.ParseInt(text, 10, 64)
	duration, noDuration := time.ParseDuration(text)
	switch {
	case text == "0" || text == "0s" || text == "[]":
		return "none"
	case err != nil && noDuration == nil:
		return reference.Duration(duration)
	case err != nil:
		return strings.ReplaceAll(strings.ReplaceAll(text, "Mi", " MiB"), "Gi", " GiB")
	case strings.Contains(name, "bytes"):
		return reference.Bytes(n)
	default:
		return reference.Number(n)
	}
}

// TestReportsAllWrongFlags checks that servers report all wrong flags at once, in a stable order.
func TestReportsAllWrongFlags(t *testing.T) {
	for line, want := range map[string]string{
		"shard --name=No --base-url=no --external-url=no --cache-kubeconfig=/no --root-ca-file=/no --secure-port=-1 --tls-min-version=no --audit-log-path=/no --max-requests-inflight=-1" +
			" --fairness-paused-requests=-1 --service-account-max-token-expiration=1s --etcd-compaction-interval=-1s --max-workspaces=-1 --max-objects=-2 --max-storage=9Gi": "--name --external-url --base-url --root-kubeconfig --shard-client-cert-file, --cache-kubeconfig: --root-ca-file:" +
			" --secure-port --tls-cert-file --tls-private-key-file --tls-min-version: --audit-policy-file --max-requests-inflight --fairness-paused-requests --client-ca-file" +
			" --service-account-max-token-expiration --etcd-compaction-interval --max-workspaces --max-objects --max-storage",
		"shard --cache-kubeconfig=/no": "--shard-client-cert-file, --cache-kubeconfig: --tls-cert-file --tls-private-key-file --client-ca-file",
		"front-proxy --bind-address=no --audit-log-path=/no --service-account-key-file=no --service-account-issuer=http://no ": "--root-kubeconfig" +
			" --shard-ca-file --shard-client-cert-file --shard-client-key-file --proxy-client-cert-file --proxy-client-key-file --bind-address --tls-cert-file --tls-private-key-file" +
			" --audit-policy-file --client-ca-file --service-account-issuer",
		"cache-server --secure-port=-1 --data-dir= --audit-log-path=/no": "--secure-port --tls-cert-file --tls-private-key-file --audit-policy-file --client-ca-file --data-dir",
	} {
		code, _, errOut := call(t, strings.Fields(line)...)
		require.Equal(t, supervise.ExitUsage, code)
		var got []string
		for mistake := range strings.Lines(errOut) {
			got = append(got, strings.Fields(mistake)[2])
		}
		require.Equal(t, strings.Fields(want), got, line)
	}
}

// TestCompletedOptionsAreValues checks that completed options share no memory with other options.
func TestCompletedOptionsAreValues(t *testing.T) {
	var check func(path string, of reflect.Type)
	check = func(path string, of reflect.Type) {
		switch of.Kind() {
		case reflect.Struct:
			for field := range of.Fields() {
				check(path+"."+field.Name, field.Type)
			}
		case reflect.Slice, reflect.Map: // of values: what is read from flags
			check(path+"[]", of.Elem())
		case reflect.Pointer, reflect.Interface, reflect.Chan, reflect.Func, reflect.UnsafePointer:
			t.Errorf("%s is a %s: pass opened resources separately from the options", path, of)
		default:
		}
	}
	for name, completed := range map[string]any{
		"shard": shard.CompletedOptions{}, "front-proxy": frontproxy.CompletedOptions{}, "cache-server": cacheserver.CompletedOptions{}, "dev": dev.CompletedOptions{},
	} {
		check(name, reflect.TypeOf(completed))
	}
}
