package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
)

// TestUpgrade replaces the processes of the previous release one by one, in the order of docs/support.md and in the reverse order. The
// shard has two replicas on one etcd. After each step everything must work through each process of either release. The old replica must
// keep working, and restart, while the new one has claimed the etcd.
func TestUpgrade(t *testing.T) {
	previous := os.Getenv(harness.PreviousBinaryEnv)
	if previous == "" {
		t.Skip("requires the previous release: run make upgrade")
	}
	order := []string{"cache-server", "root", "root-replica-2", "front-proxy"}
	reverse := slices.Clone(order)
	slices.Reverse(reverse)
	for name, order := range map[string][]string{"in order": order, "in reverse": reverse} {
		t.Run(name, func(t *testing.T) {
			u := newUpgrade(t, previous)
			u.works("previous release")
			for _, component := range order {
				u.Component(component).Replace(harness.Binary(t))
				u.works(component + " replaced")
				if component == "root" || component == "root-replica-2" {
					for _, left := range []string{"root", "root-replica-2"} {
						u.Component(left).Kill()
						u.Component(left).Start()
					}
					u.works(component + " replaced, and both replicas restarted")
				}
			}
		})
	}
}

// upgrade is a cluster during an upgrade.
type upgrade struct {
	*harness.Cluster
	t        *testing.T
	proxy    *client.Factory
	replicas []*client.Factory
	kubectl  kubectl
	// made contains the workspaces of the steps so far, each with an object of each kind.
	made []string
}

func newUpgrade(t *testing.T, previous string) *upgrade {
	t.Helper()
	c := harness.Start(t, harness.Options{
		Mode: harness.Processes, Binary: previous, Replicas: 2, DevTokens: true, Fsync: true,
		// A flag that both releases have.
		ExtraArgs: map[string][]string{"front-proxy": {"--index-timeout=20ms"}},
	})
	u := &upgrade{Cluster: c, t: t, proxy: harness.NewFactory(t, c.Proxy()), kubectl: newKubectl(t, c)}
	for n := range 2 {
		u.replicas = append(u.replicas, harness.NewFactory(t, c.Replica(0, n)))
	}
	return u
}

const gadgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {plural: gadgets, singular: gadget, kind: Gadget}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// works creates a workspace with objects, and reads them and those of earlier steps through each process.
func (u *upgrade) works(step string) {
	u.t.Helper()
	u.t.Log(step)
	name := fmt.Sprintf("step-%d", len(u.made))
	workspace(u.t, u.proxy, "root", name, "root")
	u.made = append(u.made, name)
	in := "root:" + name
	u.kubectl.run(u.t, in, gadgets, "apply", "-f", "-")
	u.kubectl.run(u.t, in, "", "wait", "--for=condition=Established", "customresourcedefinition/gadgets.example.com", "--timeout=60s")
	u.kubectl.run(u.t, in, "apiVersion: example.com/v1\nkind: Gadget\nmetadata: {name: kept}\n", "apply", "-f", "-")
	u.watchesThroughEach(in)
	u.deniedUsers(in)
	for _, name := range u.made {
		require.Contains(u.t, u.kubectl.run(u.t, "root:"+name, "", "get", "gadgets,configmaps", "-o", "name"), "gadget.example.com/kept", name)
		for _, replica := range u.replicas {
			for n := range u.replicas {
				_, err := kinds.ConfigMaps.InNamespace(replica.Cluster(path("root:"+name)), "default").Get(u.t.Context(), fmt.Sprintf("by-%d", n), metav1.GetOptions{})
				require.NoError(u.t, err, "%s: the object of replica %d in %s", step, n, name)
			}
		}
	}
}

// watchesThroughEach writes through each replica, and receives the events from wildcard watches of both replicas and from the front-proxy.
func (u *upgrade) watchesThroughEach(in string) {
	u.t.Helper()
	scopes := []client.Scope{u.proxy.Cluster(path(in))}
	for _, replica := range u.replicas {
		scopes = append(scopes, replica.Wildcard())
	}
	var watches []watch.Interface
	for _, scope := range scopes {
		list := harness.List(u.t, kinds.ConfigMaps.In(scope), metav1.ListOptions{})
		w, err := kinds.ConfigMaps.In(scope).Watch(u.t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion, LabelSelector: "e2e=upgrade"})
		require.NoError(u.t, err)
		defer w.Stop()
		watches = append(watches, w)
	}
	ctx, cancel := context.WithTimeout(u.t.Context(), testTimeout)
	defer cancel()
	for n, replica := range u.replicas {
		name := fmt.Sprintf("by-%d", n)
		harness.Create(u.t, kinds.ConfigMaps.InNamespace(replica.Cluster(path(in)), "default"), configMap("upgrade", name))
		for at, w := range watches {
			require.Equal(u.t, name, nextConfigMap(ctx, u.t, w).Name, "watch %d", at)
		}
	}
}

func nextConfigMap(ctx context.Context, t *testing.T, w watch.Interface) *corev1.ConfigMap {
	t.Helper()
	select {
	case event := <-w.ResultChan():
		require.Equal(t, watch.Added, event.Type, "%v", event.Object)
		return event.Object.(*corev1.ConfigMap)
	case <-ctx.Done():
		t.Fatalf("no event of a write through a replica within %s", testTimeout)
		return nil
	}
}

// deniedUsers requires that users without access get the same response for an existing and a missing workspace, and grants access.
func (u *upgrade) deniedUsers(in string) {
	u.t.Helper()
	config := rest.AnonymousClientConfig(u.Proxy())
	config.BearerToken = "user-1-token"
	me := harness.NewFactory(u.t, config)
	denied := func(in string) string {
		_, err := kinds.ConfigMaps.InNamespace(me.Cluster(path(in)), "default").Get(u.t.Context(), "by-0", metav1.GetOptions{})
		require.Error(u.t, err, in)
		return strings.ReplaceAll(err.Error(), in, "THE-WORKSPACE")
	}
	require.Equal(u.t, denied("root:absent"), denied(in))

	harness.Create(u.t, kinds.ClusterRoleBindings.In(u.proxy.Cluster(path(in))), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "member"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:kcp:workspace:access"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "user-1"}},
	})
	require.Eventually(u.t, func() bool { return strings.Contains(denied(in), `cannot get resource "configmaps"`) }, testTimeout, 10*time.Millisecond, "the response to members does not contain the missing permission")
}
