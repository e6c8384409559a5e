package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/shardplane/shardplane/pkg/cacheserver"
	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/pkg/dev/supervise"
	"github.com/shardplane/shardplane/pkg/etcd"
	"github.com/shardplane/shardplane/pkg/frontproxy"
	"github.com/shardplane/shardplane/pkg/shard"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const deadline = 30 * time.Second

// programEnv makes the test binary the program itself.
const programEnv = "SHARDPLANE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

// call runs the program in this process.
func call(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(t.Context(), append([]string{"shardplane"}, args...), &stdout, &stderr)
	return code, stdout.String(), stderr.String()
}

// requireGolden compares got with a golden file.
func requireGolden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run the test with -update to write it")
	require.Equal(t, string(want), got)
}

func TestHelp(t *testing.T) {
	for name, args := range map[string][]string{"shardplane": nil, "dev": {"dev"}, "version": {"version"}} {
		t.Run(name, func(t *testing.T) {
			code, out, errOut := call(t, append(args, "--help")...)
			require.Zero(t, code)
			require.Empty(t, errOut)
			requireGolden(t, name+".help", out)
		})
	}
}

// positions are ways to refer to another flag by its position.
const positions = `^the same|\bthese (objects|kinds)|^likewise|\b(as|see) (above|below)\b|\bthe (former|latter)\b|\bthat (flag|option)\b|\bthe (previous|next|following) (flag|option)`

// TestServerHelp checks for the commands of servers that the help contains each flag, and that the examples use existing
// flags.
func TestServerHelp(t *testing.T) {
	for _, name := range serverCommands {
		t.Run(name, func(t *testing.T) {
			code, out, errOut := call(t, name, "--help")
			require.Zero(t, code)
			require.Empty(t, errOut)
			for _, heading := range []string{"Usage:\n", "Examples:\n", "Serving:\n", "Authentication:\n", "Logging:\n"} {
				require.Contains(t, out, heading)
			}
			require.NotContains(t, out, "[Alpha]")

			cmd, _, err := newRootCommand().Find([]string{name})
			require.NoError(t, err)
			cmd.Flags().VisitAll(func(f *pflag.Flag) {
				require.Equal(t, !f.Hidden, strings.Contains(out, " --"+f.Name+" "), "--%s", f.Name)
				require.NotRegexp(t, positions, f.Usage, "--%s: the help is sorted, so that other flags must be named", f.Name)
			})
			_, other, _ := strings.Cut(out, "\nOther:\n")
			require.Regexp(t, `^  -h, --help +help for `+name+`\n$`, other, "each flag must have a section")
			for _, line := range exampleFlags(t, name) {
				require.NoError(t, cmd.ParseFlags(line), line)
			}
		})
	}
}

// exampleFlags returns the flags of each command line in the examples of a command.
func exampleFlags(t *testing.T, name string) (lines [][]string) {
	t.Helper()
	cmd, _, err := newRootCommand().Find([]string{name})
	require.NoError(t, err)
	for line := range strings.Lines(strings.ReplaceAll(cmd.Example, "\\\n", " ")) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "shardplane" {
			lines = append(lines, words[2:])
		}
	}
	require.NotEmpty(t, lines)
	return lines
}

// TestExamplesAreComplete checks that servers which are started as in the examples lack nothing.
func TestExamplesAreComplete(t *testing.T) {
	parse := func(sections cliflag.NamedFlagSets, line []string) {
		t.Helper()
		all := pflag.NewFlagSet("", pflag.ContinueOnError)
		for _, section := range sections.FlagSets {
			all.AddFlagSet(section)
		}
		require.NoError(t, all.Parse(line))
	}
	for _, line := range exampleFlags(t, "shard") {
		o := shard.NewOptions()
		parse(o.Flags(), line)
		require.Empty(t, o.Complete().Warnings(), line)
	}
	for _, line := range exampleFlags(t, "front-proxy") {
		o := frontproxy.NewOptions()
		parse(o.Flags(), line)
		require.Empty(t, o.Complete().Warnings(), line)
	}
	for _, line := range exampleFlags(t, "cache-server") {
		o := cacheserver.NewOptions()
		parse(o.Flags(), line)
		require.Empty(t, o.Complete().Warnings(), line)
	}
}

