package access

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// plugin runs kubectl with the plugin and a private kubeconfig.
type plugin struct {
	t          *testing.T
	path       string
	kubeconfig string
}

func newPlugin(t *testing.T, kubeconfig string) plugin {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Symlink(harness.Binary(t), filepath.Join(dir, "kubectl-shardplane")))
	text := harness.ReadFile(t, kubeconfig)
	own := filepath.Join(dir, "kubeconfig")
	require.NoError(t, os.WriteFile(own, text, 0o600))
	return plugin{t: t, path: dir + ":" + os.Getenv("PATH"), kubeconfig: own}
}

func (p plugin) command(ctx context.Context, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, harness.Kubectl(p.t), args...)
	command.Env = append(os.Environ(), "PATH="+p.path, "KUBECONFIG="+p.kubeconfig, "HOME="+filepath.Dir(p.kubeconfig))
	return command
}

func (p plugin) run(args ...string) (string, error) {
	p.t.Helper()
	out, err := p.command(p.t.Context(), append([]string{"shardplane"}, args...)...).CombinedOutput()
	return string(out), err
}

func (p plugin) shows(args ...string) string {
	p.t.Helper()
	out, err := p.run(args...)
	require.NoError(p.t, err, "%s", out)
	return out
}

// fails returns the output of a command that must fail.
func (p plugin) fails(args ...string) string {
	p.t.Helper()
	out, err := p.run(args...)
	require.Error(p.t, err, "%s", out)
	return out
}

// TestKubectlPlugin checks that users list shards and workspaces with kubectl shardplane, and switch between workspaces.
func TestKubectlPlugin(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	parent := kit.NewWorkspaceClient(e, "plugin").ForTest(t)
	near := e.WorkspaceOn("root:plugin", "near", "root")
	far := e.WorkspaceOn("root:plugin:near", "far", "shard-1")
	parent.Create(kit.TenancyPath+"workspaces", `{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":"nowhere"},"spec":{"location":{"selector":{"matchLabels":{"name":"no-such-shard"}}}}}`)
	parent.Eventually("an Event reports that the workspace is unschedulable", func() bool {
		return strings.Contains(parent.Kubectl("get", "events", "-n", "default"), "Unschedulable")
	})
	p := newPlugin(t, e.Kubeconfig())

	t.Run("tree", func(t *testing.T) {
		tree := p.shows("tree", "root:plugin")
		require.Regexp(t, `(?m)^├── near +universal +Ready +root +`+near.Spec.Cluster+`$`, tree)
		require.Regexp(t, `(?m)^│   └── far +universal +Ready +shard-1 +`+far.Spec.Cluster+`$`, tree)
		require.Regexp(t, `(?m)^└── nowhere +universal +Scheduling +Unschedulable: no shard is available`, tree)
		require.NotContains(t, p.shows("tree", "plugin", "--depth", "1"), "far")
		require.Contains(t, p.fails("tree", "root:none"), "kubectl shardplane tree: workspace root:none")
	})
	t.Run("shards", func(t *testing.T) {
		var shards string
		e.Eventually("all shards have reported their load", func() bool {
			shards = p.shows("shards")
			return !strings.Contains(shards, "<unknown>")
		})
		require.Regexp(t, `(?m)^root +Ready +\d+ +\d+ +\d+ +\d+ workspaces, \d+ objects, \d+Mi/8Gi storage +https://`, shards)
		require.Regexp(t, `(?m)^shard-1 +Ready +[1-9]\d* +[1-9]\d* +\d+ +\d+ workspaces, .* storage +https://`, shards)
		require.Regexp(t, `(?m)^<none> +[1-9]\d* +[1-9]\d* +[1-9]\d*$`, shards)
	})
	t.Run("describe", func(t *testing.T) {
		require.Regexp(t, `(?s)Shard: +shard-1\n.*Logical cluster: +`+far.Spec.Cluster+`\n.*Conditions:\n.*WorkspaceScheduled +True`, p.shows("describe", "root:plugin:near:far"))
		require.Regexp(t, `(?s)Message: +Unschedulable.*Events:\n.*Warning +Unschedulable +no shard is available`, p.shows("where", "root:plugin:nowhere"))
		require.Contains(t, p.fails("describe", "root:plugin:none"), "workspace none not found in root:plugin")
		require.Contains(t, p.fails("describe", "No"), `"No" is not a path of a workspace`)
	})
	t.Run("use", func(t *testing.T) { testPluginUse(t, e) })
	t.Run("watch", func(t *testing.T) { testPluginWatch(t, e, p) })
}

