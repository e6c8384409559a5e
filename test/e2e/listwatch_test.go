package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/shardplane/shardplane/test/harness"
)

// Two selectors that cover the ring.
var halves = []string{
	"shardRange(object.metadata.uid, '0x0000000000000000', '0x8000000000000000')",
	"shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')",
}

// side is a collection on a server, as kubectl and client-go reach it.
type side struct {
	program             string
	config              *rest.Config
	kubeconfig, context string
	// prefix is what makes the server's URL that of a whole Kubernetes API.
	prefix    string
	resource  schema.GroupVersionResource
	kind      string
	namespace string
}

// TestListWatchClients lists and watches as client authors do, with kubectl and
// with informers that check what they got, on a shard, on the cache server and
// through the front-proxy.
func TestListWatchClients(t *testing.T) {
	t.Setenv("KUBE_WATCHLIST_INCONSISTENCY_DETECTOR", "true")
	c := processes.Get(t)
	program := harness.Kubectl(t)
	cacheFile := filepath.Join(c.Dir, ".kcp-cache", "cache.kubeconfig")
	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	types := schema.GroupVersionResource{Group: "tenancy.kcp.io", Version: "v1alpha1", Resource: "workspacetypes"}
	for name, s := range map[string]side{
		"shard-builtin": {config: c.Shard(0), kubeconfig: c.ShardKubeconfig(0), context: "shard-base", prefix: "/clusters/root", resource: configMaps, kind: "ConfigMap", namespace: "default"},
		"shard-custom":  {config: c.Shard(0), kubeconfig: c.ShardKubeconfig(0), context: "shard-base", prefix: "/clusters/root", resource: types, kind: "WorkspaceType"},
		"proxy-builtin": {config: c.Proxy(), kubeconfig: c.Kubeconfig(), context: "base", prefix: "/clusters/root", resource: configMaps, kind: "ConfigMap", namespace: "default"},
		"proxy-custom":  {config: c.Proxy(), kubeconfig: c.Kubeconfig(), context: "base", prefix: "/clusters/root", resource: types, kind: "WorkspaceType"},
		"cache-server":  {config: c.Cache(), kubeconfig: cacheFile, context: "cache", prefix: "/services/cache/shards/e2e/clusters/root", resource: types, kind: "WorkspaceType"},
	} {
		t.Run(name, func(t *testing.T) {
			s.program = program
			s.config = rest.CopyConfig(s.config)
			s.config.Host += s.prefix
			var names []string
			for n := range 6 {
				names = append(names, fmt.Sprintf("%s-%d", name, n))
			}
			s.create(t, names...)
			t.Run("get", func(t *testing.T) { s.testGet(t, names) })
			t.Run("raw", func(t *testing.T) { s.testRaw(t, names) })
			t.Run("watch", func(t *testing.T) { s.testWatch(t, names) })
			t.Run("informers", func(t *testing.T) { s.testInformers(t, name) })
		})
	}
}

func (s side) command(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	args = append([]string{"--kubeconfig", s.kubeconfig, "--context", s.context, "--server", s.config.Host, "--cache-dir", t.TempDir()}, args...)
	return exec.CommandContext(ctx, s.program, args...)
}

// do runs kubectl and returns what it prints.
func (s side) do(t *testing.T, input string, args ...string) string {
	t.Helper()
	command := s.command(t.Context(), t, args...)
	command.Stdin = strings.NewReader(input)
	output, err := command.CombinedOutput()
	require.NoError(t, err, "kubectl %v: %s", args, output)
	return string(output)
}

func (s side) create(t *testing.T, names ...string) {
	t.Helper()
	var manifests strings.Builder
	for _, name := range names {
		fmt.Fprintf(&manifests, "---\napiVersion: %s\nkind: %s\nmetadata: {name: %s}\n", s.resource.GroupVersion(), s.kind, name)
	}
	s.do(t, manifests.String(), "create", "--validate=false", "-f", "-")
}

// testGet lists in every form, whole and in chunks.
func (s side) testGet(t *testing.T, names []string) {
	for _, form := range []string{"json", "yaml", "name", "wide", ""} {
		args := []string{"get", s.resource.Resource}
		if form != "" {
			args = append(args, "-o", form)
		}
		whole := s.do(t, "", args...)
		for _, name := range names {
			require.Contains(t, whole, name, form)
		}
		// The age of an object, and the version of a list, may change.
		if form == "name" || form == "json" {
			require.Equal(t, s.named(t, form, whole), s.named(t, form, s.do(t, "", append(args, "--chunk-size", "2")...)))
		}
	}
}

