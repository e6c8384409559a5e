package apiexport

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/shardplane/shardplane/pkg/apis"
	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/test/crash"
	"github.com/shardplane/shardplane/test/documented"
)

var key = client.Key{Cluster: "provider", Name: "e"}

// world simulates a logical cluster.
type world struct {
	crash.Process

	export  *apisv1alpha2.APIExport
	slice   *apisv1alpha1.APIExportEndpointSlice
	secrets map[string]*corev1.Secret
	refuse  error
	writes  int
}

func (w *world) exportReconciler() *exportReconciler {
	w.Restart()
	notFound := apierrors.NewNotFound(schema.GroupResource{}, "x")
	return &exportReconciler{
		export: func(client.Key) (*apisv1alpha2.APIExport, error) {
			if w.export == nil {
				return nil, notFound
			}
			return w.export, nil
		},
		slice: func(client.Key) (*apisv1alpha1.APIExportEndpointSlice, error) {
			if w.slice == nil {
				return nil, notFound
			}
			return w.slice, nil
		},
		secret: func(_ context.Context, key client.Key) (*corev1.Secret, error) {
			if secret := w.secrets[key.Namespace+"/"+key.Name]; secret != nil {
				return secret, nil
			}
			return nil, notFound
		},
		createSecret: func(_ context.Context, _ logicalcluster.Name, secret *corev1.Secret) (*corev1.Secret, error) {
			w.writes++
			if w.refuse != nil {
				return nil, w.refuse
			}
			secret.Data = map[string][]byte{"key": []byte(secret.StringData["key"])}
			return secret, w.Write(func() { w.secrets[secret.Namespace+"/"+secret.Name] = secret })
		},
		commit: func(_ context.Context, old, updated *apisv1alpha2.APIExport) (*apisv1alpha2.APIExport, error) {
			if equality.Semantic.DeepEqual(old, updated) {
				return old, nil
			}
			return old, w.Write(func() { w.export = updated })
		},
		createSlice: func(_ context.Context, _ logicalcluster.Name, slice *apisv1alpha1.APIExportEndpointSlice) error {
			w.writes++
			return w.Write(func() { w.slice = slice })
		},
		deleteSlice: func(context.Context, logicalcluster.Name, *apisv1alpha1.APIExportEndpointSlice) error {
			return w.Write(func() { w.slice = nil })
		},
	}
}

func newWorld() *world {
	export := &apisv1alpha2.APIExport{ObjectMeta: metav1.ObjectMeta{
		Name: "e", UID: "export", Annotations: map[string]string{logicalcluster.AnnotationKey: "provider"},
	}}
	return &world{export: export, secrets: map[string]*corev1.Secret{}}
}

func (w *world) reconcile(t *testing.T) {
	t.Helper()
	_, err := w.exportReconciler().reconcile(t.Context(), key)
	require.NoError(t, err)
}

func (w *world) valid(t *testing.T, reason, message string) {
	t.Helper()
	condition := conditions.Get(w.export, apisv1alpha2.APIExportIdentityValid)
	require.NotNil(t, condition)
	require.Equal(t, reason, condition.Reason)
	if reason == "" {
		require.Equal(t, corev1.ConditionTrue, condition.Status)
		return
	}
	require.Equal(t, corev1.ConditionFalse, condition.Status)
	require.Contains(t, condition.Message, message)
}

func TestCreatedIdentity(t *testing.T) {
	w := newWorld()
	w.reconcile(t)
	w.valid(t, "", "")
	secret := w.secrets["kcp-system/e"]
	require.NotNil(t, secret)
	require.Equal(t, &corev1.SecretReference{Namespace: "kcp-system", Name: "e"}, w.export.Spec.Identity.SecretRef)
	require.Equal(t, apis.IdentityHash(secret.Data["key"]), w.export.Status.IdentityHash)
	require.Equal(t, 2, w.writes, "expected a secret and a slice")
	w.reconcile(t)
	require.Equal(t, 2, w.writes, "a complete export must not be written")

	// A lost secret is not recreated; after it was restored, it is valid again.
	hash := w.export.Status.IdentityHash
	delete(w.secrets, "kcp-system/e")
	w.reconcile(t)
	w.valid(t, "IdentityVerificationFailed", "no longer exists")
	require.Equal(t, hash, w.export.Status.IdentityHash)
	require.Empty(t, w.secrets)
	w.secrets["kcp-system/e"] = secret
	w.reconcile(t)
	w.valid(t, "", "")

	// A new export with the same name gets the same identity.
	again := newWorld()
	again.secrets = w.secrets
	again.reconcile(t)
	require.Equal(t, hash, again.export.Status.IdentityHash)
}

