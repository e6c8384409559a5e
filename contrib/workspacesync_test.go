package contrib_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/dev/pki"
	"github.com/shardplane/shardplane/test/harness"
)

const (
	copyLabel = "workspace-sync.shardplane.io/copy"
	byLabel   = "workspace-sync.shardplane.io/by"
)

// workspacesEnv is an environment variable with the number of workspaces of TestWorkspaceSync, which is small by default.
const workspacesEnv = "SYNC_WORKSPACES"

func workspaces(t *testing.T) int {
	t.Helper()
	text := os.Getenv(workspacesEnv)
	if text == "" {
		return 8
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

// applyRules creates the roles and bindings in a file of workspace-sync.
func applyRules(t *testing.T, scope client.Scope, file string) {
	t.Helper()
	content := harness.ReadFile(t, filepath.Join("examples", "workspace-sync", file))
	documents := strings.Split(string(content), "\n---\n")
	require.Len(t, documents, 2)
	if strings.Contains(documents[0], "kind: ClusterRole\n") {
		applyRule(t, kinds.ClusterRoles.In(scope), documents[0], &rbacv1.ClusterRole{})
		applyRule(t, kinds.ClusterRoleBindings.In(scope), documents[1], &rbacv1.ClusterRoleBinding{})
		return
	}
	applyRule(t, kinds.Roles.InNamespace(scope, "default"), documents[0], &rbacv1.Role{})
	applyRule(t, kinds.RoleBindings.InNamespace(scope, "default"), documents[1], &rbacv1.RoleBinding{})
}

func applyRule[T client.Object, L runtime.Object](t *testing.T, in *client.Client[T, L], document string, into T) {
	t.Helper()
	require.NoError(t, yaml.UnmarshalStrict([]byte(document), into))
	_, err := in.Create(t.Context(), into, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(t, err)
	}
}

// userKubeconfig returns a kubeconfig for the front-proxy with a user without groups.
func userKubeconfig(t *testing.T, cluster *harness.Cluster, user string) string {
	t.Helper()
	store := pki.NewStore(filepath.Join(cluster.Dir, ".kcp"), time.Now)
	ca, err := store.Authority("client-ca")
	require.NoError(t, err)
	pair, err := store.Certificate(user, ca, pki.Client(user))
	require.NoError(t, err)
	config, err := clientcmd.LoadFromFile(cluster.Kubeconfig())
	require.NoError(t, err)
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificate: pair.CertFile, ClientKey: pair.KeyFile}
	}
	file := filepath.Join(cluster.Dir, user+".kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*config, file))
	return file
}

// synced is a test of workspace-sync.
type synced struct {
	*testing.T
	proxy   *client.Factory
	targets []logicalcluster.Name
}

// copies returns the copies in all workspaces, listed through the front-proxy.
func (s *synced) copies(ctx context.Context) (map[logicalcluster.Name]*corev1.ConfigMap, error) {
	list, err := kinds.ConfigMaps.In(s.proxy.Wildcard()).List(ctx, metav1.ListOptions{LabelSelector: byLabel + "=workspace-sync"})
	if err != nil {
		return nil, err
	}
	copies := map[logicalcluster.Name]*corev1.ConfigMap{}
	for i := range list.Items {
		if list.Items[i].Name == "policy" {
			copies[logicalcluster.From(&list.Items[i])] = &list.Items[i]
		}
	}
	return copies, nil
}

// everywhere waits until all workspaces have a copy with a content, except for some that have none, and returns the duration.
func (s *synced) everywhere(what, content string, without ...logicalcluster.Name) time.Duration {
	s.Helper()
	since := time.Now()
	excluded := map[logicalcluster.Name]bool{}
	for _, name := range without {
		excluded[name] = true
	}
	eventually(s.T, what, func() error {
		copies, err := s.copies(s.Context())
		if err != nil {
			return err
		}
		for _, name := range s.targets {
			if c := copies[name]; !excluded[name] && (c == nil || c.Data["content"] != content) {
				return fmt.Errorf("%s does not have %q", name, content)
			}
		}
		if len(copies) != len(s.targets)-len(without) {
			return fmt.Errorf("%d copies exist", len(copies))
		}
		return nil
	})
	return time.Since(since)
}

// untilEvent waits for an Event for the copy in a workspace.
func (s *synced) untilEvent(name logicalcluster.Name, message string) {
	s.Helper()
	list := client.DefineResource[corev1.Event, corev1.EventList](corev1.SchemeGroupVersion, "events")
	eventually(s.T, message, func() error {
		found, err := list.InNamespace(s.proxy.Cluster(name.Path()), "default").List(s.Context(), metav1.ListOptions{FieldSelector: "reason=NotCopied"})
		if err != nil {
			return err
		}
		for i := range found.Items {
			if strings.Contains(found.Items[i].Message, message) {
				return nil
			}
		}
		return fmt.Errorf("none of %d Events contain the message", len(found.Items))
	})
}

// TestWorkspaceSync checks four replicas of the example with copies in workspaces of two shards and only the permissions of its manifests,
// while some of them are killed, stopped and started. If a user has or changes an object, it is not overwritten, but reported by an Event.
func TestWorkspaceSync(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: builds, runs and restarts an example")
	}
	t.Parallel()
	cluster := two.Get(t)
	s := &synced{T: t, proxy: harness.NewFactory(t, cluster.Proxy())}
	for n := range 2 {
		applyRules(t, harness.NewFactory(t, cluster.Shard(n)).Cluster(logicalcluster.NewPath("system:admin")), "rbac-shards.yaml")
	}
	applyRules(t, s.proxy.Cluster(logicalcluster.NewPath("root")), "rbac-root.yaml")
	harness.Workspace(t, s.proxy, "root", "platform", "root")
	for n := range workspaces(t) {
		name := harness.Workspace(t, s.proxy, "root", fmt.Sprint("synced-", n), []string{"root", "shard-1"}[n%2])
		s.targets = append(s.targets, name)
		s.label(name, "yes")
	}
	sources := kinds.ConfigMaps.InNamespace(s.proxy.Cluster(logicalcluster.NewPath("root:platform")), "default")
	_, err := sources.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "policy", Labels: map[string]string{copyLabel: "true"}}, Data: map[string]string{"content": "first", "more": "x"},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	// An existing object with the same name that is not a copy.
	taken := s.targets[0]
	in := func(name logicalcluster.Name) *client.Client[*corev1.ConfigMap, *corev1.ConfigMapList] {
		return kinds.ConfigMaps.InNamespace(s.proxy.Cluster(name.Path()), "default")
	}
	harness.Create(t, in(taken), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "policy"}, Data: map[string]string{"content": "own"}})

	kubeconfig := userKubeconfig(t, cluster, "workspace-sync")
	begin := func(name string) *replica {
		return start(t, "workspace-sync", name, "--kubeconfig="+kubeconfig, "--shard-kubeconfigs="+cluster.ShardKubeconfig(1)+","+cluster.ShardKubeconfig(0),
			"--from=root:platform", "--selector=synced=yes")
	}
	replicas := []*replica{begin("one"), begin("two"), begin("three"), begin("four")}
	s.everywhere("all workspaces have copies", "first", taken)
	s.untilEvent(taken, "not a copy")
	before, err := s.copies(t.Context())
	require.NoError(t, err)
	divided(t, "each replica has a quarter", replicas...)
	dashboardIsServed(t, "workspace-sync", replicas...)
	for _, path := range []string{"/healthz", "/readyz"} {
		_, err := replicas[0].get(path)
		require.NoError(t, err, path)
	}

	put := func(content string) {
		t.Helper()
		_, err := sources.Patch(t.Context(), "policy", types.MergePatchType, []byte(`{"data":{"content":"`+content+`","more":null}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	put("second")
	took := s.everywhere("a change is copied", "second", taken)
	put("third")
	replicas[1].kill()
	t.Logf("%d workspaces: a change was copied after %s, and after %s when a replica was killed (the lease duration is %s)",
		len(s.targets), took, s.everywhere("a change is copied while a replica is killed", "third", taken), leaseDuration())
	put("fourth")
	replicas[2].stop()
	s.everywhere("a change is copied after a replica was stopped", "fourth", taken)
	divided(t, "a new replica has its share", replicas[0], replicas[3], begin("five"))
	now, err := s.copies(t.Context())
	require.NoError(t, err)
	for name, c := range before {
		require.Equal(t, c.UID, now[name].UID, "copies must not be created again")
		require.NotContains(t, now[name].Data, "more", "copies must not contain removed keys")
	}

	// If a user changes a copy, the change is kept, and reported by an Event.
	changed := s.targets[1]
	_, err = in(changed).Patch(t.Context(), "policy", types.MergePatchType, []byte(`{"data":{"content":"changed"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	s.untilEvent(changed, ".data.content")
	// If a copy is deleted, it is created again. If its workspace is no longer selected, it is deleted.
	require.NoError(t, in(changed).Delete(t.Context(), "policy", metav1.DeleteOptions{}))
	s.everywhere("a deleted copy is created again", "fourth", taken)
	s.label(s.targets[2], "no")
	s.everywhere("workspaces that are not selected have no copy", "fourth", taken, s.targets[2])
	require.NoError(t, sources.Delete(t.Context(), "policy", metav1.DeleteOptions{}))
	s.everywhere("all copies are deleted", "", s.targets...)
	own := harness.Get(t, in(taken), "policy")
	require.Equal(t, map[string]string{"content": "own"}, own.Data)
}

// label sets the label of a LogicalCluster that selects its workspace.
func (s *synced) label(name logicalcluster.Name, value string) {
	s.Helper()
	_, err := kinds.LogicalClusters.In(s.proxy.Cluster(name.Path())).Patch(s.Context(), "cluster", types.MergePatchType, []byte(`{"metadata":{"labels":{"synced":"`+value+`"}}}`), metav1.PatchOptions{})
	require.NoError(s.T, err)
}
