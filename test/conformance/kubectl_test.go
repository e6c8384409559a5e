package conformance

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

	"github.com/shardplane/shardplane/test/harness"
)

// TestKubectl uses custom resources with kubectl.
func TestKubectl(t *testing.T) {
	t.Parallel()
	admin := sharedShard.Get(t).Shard(0)
	u := newUser(t, admin, "terminal", "kubectl.example.com")
	k := kubectl{t: t, binary: harness.Kubectl(t), kubeconfig: writeKubeconfig(t, u.config), home: t.TempDir()}
	d := u.parse(versioned(withSubresources+"additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}]\n",
		"color: {type: string, description: Color of the widget., enum: [red, blue]}"))
	d.Spec.Names.ShortNames, d.Spec.Names.Categories = []string{"wd"}, []string{"toys"}
	_, err := u.tryDefine(d)
	require.NoError(t, err)

	require.Contains(t, k.run("", "api-resources", "--api-group", u.group), "widgets")
	require.Contains(t, k.run("", "api-resources", "--api-group", u.group), "wd")
	require.Contains(t, k.run("", "api-resources", "--categories", "toys"), "widgets")
	require.Contains(t, k.run("", "explain", "widgets.spec.color"), "Color of the widget.")
	require.Contains(t, k.run("", "explain", "wd.spec", "--recursive"), "size")

	manifest := func(spec string) string {
		return "apiVersion: " + u.group + "/v1\nkind: Widget\nmetadata: {name: a}\nspec: " + spec + "\n"
	}
	k.run(manifest("{size: 1, color: red}"), "apply", "-f", "-")
	require.Contains(t, k.run(manifest("{size: 2, color: red}"), "apply", "-f", "-"), "configured")
	require.Contains(t, k.run(manifest("{size: 2, color: red}"), "apply", "-f", "-"), "unchanged")
	require.Contains(t, k.run(manifest("{size: 3, color: red}"), "apply", "--server-side", "--force-conflicts", "-f", "-"), "serverside-applied")
	require.Contains(t, k.fail(manifest("{size: 2, nonsense: red}"), "apply", "--validate=strict", "-f", "-"), `unknown field "spec.nonsense"`)
	require.Contains(t, k.fail(manifest("{size: x}"), "apply", "--dry-run=server", "-f", "-"), "spec.size")
	require.Contains(t, k.fail(manifest("{color: green}"), "create", "-f", "-", "--dry-run=server"), "Unsupported value")

	table := strings.Fields(k.run("", "get", "wd"))
	require.Equal(t, []string{"NAME", "SIZE", "a", "3"}, table)
	require.Contains(t, k.run("", "get", "toys", "-o", "name"), "widget."+u.group+"/a")
	k.run("", "scale", "widget/a", "--replicas=7")
	require.Equal(t, "7", k.run("", "get", "widget", "a", "-o", "jsonpath={.spec.size}"))
	k.run("", "patch", "widget", "a", "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Ready"}}`)
	k.run("", "wait", "widget/a", "--for=jsonpath={.status.phase}=Ready", "--timeout=60s")
	k.run("", "wait", "crd/"+d.Name, "--for=condition=Established", "--timeout=60s")
	k.run("", "label", "widget", "a", "x=y")
	require.Contains(t, k.run("", "describe", "widget", "a"), "Phase:")
	require.Contains(t, k.run("", "delete", "widget", "-l", "x=y"), "deleted")
	k.run("", "delete", "crd", d.Name)
	require.Contains(t, k.fail("", "get", "widgets."+u.group), "doesn't have a resource type")
}

// kubectl runs kubectl.
type kubectl struct {
	t                        *testing.T
	binary, kubeconfig, home string
}

func (k kubectl) command(stdin string, args ...string) (string, error) {
	k.t.Helper()
	command := exec.CommandContext(k.t.Context(), k.binary, args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+k.kubeconfig, "HOME="+k.home)
	command.Stdin = strings.NewReader(stdin)
	output, err := command.CombinedOutput()
	return string(output), err
}

func (k kubectl) run(stdin string, args ...string) string {
	k.t.Helper()
	output, err := k.command(stdin, args...)
	require.NoError(k.t, err, "kubectl %v\n%s", args, output)
	return output
}

func (k kubectl) fail(stdin string, args ...string) string {
	k.t.Helper()
	output, err := k.command(stdin, args...)
	require.Error(k.t, err, "kubectl %v\n%s", args, output)
	return output
}

func writeKubeconfig(t *testing.T, config *rest.Config) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: config.Host, CertificateAuthorityData: config.CAData, CertificateAuthority: config.CAFile}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u", Namespace: "default"}},
		CurrentContext: "x",
	}, file))
	return file
}
