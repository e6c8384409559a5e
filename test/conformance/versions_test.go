package conformance

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/shardplane/shardplane/test/harness"
)

// twoVersions returns widgets in the versions v1, which is stored, and v2, in which size is called
// length.
func twoVersions() string {
	return widgets() + `
- name: v2
  served: true
  storage: false
  schema:
    openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}, length: {type: integer}}}}}
`
}

var versionRules = []rule{
	{"without conversion, versions differ only in their name and schema", func(u *user) {
		u.define(twoVersions())
		u.widget("a", `{size: 1}`)
		v2, err := u.resource("v2", "widgets").Namespace("default").Get(u.t.Context(), "a", metav1.GetOptions{})
		require.NoError(u.t, err)
		require.Equal(u.t, u.group+"/v2", v2.GetAPIVersion())
		require.Equal(u.t, int64(1), field(u.t, v2, "spec", "size"))
		v2.Object["spec"] = map[string]any{"length": int64(3)}
		_, err = u.resource("v2", "widgets").Namespace("default").Update(u.t.Context(), v2, metav1.UpdateOptions{})
		require.NoError(u.t, err)
		v1 := u.get(u.widgets(), "a")
		require.Empty(u.t, field(u.t, v1, "spec"), "v1 contains the unknown field length")
		list, err := u.resource("v2", "widgets").Namespace("default").List(u.t.Context(), metav1.ListOptions{})
		require.NoError(u.t, err)
		require.Equal(u.t, u.group+"/v2", list.Items[0].GetAPIVersion())
	}},
	{"versions that are not served are not found, and exactly one is stored", func(u *user) {
		u.define(twoVersions())
		u.redefine("widgets", func(d *crd) { d.Spec.Versions[1].Served = false })
		_, err := u.resource("v2", "widgets").List(u.t.Context(), metav1.ListOptions{})
		require.True(u.t, apierrors.IsNotFound(err), "%v", err)
		d := u.parse(twoVersions())
		d.Spec.Versions[1].Storage = true
		u.rejectDefinition(d, "must have exactly one version marked as storage version")
	}},
	{"requests for a deprecated version return a warning", func(u *user) {
		d := u.parse(widgets())
		text := "widgets v1 is old"
		d.Spec.Versions[0].Deprecated, d.Spec.Versions[0].DeprecationWarning = true, &text
		_, err := u.tryDefine(d)
		require.NoError(u.t, err)
		client, taken := u.withWarnings()
		_ = u.list(client, metav1.ListOptions{})
		require.Equal(u.t, text, taken())
	}},
	{"a webhook converts objects of gets, updates, lists, watches and patches", func(u *user) {
		hook := startConverter(u.t)
		u.define(twoVersions())
		u.convertBy(hook)
		u.widget("a", `{size: 1}`)
		v2s := u.resource("v2", "widgets").Namespace("default")
		v2 := u.get(v2s, "a")
		require.Equal(u.t, map[string]any{"length": int64(1)}, field(u.t, v2, "spec"))

		list := u.list(v2s, metav1.ListOptions{})
		require.Equal(u.t, int64(1), field(u.t, &list.Items[0], "spec", "length"))
		w, err := v2s.Watch(u.t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
		require.NoError(u.t, err)
		defer w.Stop()

		v2.Object["spec"] = map[string]any{"length": int64(5)}
		_, err = v2s.Update(u.t.Context(), v2, metav1.UpdateOptions{})
		require.NoError(u.t, err)
		v1 := u.get(u.widgets(), "a")
		require.Equal(u.t, map[string]any{"size": int64(5)}, field(u.t, v1, "spec"))
		event := u.next(w, watch.Modified, "a")
		seen, ok := event.Object.(*unstructured.Unstructured)
		require.True(u.t, ok)
		require.Equal(u.t, map[string]any{"length": int64(5)}, field(u.t, seen, "spec"))

		applied := u.object("Widget", "a", `{spec: {length: 8}}`)
		applied.SetAPIVersion(u.group + "/v2")
		_, err = v2s.Apply(u.t.Context(), "a", applied, metav1.ApplyOptions{FieldManager: "v2", Force: true})
		require.NoError(u.t, err)
		v1 = u.get(u.widgets(), "a")
		require.Equal(u.t, int64(8), field(u.t, v1, "spec", "size"))
	}},
	{"a fixed conversion webhook is called again, and its earlier results are not written back", func(u *user) {
		hook := startConverter(u.t)
		u.define(twoVersions())
		u.convertBy(hook)
		u.widget("a", `{size: 1}`)
		v2s := u.resource("v2", "widgets").Namespace("default")
		// read uses all kinds of reads, to fill all caches.
		read := func() []any {
			sharedShard := u.get(v2s, "a")
			list := u.list(v2s, metav1.ListOptions{})
			response, body := u.request("/apis/"+u.group+"/v2/namespaces/default/widgets", "application/yaml")
			require.Equal(u.t, http.StatusOK, response.StatusCode)
			w, err := v2s.Watch(u.t.Context(), metav1.ListOptions{})
			require.NoError(u.t, err)
			defer w.Stop()
			seen, ok := u.next(w, watch.Added, "a").Object.(*unstructured.Unstructured)
			require.True(u.t, ok)
			return []any{sharedShard.Object["spec"], list.Items[0].Object["spec"], seen.Object["spec"], strings.Contains(string(body), "length: 1")}
		}
		hook.mode.Store("loses")
		require.Equal(u.t, []any{map[string]any{}, map[string]any{}, map[string]any{}, false}, read())
		hook.mode.Store("")
		whole := map[string]any{"length": int64(1)}
		require.Equal(u.t, []any{whole, whole, whole, true}, read())

		hook.mode.Store("loses")
		read()
		hook.mode.Store("")
		_, err := v2s.Patch(u.t.Context(), "a", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
		require.NoError(u.t, err)
		v1 := u.get(u.widgets(), "a")
		require.Equal(u.t, map[string]any{"size": int64(1)}, v1.Object["spec"])
	}},
	{"a conversion webhook that fails or returns invalid data causes a specific error", func(u *user) {
		hook := startConverter(u.t)
		u.define(twoVersions())
		u.convertBy(hook)
		u.widget("a", `{size: 1}`)
		for mode, message := range map[string]string{
			"fails": "on purpose", "nonsense": "conversion webhook", "empty": "returned 0 objects",
			"other": "must have the same name", "error": "conversion webhook",
		} {
			hook.mode.Store(mode)
			_, err := u.resource("v2", "widgets").Namespace("default").Get(u.t.Context(), "a", metav1.GetOptions{})
			require.Error(u.t, err)
			require.ErrorContains(u.t, err, message, mode)
			_, err = u.widgets().Get(u.t.Context(), "a", metav1.GetOptions{})
			require.NoError(u.t, err, "a request without conversion fails")
		}
		hook.mode.Store("")
		_, err := u.resource("v2", "widgets").Namespace("default").Get(u.t.Context(), "a", metav1.GetOptions{})
		require.NoError(u.t, err, "conversion fails after the webhook was fixed")
	}},
}

// convertBy configures a conversion webhook for widgets.
func (u *user) convertBy(hook *converter) {
	u.t.Helper()
	url := hook.server.URL + "/convert"
	u.redefine("widgets", setConversion(&apiextensionsv1.WebhookClientConfig{URL: &url, CABundle: hook.ca}))
}

// setConversion returns a change of a definition that configures a conversion webhook.
func setConversion(config *apiextensionsv1.WebhookClientConfig) func(*crd) {
	return func(d *crd) {
		d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
			Strategy: apiextensionsv1.WebhookConverter,
			Webhook:  &apiextensionsv1.WebhookConversion{ClientConfig: config, ConversionReviewVersions: []string{"v1"}},
		}
	}
}

// converter is a conversion webhook with selectable errors.
type converter struct {
	server *httptest.Server
	ca     []byte
	mode   atomic.Value
	// release closes hang, which ends hanging calls.
	hang    chan struct{}
	release func()
}

func startConverter(t *testing.T) *converter {
	t.Helper()
	c := &converter{hang: make(chan struct{})}
	c.mode.Store("")
	c.server = httptest.NewTLSServer(http.HandlerFunc(c.serve))
	t.Cleanup(c.server.Close)
	c.release = sync.OnceFunc(func() { close(c.hang) })
	t.Cleanup(c.release)
	c.ca = harness.CABundle(c.server)
	return c
}

func (c *converter) serve(w http.ResponseWriter, r *http.Request) {
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, "no review", http.StatusBadRequest)
		return
	}
	review.Response = &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	mode, _ := c.mode.Load().(string)
	switch mode {
	case "hangs":
		<-c.hang
		return
	case "slow":
		<-time.After(300 * time.Millisecond)
	case "endless":
		for r.Context().Err() == nil {
			_, _ = w.Write(make([]byte, 1<<20))
		}
		return
	case "nonsense":
		_, _ = fmt.Fprint(w, "nonsense")
		return
	case "error":
		http.Error(w, "broken", http.StatusInternalServerError)
		return
	case "fails":
		review.Response.Result = metav1.Status{Status: metav1.StatusFailure, Message: "on purpose"}
	}
	c.respond(w, &review, mode)
}

// respond sends the converted objects, with the errors of the mode.
func (c *converter) respond(w http.ResponseWriter, review *apiextensionsv1.ConversionReview, mode string) {
	if mode != "empty" && mode != "fails" {
		for _, raw := range review.Request.Objects {
			converted, err := convert(raw.Raw, review.Request.DesiredAPIVersion)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			switch mode {
			case "other":
				converted.SetName("other")
			case "loses":
				converted.Object["spec"] = map[string]any{}
			}
			review.Response.ConvertedObjects = append(review.Response.ConvertedObjects, runtime.RawExtension{Object: converted})
		}
	}
	review.Request = nil
	_ = json.NewEncoder(w).Encode(review)
}

func convert(raw []byte, version string) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(raw); err != nil {
		return nil, err
	}
	from, to := "size", "length"
	if version[len(version)-2:] == "v1" {
		from, to = to, from
	}
	if spec, ok := o.Object["spec"].(map[string]any); ok {
		if size, ok := spec[from]; ok {
			spec[to] = size
			delete(spec, from)
		}
	}
	o.SetAPIVersion(version)
	return o, nil
}
