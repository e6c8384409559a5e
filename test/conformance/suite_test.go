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
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/test/harness"
)

// rule is something that a user of Kubernetes may rely on.
type rule struct {
	says  string
	holds func(u *user)
}

// TestRules holds one shard to all rules. Each holds in two logical clusters at
// the same time, while a third has definitions of the same names with another
// scope and another schema, and with objects. Those about objects also hold for one who
// binds an API, and defines nothing.
func TestRules(t *testing.T) {
	masters := one.Get(t).Shard(0)
	t.Run("rules", func(t *testing.T) {
		n := 0
		for _, topic := range []struct {
			name  string
			rules []rule
			// bound is set if they are about objects, whoever defines these.
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
				t.Run(topic.name+": "+r.says, func(t *testing.T) {
					t.Parallel()
					stranger := newUser(t, masters, "stranger", group)
					stranger.define(strangerDefinition)
					stranger.object("Widget", "same", `{"theirs": {"size": "huge"}}`).mustCreate()
					for _, name := range []string{"tenant-a", "tenant-b"} {
						t.Run("in "+name, func(t *testing.T) {
							t.Parallel()
							r.holds(newUser(t, masters, name, group))
						})
					}
					if !topic.bound {
						return
					}
					t.Run("bound", func(t *testing.T) {
						t.Parallel()
						r.holds(newUser(t, masters, "tenant-c", group).binding())
					})
				})
			}
		}
	})
}

// strangerDefinition has the name that the rules use, and nothing else in
// common with their definitions.
const strangerDefinition = `
scope: Cluster
names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
versions:
- name: v1
  served: true
  storage: true
  schema: {openAPIV3Schema: {type: object, required: [theirs], properties: {theirs: {type: object, properties: {size: {type: string}}}}}}
`

// user is somebody who works in a logical cluster, with a group of APIs to
// themselves.
type user struct {
	*tenant
	t       *testing.T
	masters *rest.Config
	group   string
	// bound is nil for users who define for themselves.
	bound *binding
}

func newUser(t *testing.T, masters *rest.Config, cluster, group string) *user {
	t.Helper()
	u := &user{tenant: newTenant(t, cluster, harness.In(masters, cluster)), t: t, masters: masters, group: group}
	for _, ns := range []string{"default", "other"} {
		_, err := u.kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			require.NoError(t, err)
		}
	}
	return u
}

// as is the user in another logical cluster.
func (u *user) as(cluster string) *user {
	u.t.Helper()
	other := newUser(u.t, u.masters, cluster, u.group)
	if u.bound != nil {
		return other.binding()
	}
	return other
}

// widgets is the definition that most rules use, with the given properties of
// its spec, as YAML in one line each.
func widgets(properties ...string) string { return versioned("", properties...) }

// versioned is widgets with further fields of its version.
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

// parse reads the spec of a definition in the user's group.
func (u *user) parse(spec string) *crd {
	u.t.Helper()
	var d crd
	require.NoError(u.t, yaml.UnmarshalStrict([]byte(spec), &d.Spec), spec)
	d.Spec.Group = u.group
	d.Name = d.Spec.Names.Plural + "." + u.group
	return &d
}

// define creates a definition, which must be in effect at once.
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

// refuse holds that a definition is refused as invalid, for a reason that has
// all of the words.
func (u *user) refuse(d *crd, words ...string) {
	u.t.Helper()
	_, err := u.tryDefine(d)
	require.True(u.t, apierrors.IsInvalid(err), "%v", err)
	for _, w := range words {
		require.ErrorContains(u.t, err, w)
	}
}

// redefine changes a definition.
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
	u.eventually("the definition is changed", func() bool {
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

// definition reads a definition.
func (u *user) definition(name string) *crd {
	u.t.Helper()
	u.needsDefinitions()
	d, err := u.crds.ApiextensionsV1().CustomResourceDefinitions().Get(u.t.Context(), name+"."+u.group, metav1.GetOptions{})
	require.NoError(u.t, err)
	return d
}

func (u *user) eventually(what string, condition func() bool) {
	u.t.Helper()
	require.Eventually(u.t, condition, testTimeout, tick, what)
}

// resource is a custom resource of the user's group.
func (u *user) resource(version, plural string) dynamic.NamespaceableResourceInterface {
	return u.dyn.Resource(schema.GroupVersionResource{Group: u.group, Version: version, Resource: plural})
}

// widgets is the widgets in the namespace default.
func (u *user) widgets() dynamic.ResourceInterface {
	return u.resource("v1", "widgets").Namespace("default")
}

// draft is an object to be written.
type draft struct {
	*unstructured.Unstructured
	u *user
}

// object drafts an object with the given content, as YAML, beside its kind and
// name.
func (u *user) object(kind, name, content string) draft {
	u.t.Helper()
	data, err := yaml.YAMLToJSON([]byte(content))
	require.NoError(u.t, err)
	o := &unstructured.Unstructured{Object: map[string]any{}}
	require.NoError(u.t, json.Unmarshal(data, &o.Object)) // with whole numbers as such
	o.SetKind(kind)
	o.SetAPIVersion(u.group + "/v1")
	if name != "" {
		o.SetName(name)
	}
	return draft{o, u}
}

func (d draft) mustCreate() *unstructured.Unstructured {
	d.u.t.Helper()
	created, err := d.u.resource("v1", "widgets").Create(d.u.t.Context(), d.Unstructured, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(d.u.t, err)
	}
	return created
}

// widget creates a widget in the namespace default with a spec as YAML.
func (u *user) widget(name, spec string) *unstructured.Unstructured {
	u.t.Helper()
	w, err := u.tryWidget(name, spec)
	require.NoError(u.t, err)
	return w
}

func (u *user) tryWidget(name, spec string) (*unstructured.Unstructured, error) {
	u.t.Helper()
	return u.widgets().Create(u.t.Context(), u.object("Widget", name, "spec: "+spec).Unstructured, metav1.CreateOptions{})
}

// invalid holds that err says that an object is invalid, for a reason that has
// all of the words.
func (u *user) invalid(err error, words ...string) {
	u.t.Helper()
	require.True(u.t, apierrors.IsInvalid(err), "%v", err)
	for _, w := range words {
		require.ErrorContains(u.t, err, w)
	}
}

// field reads a field of an object.
func field(t *testing.T, o *unstructured.Unstructured, path ...string) any {
	t.Helper()
	v, _, err := unstructured.NestedFieldNoCopy(o.Object, path...)
	require.NoError(t, err)
	return v
}

// condition reads the status and reason of a condition of a definition.
func condition(d *crd, of string) string {
	for _, c := range d.Status.Conditions {
		if string(c.Type) == of {
			return string(c.Status) + " " + c.Reason
		}
	}
	return ""
}
