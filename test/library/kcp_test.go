package library

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/test/harness"
)

const (
	// testTimeout limits the time of steps that take milliseconds on an idle machine.
	testTimeout = 2 * time.Minute

	kcpTick = 20 * time.Millisecond
	// kcpEnv is the environment variable with the path of kcp, and responsesEnv that of the file for recorded responses.
	kcpEnv, responsesEnv = "KCP_BINARY", "KCP_ANSWERS"
)

var (
	configMaps = client.DefineResource[corev1.ConfigMap, corev1.ConfigMapList](corev1.SchemeGroupVersion, "configmaps", client.WithProtobuf())
	exports    = client.DefineResource[apisv1alpha1.APIExport, apisv1alpha1.APIExportList](apisv1alpha1.SchemeGroupVersion, "apiexports")
	workspaces = client.DefineResource[tenancyv1alpha1.Workspace, tenancyv1alpha1.WorkspaceList](tenancyv1alpha1.SchemeGroupVersion, "workspaces")
)

// TestKCP uses pkg/client with a kcp server, if KCP_BINARY is set (make kcp).
func TestKCP(t *testing.T) {
	binary := os.Getenv(kcpEnv)
	if binary == "" {
		t.Skip("set " + kcpEnv + " to the path of kcp")
	}
	base, shard := startKCP(t, binary)
	if file := os.Getenv(responsesEnv); file != "" {
		recorded := &recorder{}
		base, shard = recorded.record(t, base), recorded.record(t, shard)
		defer recorded.write(t, file)
	}
	useKCP(t, base, shard)
}

// TestKCPResponses is TestKCP with the responses in testdata/kcp.yaml.
func TestKCPResponses(t *testing.T) {
	config := replay(t, "testdata/kcp.yaml")
	useKCP(t, config, config)
}

// startKCP starts kcp, and returns the configurations of its administrator and of system:masters.
func startKCP(t *testing.T, binary string) (base, shard *rest.Config) {
	t.Helper()
	dir := t.TempDir()
	var ports []any
	for range 3 {
		ports = append(ports, harness.FreePort(t))
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	flags := fmt.Sprintf("start --root-directory="+dir+" --bind-address=127.0.0.1 --secure-port=%d --embedded-etcd-client-port=%d --embedded-etcd-peer-port=%d", ports...)
	program := exec.Command(binary, strings.Fields(flags)...)
	program.Stdout, program.Stderr = log, log
	require.NoError(t, program.Start())
	t.Cleanup(func() {
		_ = program.Process.Signal(syscall.SIGTERM)
		_ = program.Wait()
		_ = log.Close()
		if output, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("Log of kcp:\n%s", output)
		}
	})
	configOf := func(name string) *rest.Config {
		rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: filepath.Join(dir, "admin.kubeconfig")}
		config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: name}).ClientConfig()
		if err != nil {
			return nil
		}
		return config
	}
	require.Eventually(t, func() bool {
		base, shard = configOf("base"), configOf("shard-base")
		if base == nil || shard == nil {
			return false
		}
		factory, err := client.NewFactory(base)
		require.NoError(t, err)
		defer factory.CloseIdleConnections()
		_, err = exports.In(factory.Cluster(logicalcluster.NewPath("root"))).Get(t.Context(), "tenancy.kcp.io", metav1.GetOptions{})
		return err == nil
	}, testTimeout, kcpTick, "kcp is not ready")
	return base, shard
}

// useKCP checks the public packages with a server without shard selectors by logical cluster: objects of all tenants are separate, bound
// APIs are read by identity, and the client filters its range of objects.
func useKCP(t *testing.T, base, shard *rest.Config) {
	t.Helper()
	proxy, all := harness.NewFactory(t, base), harness.NewFactory(t, shard).Wildcard()
	root := proxy.Cluster(logicalcluster.NewPath("root"))
	var names []logicalcluster.Name
	for _, name := range []string{"library-a", "library-b"} {
		ws := &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		ws.Spec.Type = &tenancyv1alpha1.WorkspaceTypeReference{Name: "universal", Path: "root"}
		harness.Create(t, workspaces.In(root), ws)
		eventually(t, name+" is Ready", func() bool {
			var err error
			ws, err = workspaces.In(root).Get(t.Context(), name, metav1.GetOptions{})
			return err == nil && ws.Status.Phase == corev1alpha1.LogicalClusterPhaseReady
		})
		names = append(names, logicalcluster.Name(ws.Spec.Cluster))
		eventually(t, "the workspace accepts a ConfigMap", func() bool {
			_, err := configMaps.InNamespace(proxy.Cluster(names[len(names)-1].Path()), "default").Create(t.Context(), &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: "same", Labels: map[string]string{"library": "yes"}}, Data: map[string]string{"of": name},
			}, metav1.CreateOptions{})
			return err == nil || apierrors.IsAlreadyExists(err)
		})
	}
	key := func(i int) client.Key { return client.Key{Cluster: names[i], Namespace: "default", Name: "same"} }

	options := client.InformerOptions[*corev1.ConfigMap]{LabelSelector: "library=yes"}
	whole := configMaps.Informer(all, options)
	var err error
	first := client.HashOf(names[0].String())
	options.Ranges, err = client.NewRanges(client.ByCluster, client.Range{First: first, Last: first})
	require.NoError(t, err)
	part := configMaps.Informer(all, options)
	export := harness.Get(t, exports.In(root), "tenancy.kcp.io")
	byIdentity := client.DefineResource[tenancyv1alpha1.Workspace, tenancyv1alpha1.WorkspaceList](tenancyv1alpha1.SchemeGroupVersion,
		"workspaces:"+export.Status.IdentityHash).Informer(all, client.InformerOptions[*tenancyv1alpha1.Workspace]{})
	group := &client.Group{}
	group.Add(whole, part, byIdentity)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- group.Run(ctx) }()
	defer func() {
		stop()
		require.NoError(t, <-ended)
	}()

	for i, name := range []string{"library-a", "library-b"} {
		eventually(t, "objects of the same name are separate", func() bool {
			cm, err := whole.Lister().Get(key(i))
			return err == nil && cm.Data["of"] == name
		})
		eventually(t, "the informer contains bound objects by identity", func() bool {
			ws, err := byIdentity.Lister().Get(client.Key{Cluster: "root", Name: name})
			return err == nil && ws.Spec.Cluster == names[i].String()
		})
	}
	eventually(t, "the client filters objects", func() bool { return part.HasSynced() && part.Filtered() == client.FilteredByClient })
	require.Equal(t, 1, part.Lister().Len())
	_, err = part.Lister().Get(key(0))
	require.NoError(t, err)
	_, err = part.Lister().Get(key(1))
	require.ErrorIs(t, err, client.ErrNotOwned)
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, testTimeout, kcpTick, what)
}
