package e2e

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
)

// testTimeout limits waiting for a state.
const testTimeout = time.Minute

// kubectl runs kubectl in a logical cluster, as a user of the front-proxy.
type kubectl struct {
	cluster *harness.Cluster
	program string
}

func newKubectl(t *testing.T, c *harness.Cluster) kubectl {
	t.Helper()
	return kubectl{cluster: c, program: harness.Kubectl(t)}
}

// try runs kubectl with input on its standard input.
func (k kubectl) try(t *testing.T, path, input string, args ...string) (string, error) {
	t.Helper()
	args = append([]string{
		"--kubeconfig", k.cluster.Kubeconfig(),
		"--server", k.cluster.Proxy().Host + "/clusters/" + path,
		"--cache-dir", t.TempDir(),
	}, args...)
	command := exec.CommandContext(t.Context(), k.program, args...)
	command.Stdin = strings.NewReader(input)
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	err := command.Run()
	return output.String(), err
}

// run is try for a command that must succeed.
func (k kubectl) run(t *testing.T, path, input string, args ...string) string {
	t.Helper()
	output, err := k.try(t, path, input, args...)
	require.NoError(t, err, "kubectl %v in %s: %s", args, path, output)
	return output
}

func workspaceYAML(name, shard string) string {
	return `
apiVersion: tenancy.kcp.io/v1alpha1
kind: Workspace
metadata:
  name: ` + name + `
spec:
  location:
    selector:
      matchLabels:
        name: ` + shard + "\n"
}

const widgetCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: widgets.example.com
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList, shortNames: [wd]}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            description: Specification of the widget.
            properties:
              size: {type: integer, minimum: 1, default: 3, description: Size in meters.}
`

// TestKubectl checks the first steps of a new user.
func TestKubectl(t *testing.T) {
	t.Parallel()
	c := processes.Get(t)
	k := newKubectl(t, c)

	// A workspace requires only a name.
	k.run(t, "root", "apiVersion: tenancy.kcp.io/v1alpha1\nkind: Workspace\nmetadata: {name: plain}\n", "create", "-f", "-")
	k.run(t, "root", "", "wait", "--for=jsonpath={.status.phase}=Ready", "workspace/plain", "--timeout=60s")

	// Workspaces three levels deep, on both shards.
	parent := "root"
	for _, level := range []struct{ name, shard string }{{"org", "shard-1"}, {"team", "root"}, {"app", "shard-1"}} {
		k.run(t, parent, workspaceYAML(level.name, level.shard), "apply", "-f", "-")
		k.run(t, parent, "", "wait", "--for=jsonpath={.status.phase}=Ready", "workspace/"+level.name, "--timeout=60s")
		require.Contains(t, k.run(t, parent, "", "get", "ws"), "Ready")
		parent += ":" + level.name
	}

	t.Run("same-named objects are isolated", func(t *testing.T) {
		for _, path := range []string{"root:org", "root:org:team", "root:org:team:app"} {
			k.run(t, path, "", "create", "configmap", "same", "--from-literal=path="+path)
		}
		for _, path := range []string{"root:org", "root:org:team", "root:org:team:app"} {
			require.Equal(t, path, k.run(t, path, "", "get", "configmap", "same", "-o", "jsonpath={.data.path}"))
		}
		k.run(t, "root:org", "", "delete", "configmap", "same")
		require.Equal(t, "root:org:team", k.run(t, "root:org:team", "", "get", "configmap", "same", "-o", "jsonpath={.data.path}"))
	})

	t.Run("custom resources", func(t *testing.T) {
		k.run(t, "root:org:team", widgetCRD, "apply", "-f", "-")
		k.run(t, "root:org:team", "", "wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=60s")
		k.run(t, "root:org:team", "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: a}\nspec: {}\n", "apply", "-f", "-")
		table := k.run(t, "root:org:team", "", "get", "wd")
		require.Regexp(t, `NAME\s+SIZE\s*\na\s+3`, table)
		require.Contains(t, k.run(t, "root:org:team", "", "explain", "widget.spec"), "Size in meters.")
		output, err := k.try(t, "root:org:team", "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: b}\nspec: {size: 0}\n", "apply", "-f", "-")
		require.Error(t, err)
		require.Contains(t, output, "should be greater than or equal to 1")
		output, err = k.try(t, "root:org", "", "get", "widgets")
		require.Error(t, err, "another logical cluster does not have the kind")
		require.Contains(t, output, `doesn't have a resource type "widgets"`)
	})

	t.Run("discovery, explain, apply", func(t *testing.T) {
		resources := k.run(t, "root:org:team", "", "api-resources")
		for _, name := range []string{"namespaces", "configmaps", "secrets", "serviceaccounts", "events", "leases", "customresourcedefinitions", "workspaces", "logicalclusters", "widgets"} {
			require.Contains(t, resources, name)
		}
		require.NotContains(t, resources, "pods")
		require.Contains(t, k.run(t, "root", "", "explain", "workspace.spec"), "FIELDS")
		configMap := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied}\ndata: {a: \"%s\"}\n"
		k.run(t, "root:org", strings.Replace(configMap, "%s", "1", 1), "apply", "--server-side", "-f", "-")
		require.Contains(t, k.run(t, "root:org", strings.Replace(configMap, "%s", "2", 1), "apply", "--server-side", "-f", "-"), "serverside-applied")
		require.Equal(t, "2", k.run(t, "root:org", "", "get", "cm", "applied", "-o", "jsonpath={.data.a}"))
		require.Contains(t, k.run(t, "root:org", "", "get", "--raw", "/version"), `"gitVersion": "v1.37`)
	})

	t.Run("missing workspace", func(t *testing.T) {
		// kubectl prints warnings of a failed discovery request, but not its message.
		output, err := k.try(t, "root:nowhere", "", "get", "configmaps")
		require.Error(t, err)
		require.Contains(t, output, "Forbidden")
		require.Contains(t, output, "workspace access not permitted")
		output, err = k.try(t, "root:nowhere", "", "get", "--raw", "/clusters/root:nowhere/api/v1/configmaps")
		require.Error(t, err)
		require.Contains(t, output, "workspace access not permitted")
	})

	t.Run("requests that no shard can serve", func(t *testing.T) {
		host := k.cluster.Proxy().Host
		for server, message := range map[string]string{
			"/clusters/*": "is not supported in the `*` logical cluster",
			"/services/apiexport/root/tenancy.kcp.io/clusters/*": "use /shards/<name>/services/",
		} {
			output, err := k.try(t, "root", "", "get", "cm", "-n", "x", "--server", host+server)
			require.Error(t, err)
			require.Contains(t, output, message)
		}
	})

	t.Run("deletion", func(t *testing.T) {
		k.run(t, "root", "", "delete", "ws", "org", "--timeout=60s")
		_, err := k.try(t, "root:org:team", "", "get", "configmaps")
		require.Error(t, err)
	})
}
