package operations

import (
	"bufio"
	"bytes"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
	"github.com/shardplane/shardplane/test/integration/kit"
)

// verification returns the command that compares replicas with objects, with kubeconfigs of the cache server and shards.
func verification(e *kit.Env, shards ...string) (cmd *exec.Cmd, out, errOut *bytes.Buffer) {
	e.T.Helper()
	args := []string{"cache", "verify", "--cache-kubeconfig", filepath.Join(e.Dir, ".kcp-cache", "cache.kubeconfig")}
	for _, shard := range shards {
		args = append(args, "--shard-kubeconfig", shard)
	}
	cmd = exec.CommandContext(e.T.Context(), harness.Binary(e.T), args...)
	out, errOut = &bytes.Buffer{}, &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, errOut
	return cmd, out, errOut
}

// runVerify runs the command and requires the exit code.
func runVerify(e *kit.Env, want int, shards ...string) (out, errOut string) {
	e.T.Helper()
	cmd, stdout, stderr := verification(e, shards...)
	requireExit(e.T, want, cmd.Run(), stdout, stderr)
	return stdout.String(), stderr.String()
}

func requireExit(t *testing.T, want int, err error, out, errOut *bytes.Buffer) {
	t.Helper()
	code := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		code = exit.ExitCode()
	} else {
		require.NoError(t, err)
	}
	require.Equal(t, want, code, "%s%s", out, errOut)
}

// TestVerifyAgrees checks that the command finds no difference in a healthy cluster.
func TestVerifyAgrees(t *testing.T) {
	t.Parallel()
	e := kit.Shared(t)
	k := kit.NewWorkspaceClient(e, "verify-agrees")
	k.CreateExport("e", k.CreateSchema("v1", "widgets", "size"))
	e.Eventually("all objects are replicated", func() bool {
		cmd, out, _ := verification(e, e.ShardKubeconfig(0), e.ShardKubeconfig(1))
		return cmd.Run() == nil && strings.Contains(out.String(), "apiexports.apis.kcp.io")
	})
}

