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

// TestUpgrade replaces the servers of the previous release by those of this one,
// one process after another, in the order that docs/support.md names and in the
// reverse one. The shard has two replicas on one etcd. After each step everything
// works, through each process, whichever of the two it runs: the replica that is
// left behind goes on, and starts again, beside the one that has claimed the etcd.
func TestUpgrade(t *testing.T) {
	previous := os.Getenv(harness.PreviousBinaryEnv)
	if previous == "" {
		t.Skip("make upgrade builds the previous release and runs this")
	}
	order := []string{"cache-server", "root", "root-replica-2", "front-proxy"}
	reverse := slices.Clone(order)
	slices.Reverse(reverse)
	for name, order := range map[string][]string{"in order": order, "in reverse": reverse} {
		t.Run(name, func(t *testing.T) {
			u := newUpgrade(t, previous)
			u.works("of the previous release")
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

// upgrade is a cluster that is being upgraded.
type upgrade struct {
	*harness.Cluster
	t        *testing.T
	proxy    *client.Factory
	replicas []*client.Factory
	kubectl  kubectl
	// made are the workspaces of the steps so far; each has an object of each kind.
	made []string
}

func newUpgrade(t *testing.T, previous string) *upgrade {
	t.Helper()
	c := harness.Start(t, harness.Options{
		Mode: harness.Processes, Binary: previous, Replicas: 2, DevTokens: true, Fsync: true,
		// The name that both releases know.
		ExtraArgs: map[string][]string{"front-proxy": {"--index-timeout=20ms"}},
	})
	u := &upgrade{Cluster: c, t: t, proxy: factory(t, c.Proxy()), kubectl: newKubectl(t, c)}
	for n := range 2 {
		u.replicas = append(u.replicas, factory(t, c.Replica(0, n)))
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

// works makes a workspace and objects in it, and finds them and those of all steps
// before through each process.
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
	u.eachSeesTheOthers(in)
	u.strangersLearnNothing(in)
	for _, name := range u.made {
		require.Contains(u.t, u.kubectl.run(u.t, "root:"+name, "", "get", "gadgets,configmaps", "-o", "name"), "gadget.example.com/kept", name)
		for _, replica := range u.replicas {
			for n := range u.replicas {
				_, err := kinds.ConfigMaps.InNamespace(replica.Cluster(path("root:"+name)), "default").Get(u.t.Context(), fmt.Sprintf("by-%d", n), metav1.GetOptions{})
				require.NoError(u.t, err, "%s: what replica %d wrote in %s", step, n, name)
			}
		}
	}
}

// eachSeesTheOthers writes through each replica while wildcard watches of all and
// of the front-proxy's logical cluster wait for it.
func (u *upgrade) eachSeesTheOthers(in string) {
	u.t.Helper()
	scopes := []client.Scope{u.proxy.Cluster(path(in))}
	for _, replica := range u.replicas {
		scopes = append(scopes, replica.Wildcard())
	}
	var watches []watch.Interface
	for _, scope := range scopes {
		list, err := kinds.ConfigMaps.In(scope).List(u.t.Context(), metav1.ListOptions{})
		require.NoError(u.t, err)
		w, err := kinds.ConfigMaps.In(scope).Watch(u.t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion, LabelSelector: "e2e=upgrade"})
		require.NoError(u.t, err)
		defer w.Stop()
		watches = append(watches, w)
	}
	ctx, cancel := context.WithTimeout(u.t.Context(), testTimeout)
	defer cancel()
	for n, replica := range u.replicas {
		name := fmt.Sprintf("by-%d", n)
		_, err := kinds.ConfigMaps.InNamespace(replica.Cluster(path(in)), "default").Create(u.t.Context(), configMap("upgrade", name), metav1.CreateOptions{})
		require.NoError(u.t, err)
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
		t.Fatal("a watch does not see what a replica wrote")
		return nil
	}
}

// strangersLearnNothing compares what users are told of a workspace that they may
// not enter with what they are told of one that is not there, and has one enter.
func (u *upgrade) strangersLearnNothing(in string) {
	u.t.Helper()
	config := rest.AnonymousClientConfig(u.Proxy())
	config.BearerToken = "user-1-token"
	me := factory(u.t, config)
	told := func(in string) string {
		_, err := kinds.ConfigMaps.InNamespace(me.Cluster(path(in)), "default").Get(u.t.Context(), "by-0", metav1.GetOptions{})
		require.Error(u.t, err, in)
		return strings.ReplaceAll(err.Error(), in, "THE-WORKSPACE")
	}
	require.Equal(u.t, told("root:absent"), told(in))

	_, err := kinds.ClusterRoleBindings.In(u.proxy.Cluster(path(in))).Create(u.t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "member"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:kcp:workspace:access"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "user-1"}},
	}, metav1.CreateOptions{})
	require.NoError(u.t, err)
	require.Eventually(u.t, func() bool { return strings.Contains(told(in), `cannot get resource "configmaps"`) }, testTimeout, 10*time.Millisecond, "members learn what they may not do")
}
