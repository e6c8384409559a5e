package registry_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/shardplane/shardplane/test/programs"
)

// kubectl runs the real kubectl against the server.
type kubectl struct {
	binary, kubeconfig, home string
}

func newKubectl(t *testing.T, config *rest.Config) kubectl {
	t.Helper()
	binary := programs.Kubectl(t)
	home := t.TempDir()
	path := filepath.Join(home, "kubeconfig")
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: "any"}
	file.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: "ns"}
	file.CurrentContext = "c"
	require.NoError(t, clientcmd.WriteToFile(*file, path))
	return kubectl{binary: binary, kubeconfig: path, home: home}
}

// run returns what kubectl prints, which must succeed.
func (k kubectl) run(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), k.binary, args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+k.kubeconfig, "HOME="+k.home)
	command.Stdin = strings.NewReader(stdin)
	var stdout, stderr strings.Builder
	command.Stdout, command.Stderr = &stdout, &stderr
	require.NoError(t, command.Run(), "kubectl %s: %s", strings.Join(args, " "), &stderr)
	return stdout.String()
}

// fields splits a printed table into words.
func fields(table string) [][]string {
	var out [][]string
	for line := range strings.Lines(table) {
		out = append(out, strings.Fields(line))
	}
	return out
}

func TestKubectl(t *testing.T) {
	config := newServer(t)
	k := newKubectl(t, config)
	createOneOfEach(t, newClient(t, config, "application/json"))

	t.Run("tables", func(t *testing.T) {
		for short, header := range map[string]string{
			"ns":     "NAME STATUS AGE",
			"cm":     "NAME DATA AGE",
			"secret": "NAME TYPE DATA AGE",
			"sa":     "NAME SECRETS AGE",
			"lease":  "NAME HOLDER AGE",
			"ev":     "LAST SEEN TYPE REASON OBJECT MESSAGE",
		} {
			rows := fields(k.run(t, "", "get", short))
			require.Equal(t, strings.Fields(header), rows[0])
			require.Greater(t, len(rows), 1)
		}
		require.Equal(t, strings.Fields("LAST SEEN TYPE REASON OBJECT SUBOBJECT SOURCE MESSAGE FIRST SEEN COUNT NAME"),
			fields(k.run(t, "", "get", "events.events.k8s.io", "-o", "wide"))[0])
		require.Equal(t, "held", fields(k.run(t, "", "get", "lease", "held", "--no-headers"))[0][0])
		require.Contains(t, k.run(t, "", "get", "cm", "-A"), "NAMESPACE")
		require.Contains(t, k.run(t, "", "events"), "Thing/t")
	})
	t.Run("apply", func(t *testing.T) {
		manifest := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied}\ndata: {a: \"1\"}\n"
		require.Equal(t, "configmap/applied created\n", k.run(t, manifest, "apply", "-f", "-"))
		require.Equal(t, "configmap/applied unchanged\n", k.run(t, manifest, "apply", "-f", "-"))
		require.Equal(t, "configmap/applied configured\n", k.run(t, strings.ReplaceAll(manifest, "1\"", "2\""), "apply", "-f", "-"))
		require.Equal(t, "configmap/applied serverside-applied\n",
			k.run(t, manifest, "apply", "--server-side", "--force-conflicts", "-f", "-"))
		require.Equal(t, "1", k.run(t, "", "get", "cm", "applied", "-o", "jsonpath={.data.a}"))
		require.Contains(t, k.run(t, "", "describe", "cm", "applied"), "applied")
		require.Equal(t, "configmap \"applied\" deleted from ns namespace\n", k.run(t, "", "delete", "cm", "applied"))
	})
	t.Run("validation", func(t *testing.T) {
		command := exec.CommandContext(t.Context(), k.binary, "create", "--kubeconfig", k.kubeconfig, "-f", "-")
		command.Env = append(os.Environ(), "HOME="+k.home)
		command.Stdin = strings.NewReader("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: odd}\ndat: {a: b}\n")
		out, err := command.CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), `unknown field "dat"`)
	})
	t.Run("create", func(t *testing.T) {
		require.Equal(t, "secret/made created\n", k.run(t, "", "create", "secret", "generic", "made", "--from-literal=a=b"))
		require.Equal(t, "namespace/made created\n", k.run(t, "", "create", "ns", "made"))
		require.Equal(t, "serviceaccount/made created\n", k.run(t, "", "create", "sa", "made"))
		require.Contains(t, k.run(t, "", "label", "ns", "made", "a=b"), "labeled")
	})
	t.Run("discovery", func(t *testing.T) {
		resources := k.run(t, "", "api-resources", "--no-headers")
		for _, line := range []string{"configmaps cm v1 true ConfigMap", "namespaces ns v1 false Namespace", "serviceaccounts sa v1 true ServiceAccount",
			"events ev v1 true Event", "events ev events.k8s.io/v1 true Event", "leases coordination.k8s.io/v1 true Lease", "secrets v1 true Secret"} {
			require.Contains(t, strings.Join(strings.Fields(resources), " "), line)
		}
		require.Contains(t, k.run(t, "", "explain", "configmap.data"), "map[string]string")
		require.Contains(t, k.run(t, "", "explain", "lease.spec.holderIdentity"), "holderIdentity")
	})
}