// named returns the names in a list that kubectl printed.
func (s side) named(t *testing.T, form, output string) []string {
	t.Helper()
	if form == "name" {
		return strings.Fields(output)
	}
	var list metav1.PartialObjectMetadataList
	require.NoError(t, json.Unmarshal([]byte(output), &list), output)
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// testRaw lists the parts of the ring, and sends what is not a selector.
func (s side) testRaw(t *testing.T, names []string) {
	path := "/api/v1"
	if s.resource.Group != "" {
		path = "/apis/" + s.resource.GroupVersion().String()
	}
	if s.namespace != "" {
		path += "/namespaces/" + s.namespace
	}
	path += "/" + s.resource.Resource + "?shardSelector="
	var union []string
	for _, half := range halves {
		output := s.do(t, "", "get", "--raw", path+url.QueryEscape(half))
		union = append(union, s.named(t, "json", output)...)
		var list struct{ Metadata metav1.ListMeta }
		require.NoError(t, json.Unmarshal([]byte(output), &list))
		require.NotNil(t, list.Metadata.ShardInfo)
		require.Equal(t, half, list.Metadata.ShardInfo.Selector)
	}
	for _, name := range names {
		require.Equal(t, 1, count(union, name), name)
	}
	output, err := s.command(t.Context(), t, "get", "--raw", path+"nonsense").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(output), "invalid shardSelector")
}

func count(all []string, one string) int {
	n := 0
	for _, s := range all {
		if s == one {
			n++
		}
	}
	return n
}

// testWatch watches as a table, which shows what is there and what comes and
// goes.
func (s side) testWatch(t *testing.T, names []string) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	command := s.command(ctx, t, "get", s.resource.Resource, "--watch", "--output-watch-events")
	output, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	lines := make(chan string, 1000)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(lines)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			lines <- strings.Join(strings.Fields(scanner.Text())[:2], " ")
		}
	})
	defer func() {
		stop()
		reader.Wait()
		_ = command.Wait() // it was killed
	}()
	await := func(wanted ...string) {
		for line := range lines {
			wanted = slices.DeleteFunc(wanted, func(s string) bool { return s == line })
			if len(wanted) == 0 {
				return
			}
		}
		require.Empty(t, wanted, "kubectl ended")
	}
	var there []string
	for _, name := range names {
		there = append(there, "ADDED "+name)
	}
	await(there...)
	s.create(t, "watched")
	await("ADDED watched")
	s.do(t, "", "label", s.resource.Resource, "watched", "seen=yes")
	await("MODIFIED watched")
	s.do(t, "", "delete", s.resource.Resource, "watched")
	await("DELETED watched")
}

// testInformers follows the whole and its parts.
func (s side) testInformers(t *testing.T, prefix string) {
	client, err := dynamic.NewForConfig(s.config)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	stores := make([]cache.Store, 0, 1+len(halves))
	for _, selector := range append([]string{""}, halves...) {
		informer := dynamicinformer.NewFilteredDynamicInformer(client, s.resource, s.namespace, 0, nil, func(o *metav1.ListOptions) { o.ShardSelector = selector }).Informer()
		running.Go(func() { informer.RunWithContext(ctx) })
		require.Eventually(t, informer.HasSynced, testTimeout, testTimeout/1000)
		stores = append(stores, informer.GetStore())
	}
	agree := func() bool {
		return len(stores[0].ListKeys()) == len(stores[1].ListKeys())+len(stores[2].ListKeys())
	}
	require.Eventually(t, agree, testTimeout, testTimeout/1000)
	in := client.Resource(s.resource).Namespace(s.namespace)
	created, err := in.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": s.resource.GroupVersion().String(), "kind": s.kind, "metadata": map[string]any{"name": prefix + "-informed"},
	}}, metav1.CreateOptions{})
	require.NoError(t, err)
	holders := func() (n int) {
		for _, store := range stores {
			if _, ok, err := store.Get(created); ok && err == nil {
				n++
			}
		}
		return n
	}
	require.Eventually(t, func() bool { return holders() == 2 && agree() }, testTimeout, testTimeout/1000)
	require.NoError(t, in.Delete(t.Context(), created.GetName(), metav1.DeleteOptions{}))
	require.Eventually(t, func() bool { return holders() == 0 && agree() }, testTimeout, testTimeout/1000)
}