func TestReferencedIdentity(t *testing.T) {
	w := newWorld()
	w.export.Spec.Identity = &apisv1alpha2.Identity{SecretRef: &corev1.SecretReference{Namespace: "there", Name: "own"}}
	w.reconcile(t)
	w.valid(t, "IdentityVerificationFailed", "there/own does not exist: create it")
	require.Empty(t, w.secrets, "a referenced secret must not be created")
	require.Empty(t, w.export.Status.IdentityHash)

	w.secrets["there/own"] = &corev1.Secret{Data: map[string][]byte{"other": []byte("x")}}
	w.reconcile(t)
	w.valid(t, "IdentityVerificationFailed", `no value under "key"`)

	w.secrets["there/own"] = &corev1.Secret{Data: map[string][]byte{"key": []byte("abc")}}
	w.reconcile(t)
	w.valid(t, "", "")
	hash := apis.IdentityHash([]byte("abc"))
	require.Equal(t, hash, w.export.Status.IdentityHash)

	w.secrets["there/own"] = &corev1.Secret{Data: map[string][]byte{"key": []byte("changed")}}
	w.reconcile(t)
	w.valid(t, "IdentityVerificationFailed", "never changes")
	require.Equal(t, hash, w.export.Status.IdentityHash)

	w.secrets["there/other"] = &corev1.Secret{Data: map[string][]byte{"key": []byte("abc")}}
	w.export.Spec.Identity.SecretRef.Name = "other"
	w.reconcile(t)
	w.valid(t, "", "")

	// Without a reference, the default secret is used, and not created.
	w.export.Spec.Identity = nil
	w.reconcile(t)
	w.valid(t, "IdentityVerificationFailed", "kcp-system/e no longer exists")
	require.Equal(t, hash, w.export.Status.IdentityHash)
}

func TestGenerationFails(t *testing.T) {
	w := newWorld()
	w.refuse = apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "e", errors.New("exceeded quota"))
	_, err := w.exportReconciler().reconcile(t.Context(), key)
	require.ErrorContains(t, err, "exceeded quota", "the reconcile must be retried")
	w.valid(t, "IdentityGenerationFailed", "exceeded quota")
	w.refuse = nil
	w.reconcile(t)
	w.valid(t, "", "")
}

func TestSlices(t *testing.T) {
	w := newWorld()
	w.reconcile(t)
	require.Equal(t, apisv1alpha1.ExportBindingReference{Path: "provider", Name: "e"}, w.slice.Spec.APIExport)
	require.Equal(t, types.UID("export"), w.slice.OwnerReferences[0].UID)
	w.slice = nil
	w.reconcile(t)
	require.NotNil(t, w.slice, "a deleted slice must be recreated")

	// The export was replaced, and then deleted.
	w.export.UID = "another"
	w.reconcile(t)
	require.Nil(t, w.slice)
	w.reconcile(t)
	require.Equal(t, types.UID("another"), w.slice.OwnerReferences[0].UID)
	w.export = nil
	w.reconcile(t)
	require.Nil(t, w.slice)

	// A slice of a user is retained, and the default slice can be disabled.
	own := &apisv1alpha1.APIExportEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "e"}}
	w.slice = own
	w.reconcile(t)
	require.Equal(t, own, w.slice)
	// A kind of a tenant may have the same name.
	own.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.org/v1", Kind: "APIExport", Name: "e", UID: "tenants"}}
	w.reconcile(t)
	require.Equal(t, own, w.slice)
	w = newWorld()
	w.export.Annotations["apiexports.apis.kcp.io/skip-endpointslice"] = ""
	w.reconcile(t)
	require.Nil(t, w.slice)
	w = newWorld()
	w.export.DeletionTimestamp = new(metav1.Now())
	w.reconcile(t)
	require.Zero(t, w.writes, "an export that is being deleted must not be changed")
}

// TestEveryCrash: despite crashes and in any order of events, an export has the identity of its secret and one slice, and
// leaves none behind.
func TestEveryCrash(t *testing.T) {
	const crashes = 40
	converge := func(t *testing.T, w *world) {
		t.Helper()
		for range 10 {
			before := w.Calls
			if _, err := w.exportReconciler().reconcile(t.Context(), key); err == nil && w.Calls == before {
				return
			}
		}
		require.Fail(t, "the state does not converge")
	}
	for seed := range uint64(5 * crashes) {
		w := newWorld()
		w.Process = crash.Point(2 + int(seed)%crashes)
		random := rand.New(rand.NewPCG(seed, 1))
		own := func(name, value string) {
			w.secrets["there/"+name] = &corev1.Secret{Data: map[string][]byte{"key": []byte(value)}}
		}
		w.export.Spec.Identity = &apisv1alpha2.Identity{SecretRef: &corev1.SecretReference{Namespace: "there", Name: "own"}}
		events := []func(){
			func() { own("own", "abc") },
			func() { w.slice = nil },
			func() { own("unrelated", "x") },
			func() { w.export.UID = "again" },
		}
		for _, i := range random.Perm(len(events)) {
			events[i]()
			for range random.IntN(3) {
				_, _ = w.exportReconciler().reconcile(t.Context(), key)
			}
		}
		converge(t, w)
		w.valid(t, "", "")
		require.Equal(t, apis.IdentityHash([]byte("abc")), w.export.Status.IdentityHash, "seed %d", seed)
		require.Equal(t, types.UID("again"), w.slice.OwnerReferences[0].UID, "seed %d", seed)

		// Secret and export are deleted in any order.
		ends := []func(){func() { delete(w.secrets, "there/own") }, func() { w.export = nil }}
		for _, i := range random.Perm(len(ends)) {
			ends[i]()
			_, _ = w.exportReconciler().reconcile(t.Context(), key)
		}
		converge(t, w)
		require.Nil(t, w.slice, "seed %d", seed)
		require.NotContains(t, w.secrets, "kcp-system/e", "a lost identity must not be replaced")
		require.Less(t, w.Calls, crashes/2, "the crash points do not cover all side effects")
	}
}

func TestDocumented(t *testing.T) {
	export := newWorld().export
	reported := documented.Reported(identify(export, apis.DefaultSecret("e"), nil), generationFailed(export, crash.Err))
	require.ElementsMatch(t, documented.Conditions(t, "APIExport"), reported)
}