// TestVerify checks that the command reports replicas that differ from their objects. Here one shard uses the cache server, and the test
// writes the replicas of the other.
func TestVerify(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: pauses and stops processes")
	}
	t.Parallel()
	e := kit.Start(t, harness.Options{Mode: harness.Processes, Shards: 2, ExtraArgs: map[string][]string{"shard-1": {"--cache-kubeconfig="}}})
	root, alone := e.ShardKubeconfig(0), e.ShardKubeconfig(1)
	k := kit.NewWorkspaceClient(e, "verified")
	k.CreateExport("e", k.CreateSchema("v1", "widgets", "size"))
	e.Eventually("all objects are replicated", func() bool {
		cmd, _, _ := verification(e, root)
		return cmd.Run() == nil
	})
	out, errOut := runVerify(e, 0, root)
	require.Regexp(t, `(?m)^apiexports\.apis\.kcp\.io +[1-9]\d* +[1-9]\d* +0$`, out)
	require.Contains(t, errOut, "Not compared, no kubeconfig specified: shard-1")

	require.NotContains(t, errOut, "Not registered")

	other := kit.NewWorkspaceClientOn(e, "alone", 1)
	strangers, err := e.CacheClient.Shard("stranger").Cluster(kit.Path("system:checkpoints")).Dynamic()
	require.NoError(t, err)
	_, err = strangers.Resource(kit.ReplicationCheckpoints).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": kit.ReplicationCheckpoints.GroupVersion().String(), "kind": "ReplicationCheckpoint", "metadata": map[string]any{"name": "shard"},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, errOut = runVerify(e, 0, root, alone)
	require.Contains(t, errOut, "Not registered in root, replicas are ignored: stranger\n")
	other.DefineClusterScoped("lonely", "Lonely")
	other.CreateCachedResource("CachedResource", "lonely", "")
	require.Equal(t, "Initializing", kit.Field(other.UntilCachedCondition("CachedResource", "lonely", "ReplicationStarted", "False", "NoCacheServer"), "status", "phase"))
	other.DeleteAndWait(kit.CachePath + "cachedresources/lonely")

	// Replicas of a cached resource, and one that does not belong to any.
	k.DefineClusterScoped("parts", "Part")
	for _, name := range []string{"a", "b"} {
		k.Create("/apis/shared.example.org/v1/parts", `{"apiVersion":"shared.example.org/v1","kind":"Part","metadata":{"name":%q}}`, name)
	}
	k.CreateCachedResource("CachedResource", "parts", "")
	parts := "parts:" + kit.Field(k.UntilCached("CachedResource", "parts", 2, 2), "status", "identityHash").(string)
	stray := schema.GroupVersionResource{Group: "shared.example.org", Version: "v1", Resource: parts}
	_, err = kit.DynamicClient(t, e.CacheClient.Shard("shard-1"), other.ClusterName).Resource(stray).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "shared.example.org/v1", "kind": "Part", "metadata": map[string]any{"name": "stray"},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)

	for _, name := range []string{"as-it-is", "edited", "missing"} {
		other.CreateWorkspaceType(name, `"defaultAPIBindingLifecycle":"Maintain"`)
		other.Eventually("the type has its status", func() bool { return kit.Field(other.Get(kit.TenancyPath+"workspacetypes/"+name), "status") != nil })
	}
	types := kinds.WorkspaceTypes.GroupVersionResource
	write := func(of, name string, edit func(*unstructured.Unstructured)) {
		t.Helper()
		source, err := kit.DynamicClient(t, e.ShardClients["shard-1"], other.ClusterName).Resource(types).Get(t.Context(), of, metav1.GetOptions{})
		require.NoError(t, err)
		annotations := source.GetAnnotations()
		annotations["kcp.io/shard"] = "shard-1"
		annotations["cache.kcp.io/original-resource-version"] = source.GetResourceVersion()
		annotations["cache.kcp.io/original-resource-UID"] = string(source.GetUID())
		source.SetAnnotations(annotations)
		source.SetName(name)
		source.SetResourceVersion("")
		edit(source)
		_, err = kit.DynamicClient(t, e.CacheClient.Shard("shard-1"), other.ClusterName).Resource(types).Create(t.Context(), source, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	write("as-it-is", "as-it-is", func(*unstructured.Unstructured) {})
	write("as-it-is", "extra", func(*unstructured.Unstructured) {})
	write("edited", "edited", func(u *unstructured.Unstructured) {
		require.NoError(t, unstructured.SetNestedField(u.Object, "InitializeOnly", "spec", "defaultAPIBindingLifecycle"))
		u.SetFinalizers([]string{"example.com/held"})
	})
	out, errOut = runVerify(e, 1, alone, root)
	at := "shard-1 " + other.ClusterName + " workspacetypes.tenancy.kcp.io "
	var lines []string
	for line := range strings.Lines(out) {
		if message, ok := strings.CutPrefix(line, at); ok {
			lines = append(lines, strings.TrimSpace(message))
		}
	}
	require.Equal(t, []string{"edited: different: metadata.finalizers, spec.defaultAPIBindingLifecycle", "extra: orphaned", "missing: missing"}, lines, out)
	require.Regexp(t, `(?m)^workspacetypes\.tenancy\.kcp\.io +\d+ +\d+ +3$`, out)
	require.Contains(t, out, "shard-1 "+other.ClusterName+" "+parts+".shared.example.org stray: orphaned\n")
	require.Regexp(t, `(?m)^`+parts+`\.shared\.example\.org +2 +3 +1$`, out)
	require.Contains(t, errOut, "4 replicas differ from their objects")

	_, errOut = runVerify(e, 2, root, root)
	require.Contains(t, errOut, "and another kubeconfig are both for the shard")
	_, errOut = runVerify(e, 2, e.Kubeconfig())
	require.Contains(t, errOut, "shardplane cache verify:")
	_, errOut = runVerify(e, 2, filepath.Join(e.Dir, "none"))
	require.Contains(t, errOut, "reading the kubeconfig")
	_, errOut = runVerify(e, 64)
	require.Contains(t, errOut, "--shard-kubeconfig is required")

	t.Log("A signal stops the command while the cache server does not respond")
	e.Component("cache-server").Pause()
	cmd, stdout, stderr := verification(e, root)
	cmd.Stderr = nil
	message, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	rest := bufio.NewReader(message)
	begun, err := rest.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, begun, "Comparing")
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	_, err = stderr.ReadFrom(rest)
	require.NoError(t, err)
	requireExit(t, 2, cmd.Wait(), stdout, stderr)
	require.Contains(t, stderr.String(), "stopped")
	e.Component("cache-server").Resume()
	e.Component("cache-server").Stop()
	_, errOut = runVerify(e, 2, root)
	require.Contains(t, errOut, "refused")
}
