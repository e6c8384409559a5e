package apis_test

import (
	"strings"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/apis"
)

// The values are those of the SDK's own tests.
func TestLabels(t *testing.T) {
	selector := apisv1alpha2.PermissionClaimSelector{MatchAll: true}
	for name, tc := range map[string]struct {
		provider   logicalcluster.Name
		export     string
		claim      apisv1alpha2.PermissionClaim
		key, value string
	}{
		"built in": {
			provider: "root", export: "tenancy.kcp.io",
			claim: apisv1alpha2.PermissionClaim{GroupResource: apisv1alpha2.GroupResource{Resource: "configmaps"}, Verbs: []string{"get", "list"}},
			key:   "bmCdly9xXiUpEHe3ypvDwvXMTfoVZUE92mqAQf", value: "3QVjs6pfBjMpLEVYYhysJnroYGsQGlWm05E4qe",
		},
		"of an identity": {
			provider: "abcd1234", export: "my-export",
			claim: apisv1alpha2.PermissionClaim{
				GroupResource: apisv1alpha2.GroupResource{Group: "apps", Resource: "deployments"}, IdentityHash: "deadbeef",
				Verbs: []string{"get"}, DefaultSelector: &selector,
			},
			key: "phGj1BkmdNY3LKTrtFc1KGLYTBs8Nt50p8PIU", value: "4CpOMiJ5JL9ZC4cG8ne7nGNQbSOEUiwZ89KHal",
		},
	} {
		t.Run(name, func(t *testing.T) {
			key, value, err := apis.ClaimLabel(tc.provider, tc.export, tc.claim)
			require.NoError(t, err)
			require.Equal(t, "claimed.internal.apis.kcp.io/"+tc.key, key)
			require.Equal(t, tc.value, value)
			require.Equal(t, tc.key, apis.ExportLabelValue(tc.provider, tc.export))
		})
	}
}

func TestIdentity(t *testing.T) {
	first, second := apis.NewIdentity(), apis.NewIdentity()
	require.NotEqual(t, first, second)
	require.Regexp(t, "^[0-9a-f]{64}$", first)
	// printf abc | sha256sum
	require.Equal(t, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", apis.IdentityHash([]byte("abc")))
}

func TestSecretOf(t *testing.T) {
	export := &apisv1alpha2.APIExport{ObjectMeta: metav1.ObjectMeta{Name: "e"}}
	for _, tc := range []struct {
		identity *apisv1alpha2.Identity
		want     corev1.SecretReference
	}{
		{want: corev1.SecretReference{Namespace: "kcp-system", Name: "e"}},
		{identity: &apisv1alpha2.Identity{}, want: corev1.SecretReference{Namespace: "kcp-system", Name: "e"}},
		{identity: &apisv1alpha2.Identity{SecretRef: &corev1.SecretReference{Name: "own"}}, want: corev1.SecretReference{Namespace: "kcp-system", Name: "own"}},
		{identity: &apisv1alpha2.Identity{SecretRef: &corev1.SecretReference{Name: "own", Namespace: "there"}}, want: corev1.SecretReference{Namespace: "there", Name: "own"}},
	} {
		export.Spec.Identity = tc.identity
		require.Equal(t, tc.want, apis.SecretOf(export))
	}
}

func TestSchemaNames(t *testing.T) {
	for name, want := range map[string]schema.GroupResource{
		"v1.widgets.example.org":  {Group: "example.org", Resource: "widgets"},
		"v1-2.widgets.core":       {Resource: "widgets"},
		"today.deployments.apps":  {Group: "apps", Resource: "deployments"},
		"a.widgets.core.kcp.io":   {Group: "core.kcp.io", Resource: "widgets"},
		"v250101-abc.w.example.x": {Group: "example.x", Resource: "w"},
	} {
		parsed, err := apis.ParseSchemaName(name)
		require.NoError(t, err)
		require.Equal(t, want, parsed.Resource)
		require.Equal(t, name, parsed.String())
	}
	for _, name := range []string{"", "v1", "v1.widgets", "v1.widgets.", ".widgets.core", "1.widgets.core", "v1..core", "V1.widgets.core", "v1-.widgets.core"} {
		_, err := apis.ParseSchemaName(name)
		require.ErrorContains(t, err, "must be <prefix>.<plural>.<group>", "%q", name)
	}
}

// The first part is the name of the export, and the second one a hash of all inputs.
func TestDefaultBindingName(t *testing.T) {
	require.Equal(t, "some-export-7dkgs", apis.DefaultBindingName("some-cluster", "some:export:path", "some-export"))
	require.Equal(t, "tenancy.kcp.io-bki6h", apis.DefaultBindingName("2vbq8nrx5l7dmzqg", "root", "tenancy.kcp.io"))
	long := strings.Repeat("a", 253)
	require.Regexp(t, "^a{247}-[0-9a-z]{5}$", apis.DefaultBindingName("c", "root", long))
	require.NotEqual(t, apis.DefaultBindingName("c", "root", long), apis.DefaultBindingName("c", "root", long[1:]))
}
