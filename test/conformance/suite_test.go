package conformance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/test/harness"
)

// rule is a behavior that users of Kubernetes rely on.
type rule struct {
	name  string
	check func(u *user)
}

// TestRules checks all rules in two logical clusters at once, while a third one has objects and
// definitions of the same names with another scope and another schema. Rules about objects are also
// checked for bound APIs.
func TestRules(t *testing.T) {
	admin := sharedShard.Get(t).Shard(0)
	t.Run("rules", func(t *testing.T) {
		n := 0
		for _, topic := range []struct {
			name  string
			rules []rule
			// bound is true if the rules also apply to bound APIs.
			bound bool
		}{
			{"schemas", schemaRules, false},
			{"validation", validationRules, true},
			{"versions", versionRules, true},
			{"subresources", subresourceRules, true},
			{"presentation", presentationRules, true},
			{"selectable fields", selectableRules, true},
			{"names", namingRules, false},
			{"lifecycle", lifecycleRules, false},
			{"writes", writeRules, true},
			{"writes without a change", unchangedRules, true},
			{"robustness", robustnessRules, false},
		} {
			for _, r := range topic.rules {
				n++
				group := fmt.Sprintf("r%d.example.com", n)
				t.Run(topic.name+": "+r.name, func(t *testing.T) {
					t.Parallel()
					other := newUser(t, admin, "conflicting", group)
					other.define(otherDefinition)
					_, err := other.resource("v1", "widgets").Create(t.Context(), other.object("Widget", "same", `{"theirs": {"size": "huge"}}`), metav1.CreateOptions{})
					require.NoError(t, err)
					for _, name := range []string{"tenant-a", "tenant-b"} {
						t.Run("in "+name, func(t *testing.T) {
							t.Parallel()
							r.check(newUser(t, admin, name, group))
						})
					}
					if !topic.bound {
						return
					}
					t.Run("bound", func(t *testing.T) {
						t.Parallel()
						r.check(newUser(t, admin, "tenant-c", group).withBinding())
					})
				})
			}
		}
	})
}

// otherDefinition has the name that the rules use, and differs in everything else.
const otherDefinition = `
scope: Cluster
names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
versions:
- name: v1
  served: true
  storage: true
  schema: {openAPIV3Schema: {type: object, required: [theirs], properties: {theirs: {type: object, properties: {size: {type: string}}}}}}
`

// user uses a logical cluster with its own API group.
type user struct {
	*tenant
	t     *testing.T
	admin *rest.Config
	group string
	// bound is nil for users that define their resources.
	bound *binding
}

func newUser(t *testing.T, admin *rest.Config, cluster, group string) *user {
	t.Helper()
	u := &user{tenant: newTenant(t, cluster, harness.In(admin, cluster)), t: t, admin: admin, group: group}
	for _, ns := range []string{"default", "other"} {
		_, err := u.kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			require.NoError(t, err)
		}
	}
	return u
}

// inCluster returns the user in another logical cluster.
func (u *user) inCluster(cluster string) *user {
	u.t.Helper()
	other := newUser(u.t, u.admin, cluster, u.group)
	if u.bound != nil {
		return other.withBinding()
	}
	return other
}

// widgets returns the definition of most rules as YAML, with additional properties of its spec.
func widgets(properties ...string) string { return versioned("", properties...) }

// versioned is like widgets, with additional fields of its version.
func versioned(more string, properties ...string) string {
	var b strings.Builder
	b.WriteString(`
scope: Namespaced
names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
versions:
- name: v1
  served: true
  storage: true
`)
	for line := range strings.Lines(more) {
		b.WriteString("  " + line)
	}
	b.WriteString(`
  schema:
    openAPIV3Schema:
      type: object
      properties:
        status: {type: object, properties: {phase: {type: string}, replicas: {type: integer}, selector: {type: string}}}
        spec:
          type: object
          properties:
            size: {type: integer}
`)
	for _, p := range properties {
		b.WriteString("            " + p + "\n")
	}
	return b.String()
}

// parse decodes the spec of a definition in the user's group.
func (u *user) parse(spec string) *crd {
	u.t.Helper()
	var d crd
	require.NoError(u.t, yaml.UnmarshalStrict([]byte(spec), &d.Spec), spec)
	d.Spec.Group = u.group
	d.Name = d.Spec.Names.Plural + "." + u.group
	return &d
}

// define creates a definition, which must be effective immediately.
func (u *user) define(spec string) *crd {
	u.t.Helper()
	created, err := u.tryDefine(u.parse(spec))
	require.NoError(u.t, err)
	return created
}

func (u *user) tryDefine(d *crd) (*crd, error) {
	if u.bound != nil {
		return d, u.bind(d)
	}
	return u.crds.ApiextensionsV1().CustomResourceDefinitions().Create(u.t.Context(), d, metav1.CreateOptions{})
}

