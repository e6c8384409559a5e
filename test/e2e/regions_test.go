package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/test/harness"
)

var (
	typesOf               = tenancyv1alpha1.SchemeGroupVersion.WithResource("workspacetypes")
	clusterRolesOf        = rbacv1.SchemeGroupVersion.WithResource("clusterroles")
	clusterRoleBindingsOf = rbacv1.SchemeGroupVersion.WithResource("clusterrolebindings")
)

const (
	// regionsTick is the interval between two attempts.
	regionsTick    = 100 * time.Millisecond
	regionsBinding = `{apiVersion: apis.kcp.io/v1alpha2, kind: APIBinding, metadata: {name: %[1]s}, spec: {reference: {export: {path: "root:regions-provider", name: %[2]s}}}}`
)

// regions are two regions: root with cache-server, and shard-1 with cache-server-2 and the front-proxy. The cache servers relay to each
// other. The second region reaches the first one through links.
type regions struct {
	*harness.Cluster

	t     *testing.T
	dir   string
	links map[string]*harness.Link
	// provider uses a logical cluster on root directly. consumer and users use one on shard-1 through the front-proxy.
	provider, consumer dynamic.Interface
	users              map[string]dynamic.Interface
	proxy              *client.Factory
}

func newRegions(t *testing.T) *regions {
	t.Helper()
	r := &regions{t: t, dir: t.TempDir(), links: map[string]*harness.Link{}}
	caches, shards := []string{"cache-server", "cache-server-2"}, []string{"root", "shard-1"}
	for _, name := range append(caches, "root") {
		r.links[name] = harness.NewLink(t)
	}
	in := func(name string) string { return filepath.Join(r.dir, name) }
	all := append(append([]string{}, caches...), append(shards, "front-proxy")...)
	r.Cluster = harness.Start(t, harness.Options{
		Mode: harness.Processes, Shards: 2, DevTokens: true, SecondCache: true, Without: all,
		ExtraArgs: map[string][]string{
			"cache-server":   {"--feature-gates=CacheRelays=true", "--relay-config=" + in("cache-server")},
			"cache-server-2": {"--feature-gates=CacheRelays=true", "--relay-config=" + in("cache-server-2")},
			"root":           {"--cache-kubeconfig=" + in("root.kubeconfig"), "--base-url=" + r.links["root"].URL},
			"shard-1":        {"--cache-kubeconfig=" + in("shard-1.kubeconfig"), "--root-kubeconfig=" + in("root-of-shard")},
			"front-proxy":    {"--root-kubeconfig=" + in("root-of-proxy"), "--index-directory=" + in("index")},
		},
	})
	r.connect()
	names := []string{"cache", "second"}
	for n, cache := range caches {
		r.kubeconfig(fmt.Sprintf(".kcp-%d/cache.kubeconfig", n), shards[n]+".kubeconfig", "cache-server", r.Component(cache).URL)
		link := r.kubeconfig(".kcp-1/cache.kubeconfig", cache+".kubeconfig", "cache-server", r.links[cache].URL)
		r.write(caches[1-n], "relays:\n- {from: {name: %s, kubeconfig: %q}}\n", names[n], link)
	}
	r.kubeconfig(".kcp-1/root-shard.kubeconfig", "root-of-shard", "root", r.links["root"].URL)
	r.kubeconfig(".kcp/front-proxy.kubeconfig", "root-of-proxy", "root", r.links["root"].URL)
	for _, name := range all {
		r.Component(name).Launch()
	}
	for _, name := range all {
		r.Component(name).WaitReady()
	}
	r.proxy = harness.NewFactory(t, r.Proxy())
	r.provider = dynamicOf(harness.NewFactory(t, r.Shard(0)), workspace(t, r.proxy, "root", "regions-provider", "root"))
	consumer := workspace(t, r.proxy, "root", "regions-consumer", "shard-1")
	r.consumer, r.users = dynamicOf(r.proxy, consumer), map[string]dynamic.Interface{}
	for _, user := range []string{"user-1", "user-2"} {
		config := rest.AnonymousClientConfig(r.Proxy())
		config.BearerToken = user + "-token"
		r.users[user] = dynamicOf(harness.NewFactory(t, config), consumer)
		r.allow(r.consumer, "cluster-admin", user)
	}
	return r
}

// kubeconfig writes a copy of a kubeconfig of the cluster, with another URL for a component.
func (r *regions) kubeconfig(from, to, component, url string) string {
	r.t.Helper()
	content := harness.ReadFile(r.t, filepath.Join(r.Dir, from))
	require.Contains(r.t, string(content), r.Component(component).URL)
	return r.write(to, "%s", strings.ReplaceAll(string(content), r.Component(component).URL, url))
}

