package compat_test

import (
	"context"
	"testing"

	"github.com/go-logr/logr"
	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/multicluster-provider/apiexport"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcbuilder "sigs.k8s.io/multicluster-runtime/pkg/builder"
	mcmanager "sigs.k8s.io/multicluster-runtime/pkg/manager"
	"sigs.k8s.io/multicluster-runtime/pkg/multicluster"
	mcreconcile "sigs.k8s.io/multicluster-runtime/pkg/reconcile"
)

// withKCP returns the scheme of the controllers.
func withKCP(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apisv1alpha1.AddToScheme, corev1alpha1.AddToScheme, tenancyv1alpha1.AddToScheme} {
		require.NoError(t, add(s))
	}
	return s
}

// at returns the configuration for clients of one logical cluster.
func at(t *testing.T, name logicalcluster.Path) *rest.Config {
	t.Helper()
	c := proxy(t)
	c.Host += name.RequestPath()
	return c
}

// runController runs a controller of multicluster-runtime with one of kcp's providers until the
// test ends.
func runController(t *testing.T, config *rest.Config, p multicluster.Provider, obj ctrlclient.Object, reconciler func(mcmanager.Manager) mcreconcile.Func) {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	m, err := mcmanager.New(config, p, manager.Options{Scheme: withKCP(t), Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: "0"})
	require.NoError(t, err)
	require.NoError(t, mcbuilder.ControllerManagedBy(m).Named(t.Name()).For(obj).Complete(reconciler(m)))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
}

// TestAPIExportProvider runs a controller with kcp's provider in the virtual workspace of an
// export, with consumers on both shards. It must find the endpoints, including those of later
// bindings, and write objects.
func TestAPIExportProvider(t *testing.T) {
	e := export(t, workspaces(t, "exports", 1, "root")[0])
	consumers := append(workspaces(t, "binds-0-", 2, "root"), workspaces(t, "binds-1-", 2, "shard-1")...)
	e.bind(t, consumers[0])
	config := at(t, e.name.Path())
	p, err := apiexport.New(config, "gadgets", apiexport.Options{Scheme: withKCP(t)})
	require.NoError(t, err)
	gadget := &unstructured.Unstructured{}
	gadget.SetGroupVersionKind(gadgets.GroupVersion().WithKind("Gadget"))
	runController(t, config, p, gadget, func(m mcmanager.Manager) mcreconcile.Func {
		return func(ctx context.Context, request mcreconcile.Request) (reconcile.Result, error) {
			c, err := m.GetCluster(ctx, request.ClusterName)
			if err != nil {
				return reconcile.Result{}, err
			}
			obj := gadget.DeepCopy()
			if err := c.GetClient().Get(ctx, request.NamespacedName, obj); err != nil || obj.GetLabels()["seen"] != "" {
				return reconcile.Result{}, ctrlclient.IgnoreNotFound(err)
			}
			obj.SetLabels(map[string]string{"seen": request.ClusterName.String()})
			return reconcile.Result{}, c.GetClient().Update(ctx, obj)
		}
	})
	for _, name := range consumers {
		if name != consumers[0] {
			e.bind(t, name)
		}
		eventually(t, "the controller has not updated the object in its logical cluster", func() bool {
			obj, err := e.gadgets.Cluster(name.Path()).Resource(gadgets).Namespace("default").Get(t.Context(), "a", metav1.GetOptions{})
			return err == nil && obj.GetLabels()["seen"] == name.String()
		})
	}
}
