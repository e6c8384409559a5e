package registry_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
)

const badKey = `Invalid value: "a b": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')`

func TestConfigMapInvalid(t *testing.T) {
	half := strings.Repeat("x", 512*1024)
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, namespace string) {
		for name, test := range map[string]struct {
			cm   corev1.ConfigMap
			want string
		}{
			"key":        {corev1.ConfigMap{Data: map[string]string{"a b": ""}}, "data[a b]: " + badKey},
			"binary key": {corev1.ConfigMap{BinaryData: map[string][]byte{"a b": nil}}, "binaryData[a b]: " + badKey},
			"key twice": {corev1.ConfigMap{Data: map[string]string{"a": ""}, BinaryData: map[string][]byte{"a": {}}},
				`data[a]: Invalid value: "a": duplicate of key present in binaryData`},
			"size": {
				corev1.ConfigMap{Data: map[string]string{"a": half}, BinaryData: map[string][]byte{"b": []byte(half + "y")}},
				"[]: Too long: may not be more than 1048576 bytes",
			},
		} {
			t.Run(name, func(t *testing.T) {
				test.cm.Name = "x"
				_, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), &test.cm, metav1.CreateOptions{})
				requireInvalid(t, err, `ConfigMap "x" is invalid: `, test.want)
			})
		}
		// The limit itself is allowed.
		_, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: named("full"), Data: map[string]string{"a": half, "b": half},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	})
}

func TestConfigMapImmutable(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, namespace string) {
		cm := configMap("frozen")
		cm.Immutable = new(true)
		cm = mustCreate(t, client.CoreV1().ConfigMaps(namespace), cm)
		for name, test := range map[string]struct {
			change func(*corev1.ConfigMap)
			want   string
		}{
			"data":       {func(cm *corev1.ConfigMap) { cm.Data["key"] = "new" }, "data: Forbidden: field is immutable when `immutable` is set"},
			"binaryData": {func(cm *corev1.ConfigMap) { cm.BinaryData = map[string][]byte{"b": {1}} }, "binaryData: Forbidden: field is immutable when `immutable` is set"},
			"thaw":       {func(cm *corev1.ConfigMap) { cm.Immutable = new(false) }, "immutable: Forbidden: field is immutable when `immutable` is set"},
			"unset":      {func(cm *corev1.ConfigMap) { cm.Immutable = nil }, "immutable: Forbidden: field is immutable when `immutable` is set"},
		} {
			t.Run(name, func(t *testing.T) {
				changed := cm.DeepCopy()
				test.change(changed)
				_, err := client.CoreV1().ConfigMaps(namespace).Update(t.Context(), changed, metav1.UpdateOptions{})
				requireRefusal(t, err, metav1.StatusReasonInvalid, `ConfigMap "frozen" is invalid: `+test.want)
			})
		}
		labelled := cm.DeepCopy()
		labelled.Labels = map[string]string{"a": "b"}
		mustUpdate(t, client.CoreV1().ConfigMaps(namespace), labelled)
	})
}

func TestSecretTypes(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, namespace string) {
		for name, test := range map[string]struct {
			secret corev1.Secret
			want   string // empty: valid
		}{
			"key":               {corev1.Secret{Data: map[string][]byte{"a b": nil}}, "data[a b]: " + badKey},
			"size":              {corev1.Secret{Data: map[string][]byte{"a": make([]byte, 1<<20+1)}}, "data: Too long: may not be more than 1048576 bytes"},
			"token":             {corev1.Secret{Type: corev1.SecretTypeServiceAccountToken}, "metadata.annotations[kubernetes.io/service-account.name]: Required value"},
			"dockercfg":         {corev1.Secret{Type: corev1.SecretTypeDockercfg}, "data[.dockercfg]: Required value"},
			"dockerconfigjson":  {corev1.Secret{Type: corev1.SecretTypeDockerConfigJson}, "data[.dockerconfigjson]: Required value"},
			"docker not JSON":   {corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{".dockerconfigjson": []byte("{a")}}, `data[.dockerconfigjson]: Invalid value: "<secret contents redacted>": invalid character 'a' looking for beginning of object key string`},
			"basic-auth":        {corev1.Secret{Type: corev1.SecretTypeBasicAuth}, "[data[username]: Required value, data[password]: Required value]"},
			"ssh-auth":          {corev1.Secret{Type: corev1.SecretTypeSSHAuth, Data: map[string][]byte{"ssh-privatekey": {}}}, "data[ssh-privatekey]: Required value"},
			"tls":               {corev1.Secret{Type: corev1.SecretTypeTLS}, "[data[tls.crt]: Required value, data[tls.key]: Required value]"},
			"ok token":          {corev1.Secret{Type: corev1.SecretTypeServiceAccountToken, ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"kubernetes.io/service-account.name": "sa"}}}, ""},
			"ok docker":         {corev1.Secret{Type: corev1.SecretTypeDockerConfigJson, StringData: map[string]string{".dockerconfigjson": "{}"}}, ""},
			"ok basic password": {corev1.Secret{Type: corev1.SecretTypeBasicAuth, Data: map[string][]byte{"password": {}}}, ""},
			"ok own type":       {corev1.Secret{Type: "example.com/mine"}, ""},
			"ok tls":            {corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": {}, "tls.key": {}}}, ""},
		} {
			t.Run(name, func(t *testing.T) {
				test.secret.Name = "x"
				_, err := client.CoreV1().Secrets(namespace).Create(t.Context(), &test.secret, dryRun)
				requireInvalid(t, err, `Secret "x" is invalid: `, test.want)
			})
		}
	})
}

