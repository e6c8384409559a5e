package registry_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestGenerateName(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, namespace string) {
		seen := map[string]bool{}
		for range 3 {
			created := createConfigMap(t, client, namespace, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}})
			require.Regexp(t, `^a-[bcdfghjklmnpqrstvwxz2456789]{5}$`, created.Name)
			require.Equal(t, "a-", created.GenerateName)
			seen[created.Name] = true
		}
		require.Len(t, seen, 3)
	})
}

func TestDryRun(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, namespace string) {
		ctx, cms := t.Context(), client.CoreV1().ConfigMaps(namespace)
		all := []string{metav1.DryRunAll}
		created, err := cms.Create(ctx, configMap("dry"), metav1.CreateOptions{DryRun: all})
		require.NoError(t, err)
		require.NotEmpty(t, created.UID)
		require.Empty(t, created.ResourceVersion)
		_, err = cms.Get(ctx, "dry", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)

		wet := createConfigMap(t, client, namespace, configMap("wet"))
		changed := wet.DeepCopy()
		changed.Data["key"] = "new"
		updated, err := cms.Update(ctx, changed, metav1.UpdateOptions{DryRun: all})
		require.NoError(t, err)
		require.Equal(t, "new", updated.Data["key"])
		require.NoError(t, cms.Delete(ctx, "wet", metav1.DeleteOptions{DryRun: all}))
		require.NoError(t, cms.DeleteCollection(ctx, metav1.DeleteOptions{DryRun: all}, metav1.ListOptions{}))
		got, err := cms.Get(ctx, "wet", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, wet.ResourceVersion, got.ResourceVersion)
		_, err = cms.Create(ctx, configMap("wet"), metav1.CreateOptions{DryRun: all})
		require.True(t, apierrors.IsAlreadyExists(err), "%v", err)
	})
}

func TestFieldValidation(t *testing.T) {
	seen := &warnings{}
	config := rest.CopyConfig(newServer(t))
	config.WarningHandlerWithContext = seen
	client := newClient(t, config, "application/json")
	body := []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"a":"1"},"data":{"a":"2"},"odd":1}`)
	post := func(validation string) error {
		return client.CoreV1().RESTClient().Post().Namespace("ns").Resource("configmaps").
			Param("fieldValidation", validation).Param("dryRun", "All").
			SetHeader("Content-Type", "application/json").Body(body).Do(t.Context()).Error()
	}
	err := post("Strict")
	requireRefusal(t, err, refusal{
		metav1.StatusReasonBadRequest,
		`ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: duplicate field "data", unknown field "odd"`,
	})
	require.Empty(t, seen.texts)
	require.NoError(t, post("Warn"))
	require.Equal(t, []string{`duplicate field "data"`, `unknown field "odd"`}, seen.texts)
	seen.texts = nil
	require.NoError(t, post("Ignore"))
	require.Empty(t, seen.texts)
	require.True(t, apierrors.IsInvalid(post("Maybe")))

	createConfigMap(t, client, "ns", configMap("c"))
	_, err = client.CoreV1().ConfigMaps("ns").Patch(t.Context(), "c", types.MergePatchType, []byte(`{"odd":1}`), metav1.PatchOptions{FieldValidation: "Strict"})
	require.ErrorContains(t, err, `unknown field "odd"`)
}

func TestGarbageIn(t *testing.T) {
	config := newServer(t)
	client := newClient(t, config, "application/json")
	for name, test := range map[string]struct {
		contentType, body string
		check             func(error) bool
	}{
		"no JSON":         {"application/json", "{", apierrors.IsBadRequest},
		"empty":           {"application/json", "", apierrors.IsBadRequest},
		"other kind":      {"application/json", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"c"}}`, apierrors.IsBadRequest},
		"other version":   {"application/json", `{"apiVersion":"v2","kind":"ConfigMap","metadata":{"name":"c"}}`, apierrors.IsBadRequest},
		"wrong type":      {"application/json", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"a":1}}`, apierrors.IsBadRequest},
		"other namespace": {"application/json", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","namespace":"other"}}`, apierrors.IsBadRequest},
		"no protobuf":     {"application/vnd.kubernetes.protobuf", "k8s\x00garbage", apierrors.IsBadRequest},
		"content type":    {"text/plain", "hello", apierrors.IsUnsupportedMediaType},
	} {
		t.Run(name, func(t *testing.T) {
			err := client.CoreV1().RESTClient().Post().Namespace("ns").Resource("configmaps").
				SetHeader("Content-Type", test.contentType).Body([]byte(test.body)).Do(t.Context()).Error()
			require.Error(t, err)
			require.True(t, test.check(err), "%v", err)
		})
	}
	_, err := client.CoreV1().ConfigMaps("ns").List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err, "the server must survive")
}

