package library

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// testTimeout is how long tests wait for what happens at once on an idle machine.
const testTimeout = 2 * time.Minute

// shard is the server of all tests.
var shard = harness.Shared{Options: harness.Options{Without: []string{"front-proxy", "cache-server"}}}

// documented returns the program of docs/client.md.
func documented(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/client.md")
	require.NoError(t, err)
	_, after, found := strings.Cut(string(page), "<!-- test/library/greeter/main.go -->\n```go\n")
	require.True(t, found)
	program, _, found := strings.Cut(after, "```\n")
	require.True(t, found)
	return program
}

// TestDocumentedController: the program of docs/client.md, in a module of its own that requires
// this one, is a controller that works.
func TestDocumentedController(t *testing.T) {
	file, err := os.ReadFile("greeter/main.go")
	require.NoError(t, err)
	require.Equal(t, string(file), documented(t), "docs/client.md has what is in test/library/greeter")
	program := build(t, documented(t))

	cluster := shard.Get(t)
	factory, err := client.NewFactory(cluster.Shard(0))
	require.NoError(t, err)
	t.Cleanup(factory.CloseIdleConnections)
	root := factory.Cluster(logicalcluster.NewPath("root"))
	objects, err := root.Dynamic()
	require.NoError(t, err)
	for _, made := range []struct{ version, resource, object string }{
		{"v1alpha1", "apiresourceschemas", `{"kind":"APIResourceSchema","metadata":{"name":"v1.greetings.example.io"},"spec":{"group":"example.io","scope":"Namespaced",
			"names":{"plural":"greetings","singular":"greeting","kind":"Greeting","listKind":"GreetingList"},"versions":[{"name":"v1","served":true,"storage":true,
			"subresources":{"status":{}},"schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}]}}`},
		{"v1alpha2", "apiexports", `{"kind":"APIExport","metadata":{"name":"greetings"},"spec":{"resources":[{"group":"example.io","name":"greetings","schema":"v1.greetings.example.io","storage":{"crd":{}}}]}}`},
		{"v1alpha2", "apibindings", `{"kind":"APIBinding","metadata":{"name":"greetings"},"spec":{"reference":{"export":{"path":"root","name":"greetings"}}}}`},
	} {
		obj := &unstructured.Unstructured{}
		require.NoError(t, json.Unmarshal([]byte(made.object), &obj.Object))
		obj.SetAPIVersion("apis.kcp.io/" + made.version)
		_, err := objects.Resource(schema.GroupVersionResource{Group: "apis.kcp.io", Version: made.version, Resource: made.resource}).Create(t.Context(), obj, metav1.CreateOptions{})
		require.NoError(t, err, made.resource)
	}
	greetings := objects.Resource(schema.GroupVersionResource{Group: "example.io", Version: "v1", Resource: "greetings"}).Namespace("default")
	greeting := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.io/v1", "kind": "Greeting", "metadata": map[string]any{"name": "first"}, "spec": map[string]any{"name": "world"},
	}}
	require.Eventually(t, func() bool {
		_, err = greetings.Create(t.Context(), greeting, metav1.CreateOptions{})
		return err == nil
	}, testTimeout, 50*time.Millisecond, "the kind is served: %v", err)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	command := exec.CommandContext(ctx, program, "--kubeconfig", ofExport(t, cluster.ShardKubeconfig(0)))
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	said := &strings.Builder{}
	command.Stdout, command.Stderr = said, said
	require.NoError(t, command.Start())
	greeted := assert.Eventually(t, func() bool {
		found, err := greetings.Get(t.Context(), "first", metav1.GetOptions{})
		if err != nil {
			return false
		}
		message, _, _ := unstructured.NestedString(found.Object, "status", "message")
		return message == "Hello, world!"
	}, testTimeout, 50*time.Millisecond, "the Greeting has what it says")
	stop()
	_ = command.Wait()
	require.True(t, greeted, "%s", said)
	require.Zero(t, command.ProcessState.ExitCode(), "it ends when it is told to: %s", said)
}

// build builds a program in a module of its own, by the versions that this one requires.
func build(t *testing.T, program string) string {
	t.Helper()
	dir := t.TempDir()
	house, err := filepath.Abs("../..")
	require.NoError(t, err)
	mod, err := os.ReadFile(filepath.Join(house, "go.mod"))
	require.NoError(t, err)
	sum, err := os.ReadFile(filepath.Join(house, "go.sum"))
	require.NoError(t, err)
	own := strings.TrimSuffix(module, "/")
	mod = regexp.MustCompile(`(?m)^module .*$`).ReplaceAll(mod, []byte("module example.io/greeter"))
	mod = append(mod, "\nrequire "+own+" v0.0.0\nreplace "+own+" => "+house+"\n"...)
	for name, content := range map[string][]byte{"go.mod": mod, "go.sum": sum, "main.go": []byte(program)} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	built := filepath.Join(dir, "greeter")
	command := exec.CommandContext(t.Context(), "go", "build", "-mod=mod", "-buildvcs=false", "-ldflags=-s -w", "-o", built, ".")
	command.Dir = dir
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return built
}

// ofExport returns a kubeconfig for the view of the export.
func ofExport(t *testing.T, kubeconfig string) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(kubeconfig)
	require.NoError(t, err)
	for _, cluster := range config.Clusters {
		host, _, _ := strings.Cut(cluster.Server, "/clusters/")
		cluster.Server = host + "/services/apiexport/root/greetings"
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*config, file))
	return file
}
