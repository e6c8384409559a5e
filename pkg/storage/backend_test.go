package storage

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/apis/example"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	namegen "k8s.io/apiserver/pkg/storage/names"
)

func TestBackendLifecycle(t *testing.T) {
	_, err := NewBackend(BackendConfig{})
	require.ErrorContains(t, err, "needs an etcd client")
	server := startEtcd(t)
	_, err = NewBackend(BackendConfig{Client: server.Client(), CompactionInterval: -1})
	require.ErrorContains(t, err, "compaction interval")

	b := backendOf(t, BackendConfig{Client: server.Client()})
	s := open(t, b, podsGR)
	create(in(t.Context(), "root"), t, s, newPod("ns", "one"))
	w := watching(in(t.Context(), "root"), t, s, "/pods", streaming(""))
	b.Close()
	b.Close()
	for range w.ResultChan() {
	}
	require.Error(t, errorOf(s.Watch(in(t.Context(), "root"), "/pods", streaming(""))))
	_, _, err = b.Decorator(b.storageConfig(podsGR, podCodec(t)), "/pods", podKey, newObject, newList, podAttrs, nil, nil)
	require.ErrorContains(t, err, "closed")
	require.NoError(t, b.Health(t.Context()))
	size, err := monitor{client: server.Client().Client}.Monitor(t.Context())
	require.NoError(t, err)
	require.Positive(t, size.Size)
	server.Stop()
	_, err = monitor{client: server.Client().Client}.Monitor(t.Context())
	require.Error(t, err)
	require.ErrorContains(t, b.Health(t.Context()), "etcd does not respond")
	require.Error(t, b.Ready(t.Context()))
}

func TestBadOptions(t *testing.T) {
	b := backendOf(t, BackendConfig{})
	for _, prefix := range []string{"", "/", "pods"} {
		_, _, err := b.Decorator(b.storageConfig(podsGR, podCodec(t)), prefix, podKey, newObject, newList, podAttrs, nil, nil)
		require.ErrorContains(t, err, "storage of pods")
	}
	_, err := b.RESTOptionsGetter(func(schema.GroupResource) (runtime.Codec, error) {
		return nil, errors.New("unknown kind")
	}).GetRESTOptions(podsGR, nil)
	require.ErrorContains(t, err, "unknown kind")
}

type podStrategy struct {
	runtime.ObjectTyper
	namegen.NameGenerator
}

func (podStrategy) NamespaceScoped() bool                                            { return true }
func (podStrategy) PrepareForCreate(context.Context, runtime.Object)                 {}
func (podStrategy) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}
func (podStrategy) Validate(context.Context, runtime.Object) field.ErrorList         { return nil }
func (podStrategy) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}
func (podStrategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (podStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}
func (podStrategy) Canonicalize(runtime.Object)                   {}
func (podStrategy) AllowCreateOnUpdate(context.Context) bool      { return true }
func (podStrategy) AllowUnconditionalUpdate(context.Context) bool { return true }

// TestRegistry uses an upstream registry with the options of the backend.
func TestRegistry(t *testing.T) {
	strategy := podStrategy{scheme, namegen.SimpleNameGenerator}
	store := &genericregistry.Store{
		NewFunc:                   newObject,
		NewListFunc:               newList,
		DefaultQualifiedResource:  podsGR,
		SingularQualifiedResource: schema.GroupResource{Resource: "pod"},
		CreateStrategy:            strategy,
		UpdateStrategy:            strategy,
		DeleteStrategy:            strategy,
		TableConvertor:            rest.NewDefaultTableConvertor(podsGR),
	}
	b := backendOf(t, BackendConfig{Client: startEtcd(t).Client()})
	getter := b.RESTOptionsGetter(func(schema.GroupResource) (runtime.Codec, error) { return podCodec(t), nil })
	require.NoError(t, store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: getter}))
	defer store.Destroy()

	ctx := genericapirequest.WithNamespace(in(t.Context(), "root"), "ns")
	dryRun := []string{metav1.DryRunAll}
	// tried applies the admission of a dry run to a pod.
	tried := func(pod *example.Pod) *example.Pod {
		pod = pod.DeepCopy()
		require.NoError(t, NewDryRunAdmission().Admit(ctx, admission.NewAttributesRecord(pod, nil, schema.GroupVersionKind{Kind: "Pod"}, "ns", "one",
			podsGR.WithVersion("v1"), "", admission.Create, &metav1.CreateOptions{}, true, nil), nil))
		return pod
	}
	pod := newPod("ns", "one")
	pod.Annotations = map[string]string{logicalcluster.AnnotationKey: "forged"}
	obj, err := store.Create(ctx, tried(pod), rest.ValidateAllObjectFunc, &metav1.CreateOptions{DryRun: dryRun})
	require.NoError(t, err)
	require.Equal(t, "root|ns/one", nameOf(obj.(*example.Pod)))
	_, err = store.Get(ctx, "one", &metav1.GetOptions{})
	require.Error(t, err)

	obj, err = store.Create(ctx, pod, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, "root|ns/one", nameOf(obj.(*example.Pod)))
	for _, options := range []*metav1.UpdateOptions{{DryRun: dryRun}, {}} {
		changed := obj.(*example.Pod).DeepCopy()
		changed.Annotations = map[string]string{"changed": "yes"}
		if len(options.DryRun) > 0 {
			changed = tried(changed)
		}
		updated, _, err := store.Update(ctx, "one", rest.DefaultUpdatedObjectInfo(changed), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, options)
		require.NoError(t, err)
		require.Equal(t, map[string]string{logicalcluster.AnnotationKey: "root", "changed": "yes"}, updated.(*example.Pod).Annotations)
	}
	got, err := b.cfg.Client.Client.Get(ctx, "/shardplane/core/pods/root/ns/one")
	require.NoError(t, err)
	require.Len(t, got.Kvs, 1)
	require.Eventually(t, func() bool { return store.ReadinessCheck() == nil }, deadline, time.Millisecond)
}

func TestDryRunAdmission(t *testing.T) {
	plugin := NewDryRunAdmission()
	require.True(t, plugin.Handles(admission.Create))
	require.True(t, plugin.Handles(admission.Update))
	require.False(t, plugin.Handles(admission.Delete))
	admit := func(subresource string, dryRun bool) string {
		pod := newPod("ns", "one")
		pod.Annotations = map[string]string{logicalcluster.AnnotationKey: "forged"}
		attrs := admission.NewAttributesRecord(pod, nil, schema.GroupVersionKind{Kind: "Pod"}, "ns", "one",
			podsGR.WithVersion("v1"), subresource, admission.Create, &metav1.CreateOptions{}, dryRun, nil)
		require.NoError(t, plugin.Admit(in(t.Context(), "root"), attrs, nil))
		return pod.Annotations[logicalcluster.AnnotationKey]
	}
	require.Equal(t, "root", admit("", true))
	require.Equal(t, "root", admit("status", true))
	require.Equal(t, "forged", admit("token", true))
	require.Equal(t, "forged", admit("", false), "only dry runs are changed by admission")
}