func TestFinalizersAndPreconditions(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, namespace string) {
		ctx, cms := t.Context(), client.CoreV1().ConfigMaps(namespace)
		cm := configMap("held")
		cm.Finalizers = []string{"example.com/hold"}
		cm = createConfigMap(t, client, namespace, cm)

		other := types.UID("other")
		err := cms.Delete(ctx, "held", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}})
		require.True(t, apierrors.IsConflict(err), "%v", err)
		require.EqualError(t, err, `Operation cannot be fulfilled on ConfigMap "held": the UID in the precondition (other) does not match the UID in record (`+string(cm.UID)+`). The object might have been deleted and then recreated`)
		version := "1"
		err = cms.Delete(ctx, "held", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}})
		require.True(t, apierrors.IsConflict(err), "%v", err)

		grace := int64(30)
		require.NoError(t, cms.Delete(ctx, "held", metav1.DeleteOptions{
			GracePeriodSeconds: &grace, Preconditions: &metav1.Preconditions{UID: &cm.UID, ResourceVersion: &cm.ResourceVersion},
		}))
		held, err := cms.Get(ctx, "held", metav1.GetOptions{})
		require.NoError(t, err)
		require.NotNil(t, held.DeletionTimestamp)
		require.Equal(t, int64(0), *held.DeletionGracePeriodSeconds, "config maps are not deleted gracefully")

		more := held.DeepCopy()
		more.Finalizers = append(more.Finalizers, "example.com/more")
		_, err = cms.Update(ctx, more, metav1.UpdateOptions{})
		require.ErrorContains(t, err, `no new finalizers can be added if the object is being deleted, found new finalizers []string{"example.com/more"}`)

		held.Finalizers = nil
		_, err = cms.Update(ctx, held, metav1.UpdateOptions{})
		require.NoError(t, err)
		_, err = cms.Get(ctx, "held", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
	})
}

func TestDeleteAnswers(t *testing.T) {
	client := newClient(t, newServer(t), "application/json")
	uid := createConfigMap(t, client, "ns", configMap("c")).UID
	body, err := client.CoreV1().RESTClient().Delete().Namespace("ns").Resource("configmaps").Name("c").DoRaw(t.Context())
	require.NoError(t, err)
	var status metav1.Status
	require.NoError(t, json.Unmarshal(body, &status))
	require.Equal(t, metav1.StatusSuccess, status.Status)
	require.Equal(t, &metav1.StatusDetails{Name: "c", Kind: "configmaps", UID: uid}, status.Details)

	// Service accounts return the object.
	_, err = client.CoreV1().ServiceAccounts("ns").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: named("s")}, metav1.CreateOptions{})
	require.NoError(t, err)
	body, err = client.CoreV1().RESTClient().Delete().Namespace("ns").Resource("serviceaccounts").Name("s").DoRaw(t.Context())
	require.NoError(t, err)
	var account corev1.ServiceAccount
	require.NoError(t, json.Unmarshal(body, &account))
	require.Equal(t, "ServiceAccount", account.Kind)
}

func TestDeleteCollection(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, namespace string) {
		ctx, cms := t.Context(), client.CoreV1().ConfigMaps(namespace)
		for i := range 6 {
			cm := configMap(fmt.Sprintf("c%d", i))
			cm.Labels = map[string]string{"odd": fmt.Sprint(i%2 == 1)}
			createConfigMap(t, client, namespace, cm)
		}
		createConfigMap(t, client, namespace+"-other", configMap("stays"))
		names := func() (out []string) {
			list, err := cms.List(ctx, metav1.ListOptions{})
			require.NoError(t, err)
			for _, item := range list.Items {
				out = append(out, item.Name)
			}
			return out
		}
		require.NoError(t, cms.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "odd=true"}))
		require.Equal(t, []string{"c0", "c2", "c4"}, names())
		require.NoError(t, cms.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=c0"}))
		require.Equal(t, []string{"c2", "c4"}, names())
		require.NoError(t, cms.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		require.Empty(t, names())
		_, err := client.CoreV1().ConfigMaps(namespace+"-other").Get(ctx, "stays", metav1.GetOptions{})
		require.NoError(t, err)
	})
}

