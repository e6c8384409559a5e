package main

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/cacheserver"
	"github.com/shardplane/shardplane/pkg/dev"
	"github.com/shardplane/shardplane/pkg/dev/supervise"
	"github.com/shardplane/shardplane/pkg/frontproxy"
	"github.com/shardplane/shardplane/pkg/shard"
)

// TestFlags compares the flags of all commands and their defaults with a golden file, so that no flag is removed without
// a deprecation.
func TestFlags(t *testing.T) {
	var lines []string
	var add func(cmd *cobra.Command)
	add = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" {
				return
			}
			line := cmd.CommandPath() + " --" + f.Name
			if f.Shorthand != "" {
				line += ", -" + f.Shorthand
			}
			line += " " + f.Value.Type() + " = " + f.DefValue
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
	requireGolden(t, "flags", strings.Join(lines, "\n")+"\n")
}

// TestLimitsAreDocumented checks that docs/security.md contains each limit with a flag, and no flag that does not exist.
func TestLimitsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/security.md")
	require.NoError(t, err)
	flags := map[string]bool{}
	for _, cmd := range newRootCommand().Commands() {
		if !slices.Contains([]string{"shard", "front-proxy", "cache-server"}, cmd.Name()) {
			continue
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			flags[f.Name] = true
			limits := strings.HasPrefix(f.Name, "max-") || strings.HasPrefix(f.Name, "fairness-seats") || strings.HasSuffix(f.Name, "-limit") || strings.Contains(f.Name, "-per-") || strings.HasSuffix(f.Name, "-allowed-cidrs")
			if limits && !strings.Contains(string(page), "`--"+f.Name+"`") {
				t.Errorf("docs/security.md does not name --%s of the %s", f.Name, cmd.Name())
			}
		})
	}
	for _, named := range regexp.MustCompile("--([a-z0-9]+(-[a-z0-9]+)*)").FindAllStringSubmatch(string(page), -1) {
		require.True(t, flags[named[1]], "docs/security.md names %s, which no server has", named[0])
	}
}

// TestMistakes checks that servers report all wrong flags at once, in a stable order.
func TestMistakes(t *testing.T) {
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
			t.Errorf("%s is a %s: hand what is opened along beside the options", path, of)
		default:
		}
	}
	for name, completed := range map[string]any{
		"shard": shard.CompletedOptions{}, "front-proxy": frontproxy.CompletedOptions{}, "cache-server": cacheserver.CompletedOptions{}, "dev": dev.CompletedOptions{},
	} {
		check(name, reflect.TypeOf(completed))
	}
}
