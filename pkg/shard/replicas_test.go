package shard_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/shard"
	"github.com/shardplane/shardplane/test/background"
	"github.com/shardplane/shardplane/test/harness"
)

const testTimeout = 60 * time.Second

// replica is one of several processes of a shard.
type replica struct {
	t      *testing.T
	config *rest.Config
	stop   func()
}

func startReplica(t *testing.T, etcd string, changes ...func(*shard.Options)) *replica {
	t.Helper()
	o := options(t)
	o.Etcd.Servers = []string{etcd}
	for _, change := range changes {
		change(o)
	}
	s, err := shard.NewShard(t.Context(), o.Complete())
	require.NoError(t, err)
	r := &replica{t: t, config: s.Loopback(), stop: background.Run(t.Context(), t, s.Run)}
	r.await("the replica is ready", func(context.Context) error { return read(t, r.config, "/readyz") })
	return r
}

func (r *replica) await(what string, check func(ctx context.Context) error) {
	r.t.Helper()
	var last error
	ok := func() bool { last = check(r.t.Context()); return last == nil }
	if !assert.Eventually(r.t, ok, testTimeout, 20*time.Millisecond) {
		require.NoError(r.t, last, "timeout, expected: "+what)
	}
}

// root returns the clients of the root workspace.
func (r *replica) root() client.Scope {
	r.t.Helper()
	return harness.NewFactory(r.t, r.config).Cluster(logicalcluster.NewPath("root"))
}

func (r *replica) workspaces() *client.Client[*tenancyv1alpha1.Workspace, *tenancyv1alpha1.WorkspaceList] {
	r.t.Helper()
	return kinds.Workspaces.In(r.root())
}