func TestPatches(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, namespace string) {
		ctx, cms := t.Context(), client.CoreV1().ConfigMaps(namespace)
		createConfigMap(t, client, namespace, configMap("c"))
		for kind, patch := range map[types.PatchType]string{
			types.JSONPatchType:           `[{"op":"add","path":"/data/json","value":"yes"}]`,
			types.MergePatchType:          `{"data":{"merge":"yes"}}`,
			types.StrategicMergePatchType: `{"data":{"strategic":"yes"}}`,
		} {
			_, err := cms.Patch(ctx, "c", kind, []byte(patch), metav1.PatchOptions{})
			require.NoError(t, err, kind)
		}
		got, err := cms.Get(ctx, "c", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, map[string]string{"key": "value", "json": "yes", "merge": "yes", "strategic": "yes"}, got.Data)

		_, err = cms.Patch(ctx, "c", types.JSONPatchType, []byte(`[{"op":"test","path":"/data/key","value":"x"}]`), metav1.PatchOptions{})
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		_, err = cms.Patch(ctx, "c", types.MergePatchType, []byte(`{"metadata":{"name":"d"}}`), metav1.PatchOptions{})
		require.True(t, apierrors.IsBadRequest(err), "%v", err)
		_, err = cms.Patch(ctx, "none", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		// Not every resource supports upserts.
		_, err = cms.Update(ctx, configMap("none"), metav1.UpdateOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
	})
}

func TestWatch(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, namespace string) {
		ctx, cms := t.Context(), client.CoreV1().ConfigMaps(namespace)
		w, err := cms.Watch(ctx, metav1.ListOptions{LabelSelector: "seen=true"})
		require.NoError(t, err)
		defer w.Stop()
		cm := createConfigMap(t, client, namespace, configMap("c"))
		label := func(value string) {
			_, err := cms.Patch(ctx, "c", types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"seen":%q}}}`, value), metav1.PatchOptions{})
			require.NoError(t, err)
		}
		label("true")
		added := next(t, w)
		require.Equal(t, watch.Added, added.Type)
		require.Equal(t, cm.UID, added.Object.(*corev1.ConfigMap).UID)
		label("false")
		require.Equal(t, watch.Deleted, next(t, w).Type)
	})
}

func TestManagedFieldsAndSpoofedMetadata(t *testing.T) {
	client := newClient(t, newServer(t), "application/json")
	cm := configMap("c")
	cm.UID = "mine"
	cm.CreationTimestamp = metav1.Unix(1, 0)
	now := metav1.Now()
	cm.DeletionTimestamp = &now
	created := createConfigMap(t, client, "ns", cm)
	require.NotEqual(t, types.UID("mine"), created.UID)
	require.Nil(t, created.DeletionTimestamp)
	require.NotEqual(t, int64(1), created.CreationTimestamp.Unix())
	require.Len(t, created.ManagedFields, 1)
	require.Equal(t, metav1.ManagedFieldsOperationUpdate, created.ManagedFields[0].Operation)
	require.JSONEq(t, `{"f:data":{".":{},"f:key":{}}}`, string(created.ManagedFields[0].FieldsV1.GetRawBytes()))
}

func TestConcurrentWriters(t *testing.T) {
	client := newClient(t, newServer(t), "application/vnd.kubernetes.protobuf")
	createConfigMap(t, client, "ns", configMap("c"))
	const writers, writes = 4, 5
	errs := make(chan error, writers)
	for i := range writers {
		go func() {
			var err error
			for j := range writes {
				patch := fmt.Appendf(nil, `{"data":{"w%d-%d":"x"}}`, i, j)
				if _, e := client.CoreV1().ConfigMaps("ns").Patch(context.WithoutCancel(t.Context()), "c", types.MergePatchType, patch, metav1.PatchOptions{}); e != nil {
					err = e
				}
			}
			errs <- err
		}()
	}
	for range writers {
		require.NoError(t, <-errs)
	}
	got, err := client.CoreV1().ConfigMaps("ns").Get(t.Context(), "c", metav1.GetOptions{})
	require.NoError(t, err)
	require.Len(t, got.Data, writers*writes+1)
}