// rejectDefinition checks that a definition is rejected as invalid, with a message that contains the words.
func (u *user) rejectDefinition(d *crd, words ...string) {
	u.t.Helper()
	_, err := u.tryDefine(d)
	u.requireInvalid(err, words...)
}

// redefine updates a definition.
func (u *user) redefine(name string, change func(d *crd)) *crd {
	u.t.Helper()
	if u.bound != nil {
		d := u.bound.last[name].DeepCopy()
		change(d)
		require.NoError(u.t, u.bind(d))
		return d
	}
	client := u.crds.ApiextensionsV1().CustomResourceDefinitions()
	var changed *crd
	u.eventually("the definition was not updated", func() bool {
		d, err := client.Get(u.t.Context(), name+"."+u.group, metav1.GetOptions{})
		require.NoError(u.t, err)
		change(d)
		changed, err = client.Update(u.t.Context(), d, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) {
			return false
		}
		require.NoError(u.t, err)
		return true
	})
	return changed
}

// definition returns a definition.
func (u *user) definition(name string) *crd {
	u.t.Helper()
	u.skipIfBound()
	return harness.Get(u.t, u.crds.ApiextensionsV1().CustomResourceDefinitions(), name+"."+u.group)
}

func (u *user) eventually(what string, condition func() bool) {
	u.t.Helper()
	require.Eventually(u.t, condition, testTimeout, tick, what)
}

// resource returns the client of a custom resource in the user's group.
func (u *user) resource(version, plural string) dynamic.NamespaceableResourceInterface {
	return u.dyn.Resource(schema.GroupVersionResource{Group: u.group, Version: version, Resource: plural})
}

// widgets returns the client of widgets in the namespace default.
func (u *user) widgets() dynamic.ResourceInterface {
	return u.resource("v1", "widgets").Namespace("default")
}

// get returns an object.
func (u *user) get(client dynamic.ResourceInterface, name string) *unstructured.Unstructured {
	u.t.Helper()
	o, err := client.Get(u.t.Context(), name, metav1.GetOptions{})
	require.NoError(u.t, err)
	return o
}

// list returns a list of objects.
func (u *user) list(client dynamic.ResourceInterface, options metav1.ListOptions) *unstructured.UnstructuredList {
	u.t.Helper()
	list, err := client.List(u.t.Context(), options)
	require.NoError(u.t, err, "%v", options)
	return list
}

// patch applies a merge patch to a widget.
func (u *user) patch(name, patch string) (*unstructured.Unstructured, error) {
	return u.widgets().Patch(u.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
}

// setProperty returns a change of a definition that sets a property of the spec in its first version.
func setProperty(name string, p props) func(*crd) {
	return func(d *crd) { d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties[name] = p }
}

// object returns an object with a kind, a name, and further content as YAML.
func (u *user) object(kind, name, content string) *unstructured.Unstructured {
	u.t.Helper()
	data, err := yaml.YAMLToJSON([]byte(content))
	require.NoError(u.t, err)
	o := &unstructured.Unstructured{Object: map[string]any{}}
	require.NoError(u.t, json.Unmarshal(data, &o.Object)) // decodes integers as int64
	o.SetKind(kind)
	o.SetAPIVersion(u.group + "/v1")
	if name != "" {
		o.SetName(name)
	}
	return o
}

// widget creates a widget in the namespace default with its spec as YAML.
func (u *user) widget(name, spec string) *unstructured.Unstructured {
	u.t.Helper()
	w, err := u.tryWidget(name, spec)
	require.NoError(u.t, err)
	return w
}

func (u *user) tryWidget(name, spec string) (*unstructured.Unstructured, error) {
	u.t.Helper()
	return u.widgets().Create(u.t.Context(), u.object("Widget", name, "spec: "+spec), metav1.CreateOptions{})
}

// requireInvalid checks that an object was rejected as invalid, with a message that contains the
// words.
func (u *user) requireInvalid(err error, words ...string) {
	u.t.Helper()
	require.True(u.t, apierrors.IsInvalid(err), "%v", err)
	for _, w := range words {
		require.ErrorContains(u.t, err, w)
	}
}

// field returns a field of an object.
func field(t *testing.T, o *unstructured.Unstructured, path ...string) any {
	t.Helper()
	v, _, err := unstructured.NestedFieldNoCopy(o.Object, path...)
	require.NoError(t, err)
	return v
}

// condition returns the status and the reason of a condition of a definition.
func condition(d *crd, of string) string {
	for _, c := range d.Status.Conditions {
		if string(c.Type) == of {
			return string(c.Status) + " " + c.Reason
		}
	}
	return ""
}
