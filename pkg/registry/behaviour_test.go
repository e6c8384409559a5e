package registry_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestDryRun(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, namespace string) {
		ctx, cms := t.Context(), client.CoreV1().ConfigMaps(namespace)
		all := dryRun.DryRun
		created, err := cms.Create(ctx, configMap("dry"), dryRun)
		require.NoError(t, err)
		require.NotEmpty(t, created.UID)
		require.Empty(t, created.ResourceVersion)
		_, err = cms.Get(ctx, "dry", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)

		wet := mustCreate(t, client.CoreV1().ConfigMaps(namespace), configMap("wet"))
		changed := wet.DeepCopy()
		changed.Data["key"] = "new"
		updated, err := cms.Update(ctx, changed, metav1.UpdateOptions{DryRun: all})
		require.NoError(t, err)
		require.Equal(t, "new", updated.Data["key"])
		require.NoError(t, cms.Delete(ctx, "wet", metav1.DeleteOptions{DryRun: all}))
		require.NoError(t, cms.DeleteCollection(ctx, metav1.DeleteOptions{DryRun: all}, metav1.ListOptions{}))
		got := mustGet(t, cms, "wet")
		require.Equal(t, wet.ResourceVersion, got.ResourceVersion)
		_, err = cms.Create(ctx, configMap("wet"), dryRun)
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
	requireRefusal(t, err, metav1.StatusReasonBadRequest,
		`ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: duplicate field "data", unknown field "odd"`)
	require.Empty(t, seen.texts)
	require.NoError(t, post("Warn"))
	require.Equal(t, []string{`duplicate field "data"`, `unknown field "odd"`}, seen.texts)
	seen.texts = nil
	require.NoError(t, post("Ignore"))
	require.Empty(t, seen.texts)
	require.True(t, apierrors.IsInvalid(post("Maybe")))

	mustCreate(t, client.CoreV1().ConfigMaps("ns"), configMap("c"))
	_, err = client.CoreV1().ConfigMaps("ns").Patch(t.Context(), "c", types.MergePatchType, []byte(`{"odd":1}`), metav1.PatchOptions{FieldValidation: "Strict"})
	require.ErrorContains(t, err, `unknown field "odd"`)
}

func TestInvalidRequestBodies(t *testing.T) {
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
		cm = mustCreate(t, client.CoreV1().ConfigMaps(namespace), cm)

		err := cms.Delete(ctx, "held", *metav1.NewPreconditionDeleteOptions("other"))
		require.True(t, apierrors.IsConflict(err), "%v", err)
		require.EqualError(t, err, `Operation cannot be fulfilled on ConfigMap "held": the UID in the precondition (other) does not match the UID in record (`+string(cm.UID)+`). The object might have been deleted and then recreated`)
		err = cms.Delete(ctx, "held", *metav1.NewRVDeletionPrecondition("1"))
		require.True(t, apierrors.IsConflict(err), "%v", err)

		require.NoError(t, cms.Delete(ctx, "held", metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(30)),
			Preconditions:      &metav1.Preconditions{UID: &cm.UID, ResourceVersion: &cm.ResourceVersion},
		}))
		held := mustGet(t, cms, "held")
		require.NotNil(t, held.DeletionTimestamp)
		require.Equal(t, int64(0), *held.DeletionGracePeriodSeconds, "ConfigMaps must be deleted without a grace period")

		more := held.DeepCopy()
		more.Finalizers = append(more.Finalizers, "example.com/more")
		_, err = cms.Update(ctx, more, metav1.UpdateOptions{})
		require.ErrorContains(t, err, `no new finalizers can be added if the object is being deleted, found new finalizers []string{"example.com/more"}`)

		held.Finalizers = nil
		mustUpdate(t, cms, held)
		_, err = cms.Get(ctx, "held", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
	})
}

func TestDeleteResponses(t *testing.T) {
	client := newClient(t, newServer(t), "application/json")
	uid := mustCreate(t, client.CoreV1().ConfigMaps("ns"), configMap("c")).UID
	body, err := client.CoreV1().RESTClient().Delete().Namespace("ns").Resource("configmaps").Name("c").DoRaw(t.Context())
	require.NoError(t, err)
	var status metav1.Status
	require.NoError(t, json.Unmarshal(body, &status))
	require.Equal(t, metav1.StatusSuccess, status.Status)
	require.Equal(t, &metav1.StatusDetails{Name: "c", Kind: "configmaps", UID: uid}, status.Details)

	// Service accounts return the object.
	mustCreate(t, client.CoreV1().ServiceAccounts("ns"), &corev1.ServiceAccount{ObjectMeta: named("s")})
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
			mustCreate(t, client.CoreV1().ConfigMaps(namespace), cm)
		}
		mustCreate(t, client.CoreV1().ConfigMaps(namespace+"-other"), configMap("stays"))
		names := func() string {
			list, err := cms.List(ctx, metav1.ListOptions{})
			require.NoError(t, err)
			return namesOf(t, list)
		}
		require.NoError(t, cms.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "odd=true"}))
		require.Equal(t, "c0 c2 c4", names())
		require.NoError(t, cms.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=c0"}))
		require.Equal(t, "c2 c4", names())
		require.NoError(t, cms.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		require.Empty(t, names())
		mustGet(t, client.CoreV1().ConfigMaps(namespace+"-other"), "stays")
	})
}

func TestManagedFieldsAndSpoofedMetadata(t *testing.T) {
	client := newClient(t, newServer(t), "application/json")
	cm := configMap("c")
	cm.UID, cm.CreationTimestamp, cm.DeletionTimestamp = "mine", metav1.Unix(1, 0), new(metav1.Now())
	created := mustCreate(t, client.CoreV1().ConfigMaps("ns"), cm)
	require.NotEqual(t, types.UID("mine"), created.UID)
	require.Nil(t, created.DeletionTimestamp)
	require.NotEqual(t, int64(1), created.CreationTimestamp.Unix())
	require.Len(t, created.ManagedFields, 1)
	require.Equal(t, metav1.ManagedFieldsOperationUpdate, created.ManagedFields[0].Operation)
	require.JSONEq(t, `{"f:data":{".":{},"f:key":{}}}`, string(created.ManagedFields[0].FieldsV1.GetRawBytes()))
}