// serves has a replica create a workspace, for which some replica must lead.
func (r *replica) serves(name string) {
	r.t.Helper()
	workspaces := r.workspaces()
	harness.Create(r.t, workspaces, &tenancyv1alpha1.Workspace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	r.await("workspace "+name+" is Ready", func(ctx context.Context) error {
		ws, err := workspaces.Get(ctx, name, metav1.GetOptions{})
		if err == nil && ws.Status.Phase != corev1alpha1.LogicalClusterPhaseReady {
			err = fmt.Errorf("phase %q", ws.Status.Phase)
		}
		return err
	})
}

// cluster reaches a logical cluster.
func (r *replica) cluster(name string) *kubernetes.Clientset {
	r.t.Helper()
	return harness.Clientset(r.t, r.config, name)
}

func (r *replica) leader() string {
	r.t.Helper()
	lease := harness.Get(r.t, r.cluster("system:admin").CoordinationV1().Leases("default"), "shard-controllers")
	require.NotNil(r.t, lease.Spec.HolderIdentity)
	return *lease.Spec.HolderIdentity
}

// TestReplicas runs two processes on one etcd: both serve, one of them leads, and if one stops, the other continues.
// The test does not run in parallel, because the leader must renew its lease in time.
func TestReplicas(t *testing.T) {
	etcd := harness.Etcd(t, transport.TLSInfo{})
	one := startReplica(t, etcd)
	one.serves("before")
	first := one.leader()
	two := startReplica(t, etcd)
	two.serves("with-two")
	require.Equal(t, first, two.leader(), "the second replica must not become the leader")

	inOne, inTwo := one.cluster("root").CoreV1().ConfigMaps("default"), two.cluster("root").CoreV1().ConfigMaps("default")
	for n := range 5 {
		harness.Create(t, inOne, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", n)}})
	}
	page := harness.List(t, inOne, metav1.ListOptions{Limit: 2})
	rest := harness.List(t, inTwo, metav1.ListOptions{Limit: 500, Continue: page.Continue})
	require.Equal(t, page.ResourceVersion, rest.ResourceVersion)
	require.Len(t, rest.Items, 3, "the other replica must accept the continue token")

	one.stop()
	two.serves("after")
	require.NotEqual(t, first, two.leader())
	require.NoError(t, inTwo.Delete(t.Context(), "c0", metav1.DeleteOptions{}))
	w, err := inTwo.Watch(t.Context(), metav1.ListOptions{ResourceVersion: page.ResourceVersion})
	require.NoError(t, err)
	defer w.Stop()
	event := <-w.ResultChan()
	require.Equal(t, "DELETED", string(event.Type), "the watch must resume at the other replica")
}

// TestReplicasServeBindings checks that all replicas serve a bound API immediately after one of them has bound it, even
// before they observe the binding.
func TestReplicasServeBindings(t *testing.T) {
	t.Parallel()
	etcd := harness.Etcd(t, transport.TLSInfo{})
	one, two := startReplica(t, etcd), startReplica(t, etcd)
	root := one.root()
	for n := range 10 {
		plural := fmt.Sprintf("things%d", n)
		one.export(plural)
		require.NoError(t, one.bind(plural))
		one.await(plural+" are bound", func(ctx context.Context) error {
			b, err := kinds.APIBindings.In(root).Get(ctx, plural, metav1.GetOptions{})
			if err == nil && b.Status.Phase != "Bound" {
				err = fmt.Errorf("phase %q: %v", b.Status.Phase, b.Status.Conditions)
			}
			return err
		})
		for _, r := range []*replica{one, two} {
			require.NoError(t, read(t, r.config, "/clusters/root/apis/example.org/v1/"+plural))
		}
	}
}

// post creates an object in the root workspace.
func (r *replica) post(path, format string, args ...any) error {
	r.t.Helper()
	request := r.cluster("root").RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json")
	return request.Body(fmt.Appendf(nil, format, args...)).Do(r.t.Context()).Error()
}

// namesOf are the names of the resources with a plural.
func namesOf(plural string) string {
	return fmt.Sprintf(`"names":{"plural":%[1]q,"singular":"%[1]sx","kind":"K%[1]s","listKind":"K%[1]sList"}`, plural)
}

// export creates an APIExport, with its APIResourceSchema, which bind binds.
func (r *replica) export(plural string) {
	r.t.Helper()
	require.NoError(r.t, r.post("/apis/apis.kcp.io/v1alpha1/apiresourceschemas", `{"apiVersion":"apis.kcp.io/v1alpha1","kind":"APIResourceSchema","metadata":{"name":"v1.%s.example.org"},"spec":{"group":"example.org","scope":"Cluster",%s,"versions":[{"name":"v1","served":true,"storage":true,"schema":{"type":"object"}}]}}`, plural, namesOf(plural)))
	require.NoError(r.t, r.post("/apis/apis.kcp.io/v1alpha2/apiexports", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIExport","metadata":{"name":%[1]q},"spec":{"resources":[{"group":"example.org","name":%[1]q,"schema":"v1.%[1]s.example.org","storage":{"crd":{}}}]}}`, plural))
}

func (r *replica) bind(plural string) error {
	r.t.Helper()
	return r.post("/apis/apis.kcp.io/v1alpha2/apibindings", `{"apiVersion":"apis.kcp.io/v1alpha2","kind":"APIBinding","metadata":{"name":%[1]q},"spec":{"reference":{"export":{"name":%[1]q}}}}`, plural)
}

// TestReplicasAssignUniqueNames creates a CustomResourceDefinition and a binding with the same names on two replicas
// concurrently. Exactly one must get the names.
func TestReplicasAssignUniqueNames(t *testing.T) {
	t.Parallel()
	etcd := harness.Etcd(t, transport.TLSInfo{})
	one, two := startReplica(t, etcd), startReplica(t, etcd)
	root := one.root()
	dynamic, err := root.Dynamic()
	require.NoError(t, err)
	for n := range 10 {
		plural := fmt.Sprintf("things%d", n)
		one.export(plural)
		var refused error
		var both sync.WaitGroup
		both.Go(func() {
			refused = two.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%s.example.org"},"spec":{"group":"example.org","scope":"Cluster",%s,"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`, plural, namesOf(plural))
		})
		both.Go(func() { assert.NoError(t, one.bind(plural)) })
		both.Wait()
		if refused != nil {
			require.True(t, apierrors.IsForbidden(refused), "%v", refused)
		}
		one.await(plural+" are assigned once", func(ctx context.Context) error {
			b, err := kinds.APIBindings.In(root).Get(ctx, plural, metav1.GetOptions{})
			if err != nil {
				return err
			}
			established := false
			if refused == nil {
				crd, err := dynamic.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")).Get(ctx, plural+".example.org", metav1.GetOptions{})
				if err != nil {
					return err
				}
				all, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
				established = slices.ContainsFunc(all, func(c any) bool {
					condition, _ := c.(map[string]any)
					return condition["type"] == "Established" && condition["status"] == "True"
				})
			}
			if bound := b.Status.Phase == "Bound"; bound == established {
				return fmt.Errorf("bound %v, established %v", bound, established)
			}
			return nil
		})
	}
}
