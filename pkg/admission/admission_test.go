package admission

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"

	"github.com/shardplane/shardplane/pkg/admission/limits"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/client/clienttest"
	"github.com/shardplane/shardplane/pkg/client/kinds"
	"github.com/shardplane/shardplane/pkg/registry"
	"github.com/shardplane/shardplane/pkg/replicas"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage"
	"github.com/shardplane/shardplane/pkg/storage/usage"
	"github.com/shardplane/shardplane/test/heap"
)

const testTimeout = 30 * time.Second

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The transport of clients that are not closed, and upstream's loggers.
		goleak.IgnoreTopFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
	)
}

type rig struct {
	*Admission
	server *clienttest.Server
	quotas *client.Informer[*corev1.ResourceQuota]
}

func newRig(t testing.TB, clusters int, changes ...func(*Config)) *rig {
	t.Helper()
	r := &rig{server: clienttest.New(t, kinds.Scheme)}
	for i := range clusters {
		r.namespace(t, name(i))
	}
	factory, err := client.NewFactory(r.server.ClientConfig())
	require.NoError(t, err)
	namespaces := kinds.Namespaces.Informer(factory.Wildcard(), client.InformerOptions[*corev1.Namespace]{})
	r.quotas = kinds.ResourceQuotas.Informer(factory.Wildcard(), client.InformerOptions[*corev1.ResourceQuota]{})
	hooks, informers := hooksOf(factory.Wildcard())
	config := Config{
		Hooks: hooks, Local: func(logicalcluster.Name) bool { return true },
		Clients: factory, Namespaces: namespaces, ResourceQuotas: r.quotas,
		Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer(),
		Limits: limits.Config{
			Usage:          usage.NewUsageMeter(nil, storage.DefaultPrefix, "/core/events"),
			LogicalCluster: func(logicalcluster.Name) *corev1alpha1.LogicalCluster { return nil },
		},
	}
	for _, change := range changes {
		change(&config)
	}
	r.Admission, err = NewChain(t.Context(), config)
	require.NoError(t, err)
	group := &client.Group{}
	group.Add(namespaces, r.quotas)
	group.Add(informers...)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- group.Run(ctx) }()
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, <-done)
		factory.CloseIdleConnections()
	})
	wait, stop := context.WithTimeout(ctx, testTimeout)
	defer stop()
	require.NoError(t, group.WaitForSync(wait))
	return r
}

func hooksOf(all client.Scope) (h Hooks, informers []client.Runner) {
	h.MutatingWebhooks = dual(kinds.MutatingWebhookConfigurations.Informer(all, client.InformerOptions[*admissionregistrationv1.MutatingWebhookConfiguration]{}), &informers)
	h.ValidatingWebhooks = dual(kinds.ValidatingWebhookConfigurations.Informer(all, client.InformerOptions[*admissionregistrationv1.ValidatingWebhookConfiguration]{}), &informers)
	h.MutatingPolicies = dual(kinds.MutatingAdmissionPolicies.Informer(all, client.InformerOptions[*admissionregistrationv1.MutatingAdmissionPolicy]{}), &informers)
	h.MutatingBindings = dual(kinds.MutatingAdmissionPolicyBindings.Informer(all, client.InformerOptions[*admissionregistrationv1.MutatingAdmissionPolicyBinding]{}), &informers)
	h.ValidatingPolicies = dual(kinds.ValidatingAdmissionPolicies.Informer(all, client.InformerOptions[*admissionregistrationv1.ValidatingAdmissionPolicy]{}), &informers)
	h.ValidatingBindings = dual(kinds.ValidatingAdmissionPolicyBindings.Informer(all, client.InformerOptions[*admissionregistrationv1.ValidatingAdmissionPolicyBinding]{}), &informers)
	return h, informers
}

func dual[T client.Object](own *client.Informer[T], informers *[]client.Runner) *replicas.Dual[T] {
	d := replicas.NewDual(own, nil, replicas.DualOptions{})
	*informers = append(*informers, d)
	return d
}

func name(i int) logicalcluster.Name { return logicalcluster.Name(fmt.Sprintf("c%d", i)) }

func in(cluster logicalcluster.Name) map[string]string {
	return map[string]string{logicalcluster.AnnotationKey: cluster.String()}
}