// testPluginUse checks that kubectl uses the workspace to which the plugin switches.
func testPluginUse(t *testing.T, e *kit.Env) {
	p := newPlugin(t, e.Kubeconfig())
	where := func() string {
		out, err := p.command(t.Context(), "get", "logicalclusters", "cluster", "-o", `jsonpath={.metadata.annotations.kcp\.io/path}`).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	for _, step := range []struct{ to, want string }{
		{"root:plugin", "root:plugin"}, {"near", "root:plugin:near"}, {"far", "root:plugin:near:far"}, {"..", "root:plugin:near"}, {"-", "root:plugin:near:far"}, {"-", "root:plugin:near"}, {"root", "root"},
	} {
		require.Equal(t, "Current workspace is \""+step.want+"\".\n", p.shows("use", step.to))
		require.Equal(t, step.want, where())
	}
	require.Equal(t, "Current workspace is \"root\".\n", p.shows("use"))
	require.Contains(t, p.fails("open", "root:plugin:nowhere"), "workspace root:plugin:nowhere is not ready: Unschedulable: no shard is available")
	require.Contains(t, p.fails("use", "root:plugin:none"), "root:plugin:none")
	require.Equal(t, "root", where(), "a failed command must not switch the workspace")

	config, err := clientcmd.LoadFromFile(p.kubeconfig)
	require.NoError(t, err)
	// Other tests allow user-4 to read the workspaces in root.
	for name, token := range map[string]string{"stranger": "user-5-token", "guest": "user-4-token"} {
		config.AuthInfos[name] = clientcmdapi.NewAuthInfo()
		config.AuthInfos[name].Token = token
	}
	require.NoError(t, clientcmd.WriteToFile(*config, p.kubeconfig))
	require.Contains(t, p.fails("use", "root:plugin", "--user", "stranger"), "workspace root:plugin does not exist, or you have no access to it")
	require.Contains(t, p.fails("shards", "--user", "stranger"), "listing the Shard objects in root")
	require.Regexp(t, `^Current workspace is "user:user-4"`, p.shows("use", "~", "--user", "guest"))
	out, err := p.command(t.Context(), "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "user-4", string(out))
}

// output contains the output of a running program.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(data)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// testPluginWatch checks that the tree follows changes until Ctrl-C.
func testPluginWatch(t *testing.T, e *kit.Env, p plugin) {
	var out output
	command := p.command(t.Context(), "shardplane", "tree", "root:plugin", "--watch")
	command.Stdout, command.Stderr = &out, &out
	require.NoError(t, command.Start())
	e.Eventually("the tree is printed", func() bool { return strings.Contains(out.String(), "└── nowhere") })
	e.WorkspaceOn("root:plugin", "new", "root")
	ready := regexp.MustCompile(`(?m)^├── new +universal +Ready `)
	e.Eventually("the new workspace is printed", func() bool { return ready.MatchString(out.String()) })
	require.NoError(t, command.Process.Signal(os.Interrupt))
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	select {
	case err := <-ended:
		require.NoError(t, err, "%s", &out)
	case <-time.After(kit.Timeout):
		require.Fail(t, "the command did not end after the interrupt", "%s", &out)
	}
}
