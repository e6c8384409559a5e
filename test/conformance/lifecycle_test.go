package conformance

import (
	"fmt"
	"net/http"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var lifecycleRules = []rule{
	{"an API can be used straight after its definition was created", func(u *user) {
		inParallel(u.t, 25, func(i int) error {
			plural := fmt.Sprintf("things%d", i)
			// Each has a schema that the server has never seen.
			d := newCRD(u.group, plural, fmt.Sprintf("Thing%d", i), u.parse(widgets(u.name+plural+": {type: string}")).Spec.Versions...)
			if _, err := u.tryDefine(d); err != nil {
				return fmt.Errorf("definition %d: %w", i, err)
			}
			// Half of them are listed first, by a client that does not try again.
			if i%2 == 0 {
				if response, body := u.get("/apis/"+u.group+"/v1/"+plural, "application/json"); response.StatusCode != http.StatusOK {
					return fmt.Errorf("the first list of definition %d answered %d: %s", i, response.StatusCode, body)
				}
			}
			o := u.object(d.Spec.Names.Kind, "a", `{spec: {size: 1}}`).Unstructured
			if _, err := u.resource("v1", plural).Namespace("default").Create(u.t.Context(), o, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("the first object of definition %d: %w", i, err)
			}
			return nil
		})
	}},
	{"an object that no longer fits its schema can be read, mended and deleted", func(u *user) {
		u.define(widgets("color: {type: string}"))
		u.widget("a", `{size: 1, color: red}`)
		u.widget("b", `{size: 1, color: red}`)
		u.redefine("widgets", func(d *crd) {
			spec := d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
			spec.Properties["color"] = props{Type: "object", Properties: map[string]props{"rgb": {Type: "string"}}}
			spec.Required = []string{"weight"}
			d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = spec
		})
		list, err := u.widgets().List(u.t.Context(), metav1.ListOptions{})
		require.NoError(u.t, err)
		require.Len(u.t, list.Items, 2)
		_, err = u.widgets().Patch(u.t.Context(), "a", types.MergePatchType, []byte(`{"spec":{"color":7}}`), metav1.PatchOptions{})
		u.invalid(err, "spec.color")
		require.NoError(u.t, u.widgets().Delete(u.t.Context(), "a", metav1.DeleteOptions{}))
		require.NoError(u.t, u.widgets().DeleteCollection(u.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	}},
}