func TestSecretStringData(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, namespace string) {
		secrets := client.CoreV1().Secrets(namespace)
		ctx := t.Context()
		created, err := secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: named("s"),
			Data:       map[string][]byte{"a": []byte("old"), "b": []byte("kept")},
			StringData: map[string]string{"a": "new"},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Equal(t, corev1.SecretTypeOpaque, created.Type)
		require.Empty(t, created.StringData)
		require.Equal(t, map[string][]byte{"a": []byte("new"), "b": []byte("kept")}, created.Data)
		for _, entry := range created.ManagedFields {
			require.NotContains(t, string(entry.FieldsV1.GetRawBytes()), "stringData")
		}
		for _, patch := range []types.PatchType{types.MergePatchType, types.StrategicMergePatchType} {
			patched, err := secrets.Patch(ctx, "s", patch, []byte(`{"stringData":{"c":"`+string(patch)+`"}}`), metav1.PatchOptions{})
			require.NoError(t, err)
			require.Empty(t, patched.StringData)
			require.Equal(t, string(patch), string(patched.Data["c"]))
		}
	})
}

func TestSecretUpdate(t *testing.T) {
	forEachEncoding(t, newServer(t), func(t *testing.T, client kubernetes.Interface, namespace string) {
		secrets := client.CoreV1().Secrets(namespace)
		created := mustCreate(t, secrets, &corev1.Secret{ObjectMeta: named("s"), Data: map[string][]byte{"a": nil}})

		changed := created.DeepCopy()
		changed.Type = "example.com/mine"
		_, err := secrets.Update(t.Context(), changed, metav1.UpdateOptions{})
		requireRefusal(t, err, metav1.StatusReasonInvalid, `Secret "s" is invalid: type: Invalid value: "example.com/mine": field is immutable`)

		changed = created.DeepCopy()
		changed.Immutable = new(true)
		frozen := mustUpdate(t, secrets, changed)
		frozen.Data = map[string][]byte{"a": []byte("b")}
		frozen.Immutable = nil
		_, err = secrets.Update(t.Context(), frozen, metav1.UpdateOptions{})
		requireCauses(t, err, "data: FieldValueForbidden", "immutable: FieldValueForbidden")
	})
}

func TestSecretFieldSelector(t *testing.T) {
	client := newClient(t, newServer(t), "application/json")
	for name, kind := range map[string]corev1.SecretType{"a": "", "b": "example.com/mine"} {
		mustCreate(t, client.CoreV1().Secrets("ns"), &corev1.Secret{ObjectMeta: named(name), Type: kind})
	}
	for selector, want := range map[string]int{
		"type=Opaque": 1, "type!=Opaque": 1, "type=Opaque,metadata.name=b": 0,
		"metadata.namespace=ns": 2, "metadata.namespace=other": 0, "": 2,
	} {
		list, err := client.CoreV1().Secrets("ns").List(t.Context(), metav1.ListOptions{FieldSelector: selector})
		require.NoError(t, err, selector)
		require.Len(t, list.Items, want, selector)
	}
	_, err := client.CoreV1().Secrets("ns").List(t.Context(), metav1.ListOptions{FieldSelector: "data=x"})
	requireRefusal(t, err, metav1.StatusReasonBadRequest, "field label not supported: data")
}

func TestSecretTLSWarning(t *testing.T) {
	seen := &warnings{}
	config := rest.CopyConfig(newServer(t))
	config.WarningHandlerWithContext = seen
	client := newClient(t, config, "application/json")
	create := func(name string, cert, key []byte) {
		_, err := client.CoreV1().Secrets("ns").Create(t.Context(), &corev1.Secret{
			ObjectMeta: named(name), Type: corev1.SecretTypeTLS, Data: map[string][]byte{"tls.crt": cert, "tls.key": key},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	cert, key, err := certutil.GenerateSelfSignedCertKey("example.com", nil, nil)
	require.NoError(t, err)
	create("good", cert, key)
	require.Empty(t, seen.texts)
	create("bad", []byte("x"), []byte("y"))
	require.Equal(t, []string{"tls: failed to find any PEM data in certificate input"}, seen.texts)
	large, err := os.ReadFile("../request/rsakeys/testdata/large.pem")
	require.NoError(t, err)
	create("large", large, large)
	require.Equal(t, "a key has 8676 bits, at most 8192 allowed", seen.texts[len(seen.texts)-1])
}