// TestMissingPartsAreLogged checks that a server warns of each part that is missing.
func TestMissingPartsAreLogged(t *testing.T) {
	program, err := os.Executable()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for command, missing := range map[string][]string{
		"shard": {"--cache-kubeconfig", "--root-ca-file", "--external-url", "--service-account-signing-key-file", "--service-account-key-file", "--requestheader-client-ca-file"},
		"shard --external-url=https://127.0.0.1:1": {"--virtual-workspace-url"},
		"front-proxy": {"--service-account-key-file"},
	} {
		args := append(strings.Fields(command), "--data-dir="+filepath.Join(t.TempDir(), "data"))
		if command == "front-proxy" {
			args = []string{command, "--root-kubeconfig=" + file, "--proxy-client-cert-file=" + file, "--proxy-client-key-file=" + file}
		}
		for _, flag := range []string{"tls-cert-file", "tls-private-key-file", "client-ca-file", "shard-client-cert-file", "shard-client-key-file", "shard-ca-file"} {
			args = append(args, "--"+flag+"="+file)
		}
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = append(os.Environ(), programEnv+"=1")
		output, err := cmd.CombinedOutput()
		require.Error(t, err, "empty files must be rejected")
		for _, flag := range missing {
			require.Regexp(t, `(?m)^W.* `+flag+`.* (is|are) not set: `, string(output))
		}
	}
}

func TestUsageErrors(t *testing.T) {
	for line, want := range map[string]string{
		"nonsense":            `shardplane: unknown command "nonsense" for "shardplane" (see shardplane --help)`,
		"de":                  `shardplane: unknown command "de" for "shardplane" Did you mean this? dev (see shardplane --help)`,
		"--nonsense":          "shardplane: unknown flag: --nonsense (see shardplane --help)",
		"dev extra":           `shardplane dev: unknown command "extra" for "shardplane dev" (see shardplane dev --help)`,
		"dev --shards two":    `shardplane dev: invalid argument "two" for "--shards" flag: strconv.ParseInt: parsing "two": invalid syntax (see shardplane dev --help)`,
		"dev --shards 0":      "shardplane dev: --shards is 0: it must be 1 to 16",
		"dev --shard-port 0":  "shardplane dev: port 0 for the shard root is not a port: pass --shard-port so that it is 1 to 65535",
		"dev --work-dir=":     "shardplane dev: --work-dir must not be empty: pass a directory, or omit it to use the current one",
		"version -o yaml":     `shardplane version: --output is "yaml": it must be text or json`,
		"shard --nonsense":    "shardplane shard: unknown flag: --nonsense (see shardplane shard --help)",
		"front-proxy extra":   `shardplane front-proxy: unknown command "extra" for "shardplane front-proxy" (see shardplane front-proxy --help)`,
		"cache-server -v big": `shardplane cache-server: invalid argument "big" for "-v, --v" flag: strconv.ParseUint: parsing "big": invalid syntax (see shardplane cache-server --help)`,
	} {
		t.Run(line, func(t *testing.T) {
			code, out, errOut := call(t, strings.Fields(line)...)
			require.Equal(t, supervise.ExitUsage, code)
			require.Empty(t, out)
			require.Equal(t, want+"\n", errOut)
		})
	}
}

func TestServersNameTheirMissingFlags(t *testing.T) {
	for _, command := range serverCommands {
		t.Run(command, func(t *testing.T) {
			code, out, errOut := call(t, command)
			require.Equal(t, supervise.ExitUsage, code)
			require.Empty(t, out)
			require.Contains(t, errOut, "--tls-cert-file")
			for line := range strings.Lines(errOut) {
				require.True(t, strings.HasPrefix(line, "shardplane "+command+": --"), line)
			}
		})
	}
}

func TestFailure(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	code, out, errOut := call(t, "dev", "--work-dir", file)
	require.Equal(t, exitFailure, code)
	require.Empty(t, out)
	require.Equal(t, "shardplane dev: cannot write to the working directory "+file+" (mkdir "+file+": not a directory): make it writable or pass another --work-dir\n", errOut)
}