func (r *regions) write(name, text string, args ...any) string {
	r.t.Helper()
	file := filepath.Join(r.dir, name)
	require.NoError(r.t, os.WriteFile(file, fmt.Appendf(nil, text, args...), 0o600))
	return file
}

func (r *regions) connect() {
	for name, link := range r.links {
		link.Connect(r.Component(name).URL)
	}
}

func (r *regions) cut() {
	for _, link := range r.links {
		link.Cut()
	}
}

func (r *regions) create(in dynamic.ResourceInterface, text string, args ...any) {
	r.t.Helper()
	r.until(func(c *assert.CollectT) {
		if _, err := in.Create(r.t.Context(), parse(text, args...), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			require.NoError(c, err)
		}
	})
}

// allow binds a user to a ClusterRole.
func (r *regions) allow(in dynamic.Interface, role, user string) {
	r.t.Helper()
	r.create(in.Resource(clusterRoleBindingsOf), `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: %[1]s-%[2]s},
		roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s}, subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: %[2]s}]}`, role, user)
}

// export creates an APIExport in the provider.
func (r *regions) export(name string) {
	r.t.Helper()
	r.create(r.provider.Resource(schemasOf), `{apiVersion: apis.kcp.io/v1alpha1, kind: APIResourceSchema, metadata: {name: v1.gizmos.%[1]s.example.com},
		spec: {group: %[1]s.example.com, names: {kind: Gizmo, listKind: GizmoList, plural: gizmos, singular: gizmo}, scope: Cluster,
		versions: [{name: v1, served: true, storage: true, schema: {type: object}}]}}`, name)
	r.create(r.provider.Resource(exportsOf), `{apiVersion: apis.kcp.io/v1alpha2, kind: APIExport, metadata: {name: %[1]s},
		spec: {resources: [{group: %[1]s.example.com, name: gizmos, schema: v1.gizmos.%[1]s.example.com, storage: {crd: {}}}]}}`, name)
}

// until waits for a state while servers are starting.
func (r *regions) until(want func(c *assert.CollectT)) {
	r.t.Helper()
	require.EventuallyWithT(r.t, want, 2*testTimeout, regionsTick)
}

// bound requires that the consumer's binding to an export is Bound.
func (r *regions) bound(t require.TestingT, export string) {
	b, err := r.consumer.Resource(bindingsOf).Get(r.t.Context(), export, metav1.GetOptions{})
	require.NoError(t, err)
	phase, _, _ := unstructured.NestedString(b.Object, "status", "phase")
	require.Equal(t, "Bound", phase, "%v", b.Object["status"])
}