func (r *rig) namespace(t testing.TB, cluster logicalcluster.Name) {
	t.Helper()
	r.server.Put(t, kinds.Namespaces.GroupVersionResource, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "default", Annotations: in(cluster)}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
	})
}

var objects = admission.NewObjectInterfacesFromScheme(registry.Scheme)

func creation(name string) admission.Attributes {
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	v1 := corev1.SchemeGroupVersion
	return admission.NewAttributesRecord(obj, nil, v1.WithKind("ConfigMap"), "default", name,
		v1.WithResource("configmaps"), "", admission.Create, &metav1.CreateOptions{}, false, &user.DefaultInfo{Name: "tenant"})
}

func (r *rig) write(ctx context.Context, name string) error {
	a := creation(name)
	if err := r.Interface().(admission.MutationInterface).Admit(ctx, a, objects); err != nil {
		return err
	}
	return r.Interface().(admission.ValidationInterface).Validate(ctx, a, objects)
}

func (r *rig) policy(t testing.TB, cluster logicalcluster.Name, expression string) {
	t.Helper()
	everything := admissionregistrationv1.NamedRuleWithOperations{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*"}},
	}}
	r.server.Put(t, kinds.ValidatingAdmissionPolicies.GroupVersionResource, &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: in(cluster)},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{everything},
			},
			Validations: []admissionregistrationv1.Validation{{Expression: expression}},
		},
	})
	r.server.Put(t, kinds.ValidatingAdmissionPolicyBindings.GroupVersionResource, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Annotations: in(cluster)},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "p", ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	})
}

func (r *rig) dropPolicy(t testing.TB, cluster logicalcluster.Name) {
	t.Helper()
	r.server.Delete(t, kinds.ValidatingAdmissionPolicies.GroupVersionResource, "", cluster, "", "p")
	r.server.Delete(t, kinds.ValidatingAdmissionPolicyBindings.GroupVersionResource, "", cluster, "", "p")
}

// TestIdle checks that logical clusters without configuration take no goroutines, no memory, and almost no
// garbage.
func TestIdle(t *testing.T) {
	const clusters = 1000
	r := newRig(t, clusters)
	r.policy(t, name(0), "object.metadata.name != 'no'")
	ctx := request.WithClusterName(t.Context(), name(0))
	require.Eventually(t, func() bool { return apierrors.IsInvalid(r.write(ctx, "no")) }, testTimeout, time.Millisecond)

	goroutines, before := runtime.NumGoroutine(), heap.InUse()
	for i := 1; i < clusters; i++ {
		require.NoError(t, r.write(request.WithClusterName(t.Context(), name(i)), "no"))
	}
	grown := heap.InUse() - before
	require.True(t, testing.Short() || runtime.NumGoroutine() <= goroutines, "idle logical clusters take goroutines")
	t.Logf("%d bytes of heap for %d logical clusters", grown, clusters)
	require.Less(t, grown, int64(clusters*128), "idle logical clusters take memory")

	ctx = request.WithClusterName(t.Context(), name(1))
	a := creation("x")
	allocs := testing.AllocsPerRun(100, func() {
		_ = r.Interface().(admission.MutationInterface).Admit(ctx, a, objects)
		_ = r.Interface().(admission.ValidationInterface).Validate(ctx, a, objects)
	})
	t.Logf("%v allocations per write", allocs)
	require.LessOrEqual(t, allocs, 10.0)
}

// TestForeign checks that a policy applies to its own logical cluster only, from its creation to its
// deletion.
func TestForeign(t *testing.T) {
	r := newRig(t, 2)
	one, two := request.WithClusterName(t.Context(), name(0)), request.WithClusterName(t.Context(), name(1))
	require.NoError(t, r.write(one, "no"))
	r.policy(t, name(0), "object.metadata.name != 'no'")
	require.Eventually(t, func() bool { return r.write(one, "no") != nil }, testTimeout, time.Millisecond)
	require.NoError(t, r.write(one, "yes"))
	require.NoError(t, r.write(two, "no"))
	r.dropPolicy(t, name(0))
	require.Eventually(t, func() bool { return r.write(one, "no") == nil }, testTimeout, time.Millisecond)
}

func TestNoCluster(t *testing.T) {
	r := newRig(t, 1)
	require.Error(t, r.write(t.Context(), "x"))
	require.Error(t, r.write(request.WithWildcard(t.Context()), "x"))
}
