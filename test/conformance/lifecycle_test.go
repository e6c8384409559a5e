package conformance

import (
	"fmt"
	"net/http"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var lifecycleRules = []rule{
	{"an API can be used immediately after its definition was created", func(u *user) {
		inParallel(u.t, 25, func(i int) error {
			plural := fmt.Sprintf("things%d", i)
			// Each has a new schema.
			d := newCRD(u.group, plural, fmt.Sprintf("Thing%d", i), u.parse(widgets(u.name+plural+": {type: string}")).Spec.Versions...)
			if _, err := u.tryDefine(d); err != nil {
				return fmt.Errorf("definition %d: %w", i, err)
			}
			// Half of them are listed first by a client without retries.
			if i%2 == 0 {
				if response, body := u.request("/apis/"+u.group+"/v1/"+plural, "application/json"); response.StatusCode != http.StatusOK {
					return fmt.Errorf("first list of definition %d: status %d: %s", i, response.StatusCode, body)
				}
			}
			o := u.object(d.Spec.Names.Kind, "a", `{spec: {size: 1}}`)
			if _, err := u.resource("v1", plural).Namespace("default").Create(u.t.Context(), o, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("first object of definition %d: %w", i, err)
			}
			return nil
		})
	}},
	{"an object that does not match its schema any more can be read, fixed and deleted", func(u *user) {
		u.define(widgets("color: {type: string}"))
		u.widget("a", `{size: 1, color: red}`)
		u.widget("b", `{size: 1, color: red}`)
		u.redefine("widgets", func(d *crd) {
			spec := d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
			spec.Properties["color"] = props{Type: "object", Properties: map[string]props{"rgb": {Type: "string"}}}
			spec.Required = []string{"weight"}
			d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = spec
		})
		list := u.list(u.widgets(), metav1.ListOptions{})
		require.Len(u.t, list.Items, 2)
		_, err := u.patch("a", `{"spec":{"color":7}}`)
		u.requireInvalid(err, "spec.color")
		require.NoError(u.t, u.widgets().Delete(u.t.Context(), "a", metav1.DeleteOptions{}))
		require.NoError(u.t, u.widgets().DeleteCollection(u.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	}},
}