// tryBind binds an export as a user, and returns the error.
func (r *regions) tryBind(as dynamic.Interface, export string) error {
	_, err := as.Resource(bindingsOf).Create(r.t.Context(), parse(regionsBinding, "try", export), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// bind binds an export in the consumer, and waits until it is Bound.
func (r *regions) bind(export string) {
	r.t.Helper()
	r.create(r.consumer.Resource(bindingsOf), regionsBinding, export, export)
	r.until(func(c *assert.CollectT) { r.bound(c, export) })
}

// rights returns the users that may bind the export early. Both must get a definite response.
func (r *regions) rights(t require.TestingT) map[string]bool {
	may := map[string]bool{}
	for user, as := range r.users {
		err := r.tryBind(as, "early")
		if may[user] = err == nil; !apierrors.IsForbidden(err) {
			require.NoError(t, err, user)
		}
	}
	return may
}

// works creates the last of these objects of the bound API, and requires that the others exist.
func (r *regions) works(names ...string) {
	r.t.Helper()
	gizmos := r.consumer.Resource(schema.GroupVersionResource{Group: "early.example.com", Version: "v1", Resource: "gizmos"})
	r.create(gizmos, `{apiVersion: early.example.com/v1, kind: Gizmo, metadata: {name: %s}}`, names[len(names)-1])
	r.until(func(c *assert.CollectT) {
		list, err := gizmos.List(r.t.Context(), metav1.ListOptions{})
		require.NoError(c, err)
		var have []string
		for _, item := range list.Items {
			have = append(have, item.GetName())
		}
		require.Equal(c, names, have)
	})
}

// workspaceIs requires a phase and a reason for missing bindings of a workspace in the consumer.
func (r *regions) workspaceIs(t require.TestingT, name, phase, reason string) {
	ws, err := kinds.Workspaces.In(r.proxy.Cluster(path("root:regions-consumer"))).Get(r.t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, phase, string(ws.Status.Phase))
	require.Equal(t, reason, conditions.GetReason(ws, tenancyv1alpha1.WorkspaceAPIBindingsInitialized))
}

// verify waits until each cache server has exactly the replicas of each shard.
func (r *regions) verify() {
	r.t.Helper()
	for _, kubeconfig := range []string{"root.kubeconfig", "shard-1.kubeconfig"} { // one per region
		r.until(func(c *assert.CollectT) {
			out, err := exec.CommandContext(r.t.Context(), harness.Binary(r.t), "cache", "verify", "--cache-kubeconfig", filepath.Join(r.dir, kubeconfig),
				"--shard-kubeconfig", r.ShardKubeconfig(0), "--shard-kubeconfig", r.ShardKubeconfig(1)).CombinedOutput()
			require.NoError(c, err, "%s: %s", kubeconfig, out)
		})
	}
}

// TestRegions cuts the links between two regions, and restarts the cache server, the shard and the front-proxy of one region meanwhile.
// The region must keep working, permissions must not change because of missing information, and waiting objects must report the reason
// and continue later. The same applies if the other region's cache server is killed, and has a delay of 2 s after its restart.
func TestRegions(t *testing.T) {
	if testing.Short() {
		t.Skip("nightly: stops and starts the servers of two regions")
	}
	t.Parallel()
	r := newRegions(t)
	r.create(r.provider.Resource(clusterRolesOf), `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: bind}, rules: [{apiGroups: [apis.kcp.io], resources: [apiexports], verbs: [bind]}]}`)
	r.allow(r.provider, "bind", "user-1")
	r.export("early")
	r.bind("early")
	r.works("a")
	first, second, none := map[string]bool{"user-1": true, "user-2": false}, map[string]bool{"user-1": false, "user-2": true}, map[string]bool{"user-1": false, "user-2": false}
	rights := func(want map[string]bool) {
		t.Helper()
		r.until(func(c *assert.CollectT) { require.Equal(c, want, r.rights(c)) })
	}
	rights(first)
	r.verify() // otherwise shards would request reviews from each other
	revoke := func(user string) {
		t.Helper()
		require.NoError(t, r.provider.Resource(clusterRoleBindingsOf).Delete(t.Context(), "bind-"+user, metav1.DeleteOptions{}))
	}

	t.Log("The links are cut")
	r.cut()
	r.export("late")
	revoke("user-1")
	r.allow(r.provider, "bind", "user-2")
	r.Component("cache-server-2").Restart()
	r.Component("shard-1").Kill()
	r.Component("shard-1").Start()
	r.Component("front-proxy").Restart()
	r.works("a", "b")
	rights(first)
	r.until(func(c *assert.CollectT) {
		err := r.tryBind(r.users["user-1"], "late")
		require.True(c, apierrors.IsForbidden(err), "the response must be that for a missing export: %v", err)
	})
	r.create(r.consumer.Resource(typesOf), `{apiVersion: tenancy.kcp.io/v1alpha1, kind: WorkspaceType, metadata: {name: binds-late},
		spec: {extend: {with: [{name: universal, path: root}]}, defaultAPIBindings: [{path: "root:regions-provider", export: late}]}}`)
	r.create(r.consumer.Resource(workspacesOf), `{apiVersion: tenancy.kcp.io/v1alpha1, kind: Workspace, metadata: {name: waits},
		spec: {type: {name: binds-late, path: "root:regions-consumer"}, location: {selector: {matchLabels: {name: shard-1}}}}}`)
	r.until(func(c *assert.CollectT) { r.workspaceIs(c, "waits", "Initializing", "APIBindingErrors") })
	r.bound(t, "early")

	t.Log("The links are connected")
	r.connect()
	r.until(func(c *assert.CollectT) { r.workspaceIs(c, "waits", "Ready", "") })
	r.bind("late")
	rights(second)

	t.Log("The other region's cache server is killed, and restarts with a delay")
	r.Component("cache-server").Kill()
	r.works("a", "b", "c")
	rights(second)
	r.Component("cache-server").StartWith("--synthetic-delay=2s")
	r.Component("root").Kill()
	r.Component("root").Start()
	r.Component("front-proxy").Restart()
	r.export("slow")
	revoke("user-2")
	r.bind("slow")
	rights(none)
	r.works("a", "b", "c", "d")
	r.Component("cache-server").RestartWith()
	for _, export := range []string{"early", "late", "slow"} {
		r.bound(t, export)
	}
	r.verify()
}
