package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const finalizer = "example.com/holder"

// TestManager runs a controller-runtime manager against one logical cluster. It creates a ConfigMap
// for each widget, updates the status of the widget, and deletes the ConfigMap with a finalizer. It
// must ignore another logical cluster with the same API.
func TestManager(t *testing.T) {
	t.Parallel()
	admin := sharedShard.Get(t).Shard(0)
	const group = "managed.example.com"
	u, other := newUser(t, admin, "managed", group), newUser(t, admin, "unmanaged", group)
	for _, each := range []*user{u, other} {
		each.define(versioned(withSubresources))
		each.widget("first", `{size: 2}`)
	}
	kind := schema.GroupVersionKind{Group: group, Version: "v1", Kind: "Widget"}
	manager, err := ctrl.NewManager(u.config, ctrl.Options{
		Scheme:                  clientgoscheme.Scheme,
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		LeaderElection:          true,
		LeaderElectionID:        "widgets",
		LeaderElectionNamespace: "default",
	})
	require.NoError(t, err)
	once := true
	require.NoError(t, ctrl.NewControllerManagedBy(manager).
		For(newWidget(kind)).
		Owns(&corev1.ConfigMap{}).
		WithOptions(controller.Options{SkipNameValidation: &once}).
		Complete(&widgetReconciler{Client: manager.GetClient(), kind: kind}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- manager.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})

	ready := func(name string) bool {
		w, err := u.widgets().Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		return field(t, w, "status", "phase") == "Ready"
	}
	u.eventually("the first widget is not ready", func() bool { return ready("first") })
	u.widget("second", `{size: 1}`)
	u.eventually("the second widget is not ready", func() bool { return ready("second") })
	require.NoError(t, u.kube.CoreV1().ConfigMaps("default").Delete(t.Context(), "second", metav1.DeleteOptions{}))
	u.eventually("the ConfigMap was not recreated", func() bool {
		_, err := u.kube.CoreV1().ConfigMaps("default").Get(t.Context(), "second", metav1.GetOptions{})
		return err == nil
	})
	require.NoError(t, u.widgets().Delete(t.Context(), "second", metav1.DeleteOptions{}))
	u.eventually("the widget or its ConfigMap was not deleted", func() bool {
		_, err := u.widgets().Get(t.Context(), "second", metav1.GetOptions{})
		_, mapErr := u.kube.CoreV1().ConfigMaps("default").Get(t.Context(), "second", metav1.GetOptions{})
		return apierrors.IsNotFound(err) && apierrors.IsNotFound(mapErr)
	})
	_, err = other.kube.CoreV1().ConfigMaps("default").Get(t.Context(), "first", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}

func newWidget(kind schema.GroupVersionKind) *unstructured.Unstructured {
	w := &unstructured.Unstructured{}
	w.SetGroupVersionKind(kind)
	return w
}

type widgetReconciler struct {
	client.Client
	kind schema.GroupVersionKind
}

// Reconcile implements reconcile.Reconciler.
func (r *widgetReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	w := newWidget(r.kind)
	if err := r.Get(ctx, request.NamespacedName, w); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.GetNamespace(), Name: w.GetName()}}
	if !w.GetDeletionTimestamp().IsZero() {
		if err := client.IgnoreNotFound(r.Delete(ctx, made)); err != nil {
			return reconcile.Result{}, err
		}
		controllerutil.RemoveFinalizer(w, finalizer)
		return reconcile.Result{}, client.IgnoreNotFound(r.Update(ctx, w))
	}
	if controllerutil.AddFinalizer(w, finalizer) {
		return reconcile.Result{RequeueAfter: time.Millisecond}, r.Update(ctx, w)
	}
	if _, err := controllerutil.CreateOrUpdate(ctx, r.Client, made, func() error {
		made.Data = map[string]string{"of": w.GetName()}
		return controllerutil.SetControllerReference(w, made, r.Scheme())
	}); err != nil {
		return reconcile.Result{}, err
	}
	before := w.DeepCopy()
	if err := unstructured.SetNestedField(w.Object, "Ready", "status", "phase"); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, r.Status().Patch(ctx, w, client.MergeFrom(before))
}