func TestExitCodes(t *testing.T) {
	codeOf := func(err error) int {
		var f *failure
		require.ErrorAs(t, failed(err), &f)
		require.ErrorIs(t, f, err)
		return f.code
	}
	require.NoError(t, failed(nil))
	require.Equal(t, exitFailure, codeOf(errors.New("any")))
	require.Equal(t, supervise.ExitData, codeOf(fmt.Errorf("start: %w", etcd.ErrDataDirFormat)))
	require.Equal(t, supervise.ExitData, codeOf(fmt.Errorf("start: %w", etcd.ErrDataDirCorrupt)))
	require.Equal(t, supervise.ExitData, codeOf(fmt.Errorf("start: %w", etcd.ErrIdentity)))
	require.Equal(t, exitFailure, codeOf(etcd.ErrDataDirInUse), "a retry may succeed when the other process has stopped")
	require.Equal(t, supervise.ExitUsage, codeOf(invalid(errors.New("any"))))

	dir := t.TempDir()
	require.NoError(t, os.Mkdir(etcd.Directory(dir), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(etcd.Directory(dir), "shardplane-format"), []byte("1\n"), 0o600))
	pair, err := pki.NewStore(t.TempDir(), time.Now).Authority("ca")
	require.NoError(t, err)
	code, _, errOut := call(t, "cache-server", "--data-dir", dir, "--bind-address=127.0.0.1", "--secure-port=0",
		"--tls-cert-file", pair.CertFile, "--tls-private-key-file", pair.KeyFile, "--client-ca-file", pair.CertFile)
	require.Equal(t, supervise.ExitData, code, errOut)
	require.Regexp(t, `^shardplane cache-server: [^\n]+ has format "1"[^\n]+choose another --data-dir\n$`, errOut)
}

func TestVersion(t *testing.T) {
	code, out, _ := call(t, "version")
	require.Zero(t, code)
	require.True(t, strings.HasPrefix(out, "shardplane "), out)

	code, out, _ = call(t, "version", "--output", "json")
	require.Zero(t, code)
	var got versionInfo
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.NotEmpty(t, got.Go)

	info := newVersionInfo(&debug.BuildInfo{
		Main:     debug.Module{Version: "v0.1.0"},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.modified", Value: "true"}},
		Deps:     []*debug.Module{{Path: "k8s.io/apiserver", Version: "v0.37.2"}, {Path: "go.etcd.io/etcd/server/v3", Version: "v3.7.3"}},
	})
	require.Equal(t, "v0.1.0 abc true v0.37.2 v3.7.3", strings.Join([]string{info.Version, info.Commit, map[bool]string{true: "true"}[info.Modified], info.Kubernetes, info.Etcd}, " "))
	require.Equal(t, "(unknown)", newVersionInfo(nil).Version)
}

func TestSignals(t *testing.T) {
	// A signal that arrives after done must not end the process of the tests.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	ctx, force, done := untilSignal(t.Context())
	defer done()
	self := os.Getpid()
	require.NoError(t, syscall.Kill(self, syscall.SIGPIPE), "SIGPIPE must not end the process")
	require.NoError(t, syscall.Kill(self, syscall.SIGTERM))
	select {
	case <-ctx.Done():
	case <-time.After(deadline):
		t.Fatal("the first signal must end the context")
	}
	require.NoError(t, syscall.Kill(self, syscall.SIGTERM))
	select {
	case <-force:
		t.Fatal("a duplicate signal must not force")
	default:
	}
	require.Eventually(t, func() bool {
		if err := syscall.Kill(self, syscall.SIGHUP); err != nil {
			return false
		}
		select {
		case <-force:
			return true
		default:
			return false
		}
	}, deadline, signalInterval/2, "a later signal must force")
}

func TestRunUntilForced(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	failure := errors.New("failure")
	endless := make(chan struct{})
	t.Cleanup(func() { close(endless) })

	require.ErrorIs(t, runUntilForced(t.Context(), nil, nil, func(context.Context) error { return failure }), failure)
	require.NoError(t, runUntilForced(t.Context(), nil, closed, func(ctx context.Context) error { <-ctx.Done(); return nil }),
		"a server must stop gracefully if its supervisor has died")
	require.ErrorIs(t, runUntilForced(t.Context(), closed, nil, func(context.Context) error { <-endless; return nil }), errKilled)
}

func TestExitCodeOfTheProcess(t *testing.T) {
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), program, "dev", "--nonsense")
	cmd.Env = append(os.Environ(), programEnv+"=1")
	_, err = cmd.Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, supervise.ExitUsage, exit.ExitCode())
	require.Equal(t, "shardplane dev: unknown flag: --nonsense (see shardplane dev --help)\n", string(exit.Stderr))
}
