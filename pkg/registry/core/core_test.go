package core

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

func FuzzDockerConfig(f *testing.F) {
	for _, seed := range []string{"", "{}", "[]", "null", `{"auths":{}}`, "{", `{"a":1}{`, "\x00", `{"a":`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns"},
			Type:       corev1.SecretTypeDockerConfigJson,
			Data:       map[string][]byte{corev1.DockerConfigJsonKey: value},
		}
		errs := validateSecret(secret)
		var object map[string]any
		require.Equal(t, json.Unmarshal(value, &object) == nil, len(errs) == 0)
		for _, err := range errs {
			// Errors must not contain the content of a secret, except the byte at which the JSON parser failed.
			require.Equal(t, "<secret contents redacted>", err.BadValue)
		}
	})
}

func FuzzDataKey(f *testing.F) {
	for _, seed := range []string{"", "a", ".", "..", "..a", "a/b", "ä", strings.Repeat("x", 254), "A_b-c.d"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, key string) {
		meta := metav1.ObjectMeta{Name: "c", Namespace: "ns"}
		good := len(validation.IsConfigMapKey(key)) == 0
		require.Equal(t, good, len(validateConfigMap(&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{key: ""}})) == 0)
		require.Equal(t, good, len(validateConfigMap(&corev1.ConfigMap{ObjectMeta: meta, BinaryData: map[string][]byte{key: nil}})) == 0)
		require.Equal(t, good, len(validateSecret(&corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{key: nil}})) == 0)
	})
}

func FuzzTLSWarning(f *testing.F) {
	f.Add([]byte("x"), []byte("y"))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"), []byte("-----BEGIN EC PRIVATE KEY-----\nAA==\n-----END EC PRIVATE KEY-----\n"))
	f.Fuzz(func(t *testing.T, cert, key []byte) {
		secret := &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": cert, "tls.key": key}}
		require.LessOrEqual(t, len(secretWarnings(t.Context(), secret)), 1)
	})
}

func FuzzNamespaceFinalizers(f *testing.F) {
	for _, seed := range []string{"", "kubernetes", "orphan", "foregroundDeletion", "a", "a/b", "a/b/c", "/", "example.com/", strings.Repeat("x", 300) + "/a"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, finalizer string) {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
		prepareNamespace(t.Context(), namespace)
		namespace.Spec.Finalizers = append(namespace.Spec.Finalizers, corev1.FinalizerName(finalizer))
		prepareNamespace(t.Context(), namespace)
		require.LessOrEqual(t, len(namespace.Spec.Finalizers), 2, "the finalizer must be added once")
		if len(validateNamespace(t.Context(), namespace)) == 0 {
			require.True(t, strings.Contains(finalizer, "/") || finalizer == "kubernetes" || finalizer == "orphan" || finalizer == "foregroundDeletion")
		}
	})
}

// Decoding must not write into memory that the object shares.
func TestDefaultSecretDoesNotTouchSharedData(t *testing.T) {
	shared := map[string][]byte{"a": []byte("old")}
	secret := &corev1.Secret{Data: shared, StringData: map[string]string{"a": "new"}}
	defaultSecret(secret)
	require.Equal(t, "old", string(shared["a"]))
	require.Equal(t, "new", string(secret.Data["a"]))
	require.Nil(t, secret.StringData)
	defaultSecret(secret)
	require.Equal(t, "new", string(secret.Data["a"]), "defaulting must be idempotent")
}

func TestDependentsFinalizers(t *testing.T) {
	orphan, foreground, background := metav1.DeletePropagationOrphan, metav1.DeletePropagationForeground, metav1.DeletePropagationBackground
	yes, no := true, false
	for name, test := range map[string]struct {
		current []string
		options metav1.DeleteOptions
		want    []string
	}{
		"nothing":            {nil, metav1.DeleteOptions{}, nil},
		"kept":               {[]string{"a/b", "orphan"}, metav1.DeleteOptions{}, []string{"a/b", "orphan"}},
		"orphan":             {nil, metav1.DeleteOptions{PropagationPolicy: &orphan}, []string{"orphan"}},
		"foreground":         {[]string{"a/b"}, metav1.DeleteOptions{PropagationPolicy: &foreground}, []string{"a/b", "foregroundDeletion"}},
		"background removes": {[]string{"orphan", "a/b"}, metav1.DeleteOptions{PropagationPolicy: &background}, []string{"a/b"}},
		//nolint:staticcheck // old clients still send the deprecated field
		"deprecated orphan": {nil, metav1.DeleteOptions{OrphanDependents: &yes}, []string{"orphan"}},
		//nolint:staticcheck // old clients still send the deprecated field
		"deprecated delete": {[]string{"orphan"}, metav1.DeleteOptions{OrphanDependents: &no}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, dependentsFinalizers(test.current, &test.options))
		})
	}
}
