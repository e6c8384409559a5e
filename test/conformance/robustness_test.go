package conformance

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var robustnessRules = []rule{
	{"a conversion webhook that hangs keeps nobody waiting but those who need it", func(u *user) {
		hook := startConverter(u.t)
		u.define(twoVersions())
		u.convertBy(hook)
		u.widget("a", `{size: 1}`)
		hook.mode.Store("hangs")
		ctx, cancel := context.WithTimeout(u.t.Context(), 2*time.Second)
		defer cancel()
		gave := make(chan error, 1)
		go func() {
			_, err := u.resource("v2", "widgets").Namespace("default").List(ctx, metav1.ListOptions{})
			gave <- err
		}()
		for i := range 5 {
			_, err := u.widgets().List(u.t.Context(), metav1.ListOptions{})
			require.NoError(u.t, err)
			_, err = u.as("stranger").resource("v1", "widgets").List(u.t.Context(), metav1.ListOptions{})
			require.NoError(u.t, err)
			u.widget("b"+strings.Repeat("b", i), `{size: 1}`)
		}
		require.Error(u.t, <-gave)
	}},
	{"validation that costs too much ends with an error that says so", func(u *user) {
		u.define(widgets(`many: {type: array, maxItems: 300, items: {type: string, maxLength: 100}, x-kubernetes-validations: [{rule: 'self.all(x, self.all(y, x == y || x != y))'}]}`))
		u.widget("few", `{many: [a, b]}`)
		_, err := u.tryWidget("many", `{many: [`+strings.TrimSuffix(strings.Repeat(strings.Repeat("x", 90)+",", 300), ",")+`]}`)
		u.invalid(err, "no further validation rules will be run due to call cost exceeds limit")
	}},
	{"a definition of a mebibyte works, and a larger one is refused with a reason", func(u *user) {
		d := bigCRD(u.t, u.group, 1, 1<<20)
		_, err := u.tryDefine(d)
		require.NoError(u.t, err)
		client := u.resource("v1", "things01").Namespace("default")
		_, err = client.Create(u.t.Context(), u.object("Thing01", "a", `{spec: {section0: {field0: x, nonsense: y}}}`).Unstructured, metav1.CreateOptions{})
		require.NoError(u.t, err)
		list, err := client.List(u.t.Context(), metav1.ListOptions{})
		require.NoError(u.t, err)
		require.Equal(u.t, map[string]any{"field0": "x"}, field(u.t, &list.Items[0], "spec", "section0"))
		response, _ := u.get("/openapi/v3/apis/"+u.group+"/v1", "application/json")
		require.Equal(u.t, 200, response.StatusCode)

		d = u.parse(widgets())
		d.Annotations = map[string]string{"a": strings.Repeat("x", 4<<20)}
		_, err = u.tryDefine(d)
		require.True(u.t, apierrors.IsRequestEntityTooLargeError(err) || apierrors.IsInvalid(err), "%v", err)
	}},
	{"requests for what there is not are not found", func(u *user) {
		u.define(widgets())
		for _, path := range []string{"/v1/gadgets", "/v2/widgets", "/v1/widgets/a", "/v1/namespaces/default/widgets/a/nonsense", "/v1/namespaces/default/widgets/none"} {
			response, _ := u.get("/apis/"+u.group+path, "application/json")
			require.Equal(u.t, 404, response.StatusCode, path)
		}
	}},
}

// TestManyDefinitions has a thousand definitions in one logical cluster, and a
// neighbour who does not notice.
func TestManyDefinitions(t *testing.T) {
	if !long() {
		t.Skip("takes minutes: set CONFORMANCE_LONG=1, or run make conformance")
	}
	const many = 1000
	masters := startShard(t).Shard(0)
	u := newUser(t, masters, "collector", "many.example.com")
	neighbour := newUser(t, masters, "neighbour", "many.example.com")
	neighbour.define(widgets())
	inParallel(t, many, func(i int) error {
		_, err := u.tryDefine(numbered(t, u.group, i))
		return err
	})
	inParallel(t, many, func(i int) error {
		d := numbered(t, u.group, i)
		_, err := u.resource("v1", d.Spec.Names.Plural).Namespace("default").Create(t.Context(),
			u.object(d.Spec.Names.Kind, "a", `{spec: {section0: {field0: x}}}`).Unstructured, metav1.CreateOptions{})
		return err
	})
	list, err := u.crds.ApiextensionsV1().CustomResourceDefinitions().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, list.Items, many)
	for path, accept := range map[string]string{"/apis": asAggregated, "/openapi/v3": "application/json"} {
		response, body := u.get(path, accept)
		require.Equal(t, 200, response.StatusCode, path)
		require.Contains(t, string(body), "many.example.com")
	}
	neighbour.widget("a", `{size: 1}`)
	_, body := neighbour.get("/apis/many.example.com/v1", "application/json")
	require.NotContains(t, string(body), "thing")
}

// numbered is a definition of its own for each number.
func numbered(t testing.TB, group string, i int) *crd {
	t.Helper()
	d := bigCRD(t, group, i, 4<<10)
	d.Spec.Versions[0].Schema.OpenAPIV3Schema.Description += strings.Repeat("!", 1+i%7)
	return d
}
