package conformance

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
)

var robustnessRules = []rule{
	{"a slow conversion webhook works, and one without TLS or with an endless response causes a specific error", func(u *user) {
		hook := startConverter(u.t)
		u.define(twoVersions())
		u.convertBy(hook)
		u.widget("a", `{size: 1}`)
		v2s := u.resource("v2", "widgets").Namespace("default")
		fails := func(message string) {
			_, err := v2s.Get(u.t.Context(), "a", metav1.GetOptions{})
			require.ErrorContains(u.t, err, "conversion webhook")
			require.ErrorContains(u.t, err, message)
		}
		hook.mode.Store("endless")
		fails("bytes")
		hook.mode.Store("slow")
		w := u.get(v2s, "a")
		require.Equal(u.t, int64(1), field(u.t, w, "spec", "length"))

		u.widget("b", `{size: 1}`)
		theirs, _, err := cert.GenerateSelfSignedCertKey("other.example.com", nil, nil)
		require.NoError(u.t, err)
		u.convertBy(&converter{server: hook.server, ca: theirs})
		_, err = v2s.Get(u.t.Context(), "b", metav1.GetOptions{})
		require.ErrorContains(u.t, err, "certificate signed by unknown authority")
		plain := &converter{server: httptest.NewUnstartedServer(http.NotFoundHandler()), ca: hook.ca}
		plain.server.Start()
		u.t.Cleanup(plain.server.Close)
		plain.server.URL = strings.Replace(plain.server.URL, "http:", "https:", 1)
		u.convertBy(plain)
		_, err = v2s.Get(u.t.Context(), "b", metav1.GetOptions{})
		require.ErrorContains(u.t, err, "the webhook does not use TLS")
	}},
	{"a conversion webhook at this server or at a missing service causes a specific error", func(u *user) {
		u.define(twoVersions())
		u.widget("a", `{size: 1}`)
		for _, namespace := range []string{"default", "other"} {
			service := &apiextensionsv1.ServiceReference{Namespace: namespace, Name: "kubernetes"}
			u.redefine("widgets", setConversion(&apiextensionsv1.WebhookClientConfig{Service: service}))
			_, err := u.resource("v2", "widgets").Namespace("default").Get(u.t.Context(), "a", metav1.GetOptions{})
			require.True(u.t, apierrors.IsInternalError(err), "%v", err)
			require.ErrorContains(u.t, err, fmt.Sprintf("the webhook's host %q cannot be resolved, or has only loopback", "kubernetes."+namespace+".svc"))
			_, err = u.widgets().Get(u.t.Context(), "a", metav1.GetOptions{})
			require.NoError(u.t, err, "a request without conversion fails")
		}
	}},
	{"validation with excessive cost causes a specific error", func(u *user) {
		u.define(widgets(`many: {type: array, maxItems: 300, items: {type: string, maxLength: 100}, x-kubernetes-validations: [{rule: 'self.all(x, self.all(y, x == y || x != y))'}]}`))
		u.widget("few", `{many: [a, b]}`)
		_, err := u.tryWidget("many", `{many: [`+strings.TrimSuffix(strings.Repeat(strings.Repeat("x", 90)+",", 300), ",")+`]}`)
		u.requireInvalid(err, "no further validation rules will be run due to call cost exceeds limit")
	}},
	{"a definition of one mebibyte works, and a larger one is rejected with a reason", func(u *user) {
		d := bigCRD(u.t, u.group, 1, 1<<20)
		_, err := u.tryDefine(d)
		require.NoError(u.t, err)
		client := u.resource("v1", "things01").Namespace("default")
		_, err = client.Create(u.t.Context(), u.object("Thing01", "a", `{spec: {section0: {field0: x, nonsense: y}}}`), metav1.CreateOptions{})
		require.NoError(u.t, err)
		list := u.list(client, metav1.ListOptions{})
		require.Equal(u.t, map[string]any{"field0": "x"}, field(u.t, &list.Items[0], "spec", "section0"))
		response, _ := u.request("/openapi/v3/apis/"+u.group+"/v1", "application/json")
		require.Equal(u.t, 200, response.StatusCode)

		d = u.parse(widgets())
		d.Annotations = map[string]string{"a": strings.Repeat("x", 4<<20)}
		_, err = u.tryDefine(d)
		require.True(u.t, apierrors.IsRequestEntityTooLargeError(err) || apierrors.IsInvalid(err), "%v", err)
	}},
}
