package apis_test

import (
	goruntime "runtime"
	"strconv"
	"strings"
	"testing"

	cachev1alpha1 "github.com/kcp-dev/sdk/apis/cache/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/shardplane/shardplane/pkg/apis"
)

func parse(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	require.NoError(t, yaml.Unmarshal([]byte(text), &u.Object))
	u.SetAPIVersion("apis.kcp.io/" + u.GetAPIVersion())
	return u
}

const (
	export2  = "{apiVersion: v1alpha2, kind: APIExport, metadata: {name: e}, spec: {%}}"
	export1  = "{apiVersion: v1alpha1, kind: APIExport, metadata: {name: e}, spec: {%}}"
	binding2 = "{apiVersion: v1alpha2, kind: APIBinding, metadata: {name: b}, spec: {reference: {export: {name: e, path: 'root:org'}}, permissionClaims: [%]}}"
	claim    = "group: '', resource: secrets, verbs: [get], state: Accepted"
	version  = "{name: v1, served: true, storage: true, schema: {type: object, properties: {spec: {type: string}}}}"
	ofSchema = "{apiVersion: v1alpha1, kind: APIResourceSchema, metadata: {name: NAME}, spec: {group: GROUP, names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}, scope: Cluster, versions: [%]}}"
)

func with(text, insert string) string { return strings.Replace(text, "%", insert, 1) }

func schemaOf(name, group, versions string) string {
	return with(strings.NewReplacer("NAME", name, "GROUP", group).Replace(ofSchema), versions)
}

// TestLimits verifies that a schema has the limits of a definition, and that the error contains its field.
func TestLimits(t *testing.T) {
	columns := strings.TrimSuffix(strings.Repeat("{name: x, type: string, jsonPath: .spec},", 33), ",")
	for text, want := range map[string]string{
		"{name: v1, served: true, storage: true, schema: {type: object, properties: {x: {type: string, pattern: '" + strings.Repeat(".{1000}", 300) + "'}}}}": "spec.versions[0].schema.properties[x].pattern",
		strings.Replace(version, "storage: true", "storage: true, additionalPrinterColumns: ["+columns+"]", 1):                                                "spec.versions[0].additionalPrinterColumns",
	} {
		errs := apis.Validate(t.Context(), parse(t, schemaOf("v1.widgets.example.org", "example.org", text)), nil)
		require.Len(t, errs, 1, "%v", errs)
		require.Equal(t, want, errs[0].Field)
	}
	conversion := func(transformation string) *unstructured.Unstructured {
		return parse(t, "{apiVersion: v1alpha1, kind: APIConversion, metadata: {name: v1.widgets.core}, spec: {conversions: [{from: v1, to: v2, rules: [{field: .spec.a, destination: .spec.b, transformation: \""+transformation+"\"}]}]}}")
	}
	large := conversion("self.find('" + strings.Repeat("a{0,1000}", 100) + "')")
	errs := apis.Validate(t.Context(), large, nil)
	require.Len(t, errs, 1, "%v", errs)
	require.Equal(t, "spec.conversions[0].rules[0].transformation", errs[0].Field)
	require.Contains(t, errs[0].Detail, "at most 2500 allowed")
	changed := large.DeepCopy()
	conversions, _, _ := unstructured.NestedSlice(changed.Object, "spec", "conversions")
	first, _ := conversions[0].(map[string]any)
	first["preserve"] = []any{".spec.c"}
	require.NoError(t, unstructured.SetNestedSlice(changed.Object, conversions, "spec", "conversions"))
	require.Empty(t, apis.Validate(t.Context(), changed, large), "an unchanged large expression must be accepted")
}

// TestExpensiveSchemas checks that schemas whose validation would use gigabytes are rejected before.
func TestExpensiveSchemas(t *testing.T) {
	deep := func(n int, fields, leaf string) string {
		return strings.Repeat("{type: object, "+fields+"properties: {x: ", n) + leaf + strings.Repeat("}}", n)
	}
	rules := func(n int) string {
		return "{type: object, x-kubernetes-validations: [" + strings.Repeat("{rule: 'true', fieldPath: .x},", n) + "]}"
	}
	for _, schema := range []string{deep(1500, "", "{}"), deep(500, "default: {}, ", rules(30)), rules(5000)} {
		object := parse(t, schemaOf("v1.widgets.core", "''", "{name: v1, served: true, storage: true, schema: "+schema+"}"))
		var before, after goruntime.MemStats
		goruntime.ReadMemStats(&before)
		errs := apis.Validate(t.Context(), object, nil)
		goruntime.ReadMemStats(&after)
		require.Len(t, errs, 1, "%v", errs)
		require.Equal(t, "spec.versions[0].schema", errs[0].Field)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20))
	}
}

func TestValid(t *testing.T) {
	second := "{name: v2, served: true, storage: false, schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}"
	for _, text := range []string{
		with(export2, ""),
		with(export2, "resources: [{name: widgets, group: '', schema: v1.widgets.core, storage: {crd: {}}}, {name: widgets, group: example.org, schema: v1.widgets.example.org, storage: {virtual: {identityHash: a, reference: {kind: K, name: ref}}}}]"),
		with(export2, "permissionClaims: [{group: '', resource: secrets, verbs: ['*']}, {group: events.k8s.io, resource: events, verbs: [get]}, {group: apis.kcp.io, resource: apibindings, verbs: [get]}, {group: example.org, resource: gadgets, verbs: [get], identityHash: abc, defaultSelector: {matchLabels: {a: b}}}]"),
		with(export2, "identity: {secretRef: {name: s, namespace: there}}, maximalPermissionPolicy: {local: {}}"),
		with(export1, "latestResourceSchemas: [v1.widgets.core, v1.gadgets.example.org], permissionClaims: [{group: '', resource: secrets, all: true}]"),
		with(binding2, ""),
		with(binding2, "{"+claim+", selector: {matchAll: true}}, {group: '', resource: secrets, identityHash: a, verbs: [get], state: Rejected, selector: {matchLabels: {a: b}}}"),
		"{apiVersion: v1alpha1, kind: APIExportEndpointSlice, metadata: {name: s}, spec: {export: {name: e}}}",
		"{apiVersion: v1alpha1, kind: APIConversion, metadata: {name: v1.widgets.core}, spec: {conversions: [{from: v1, to: v2, rules: [{field: .spec.a, destination: .spec.b, transformation: 'self + 1'}], preserve: [.spec.c]}]}}",
		schemaOf("v1.widgets.example.org", "example.org", version),
		schemaOf("v1.widgets.core", "''", version),
		schemaOf("v1.widgets.apps", "apps", version),
		schemaOf("v1.widgets.example.org", "example.org", version+","+second),
		strings.Replace(schemaOf("v1.widgets.x.k8s.io", "x.k8s.io", version), "metadata: {", "metadata: {annotations: {api-approved.kubernetes.io: 'https://github.com/kubernetes/kubernetes/pull/1'}, ", 1),
		"{apiVersion: v1alpha1, kind: Other, metadata: {name: x}}",
	} {
		require.Empty(t, apis.Validate(t.Context(), parse(t, text), nil), text)
	}
	require.Empty(t, apis.Validate(t.Context(), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "APIExport"}}, nil))
}

// bad is an invalid object with the expected field and message.
type bad struct{ text, field, message string }

func TestInvalid(t *testing.T) {
	annotated := func(text, key, value string) string {
		return strings.Replace(text, "metadata: {", "metadata: {annotations: {apis.v1alpha2.kcp.io/"+key+": '"+value+"'}, ", 1)
	}
	binding1 := "{apiVersion: v1alpha1, kind: APIBinding, metadata: {name: b}, spec: {reference: {export: {name: e}}}}"
	conversion := "{apiVersion: v1alpha1, kind: APIConversion, metadata: {name: v1.widgets.core}, spec: {conversions: [{from: v1, to: v2, %}]}}"
	for _, tc := range []bad{
		// Exports.
		{with(export2, "resources: [{name: widgets, group: a.b, schema: v1.other.a.b, storage: {crd: {}}}]"), "spec.resources[0].schema", "<prefix>.widgets.a.b"},
		{with(export2, "resources: [{name: widgets, group: '', schema: v1.widgets, storage: {crd: {}}}]"), "spec.resources[0].schema", "<prefix>.widgets.core"},
		{with(export2, "resources: [{name: widgets, group: core, schema: v1.widgets.core, storage: {crd: {}}}]"), "spec.resources[0].group", "called \"\""},
		{with(export2, "resources: [{name: widgets, group: a.b, schema: v1.x.widgets.a.b, storage: {crd: {}}}]"), "spec.resources[0].schema", "must be the name"},
		{with(export2, "resources: [{name: '', group: a.b, schema: v1..a.b, storage: {crd: {}}}]"), "spec.resources[0].name", "plural"},
		{with(export2, "resources: [{name: widgets, group: A, schema: v1.widgets.A, storage: {crd: {}}}]"), "spec.resources[0].group", "DNS subdomain"},
		{with(export2, "resources: [{name: widgets, group: a.b, schema: v1.widgets.a.b, storage: {}}]"), "spec.resources[0].storage", "exactly one"},
		{with(export2, "resources: [{name: widgets, group: a.b, schema: v1.widgets.a.b, storage: {crd: {}, virtual: {identityHash: a, reference: {kind: K, name: ref}}}}]"), "spec.resources[0].storage", "exactly one"},
		{with(export2, "resources: [{name: widgets, group: a.b, schema: v1.widgets.a.b, storage: {virtual: {identityHash: a, reference: {kind: K, name: ''}}}}]"), "spec.resources[0].storage.virtual.reference.name", "refer to"},
		{with(export2, "resources: [{name: widgets, group: a.b, schema: v1.widgets.a.b, storage: {virtual: {identityHash: '', reference: {kind: K, name: ref}}}}]"), "spec.resources[0].storage.virtual.identityHash", "copy it"},
		{with(export2, "resources: [{name: widgets, group: a.b, schema: v1.widgets.a.b, storage: {crd: {}}}, {name: widgets, group: a.b, schema: v2.widgets.a.b, storage: {crd: {}}}]"), "spec.resources[1]", "Duplicate"},
		{with(export2, "permissionClaims: [{group: example.org, resource: widgets, verbs: [get]}]"), "spec.permissionClaims[0].identityHash", "required unless"},
		{with(export2, "permissionClaims: [{group: example.org, resource: widgets, identityHash: 'a/b', verbs: [get]}]"), "spec.permissionClaims[0].identityHash", "lower-case letters"},
		{with(export2, "permissionClaims: [{group: example.org, resource: widgets, identityHash: 'AB', verbs: [get]}]"), "spec.permissionClaims[0].identityHash", "lower-case letters"},
		{with(export2, "permissionClaims: [{group: example.org, resource: widgets, identityHash: "+strings.Repeat("a", 65)+", verbs: [get]}]"), "spec.permissionClaims[0].identityHash", "lower-case letters"},
		{with(export2, "permissionClaims: [{group: '', resource: secrets, identityHash: '*', verbs: [get]}]"), "spec.permissionClaims[0].identityHash", "lower-case letters"},
		{with(export2, "resources: [{name: widgets, group: a.b, schema: v1.widgets.a.b, storage: {virtual: {identityHash: ':a', reference: {kind: K, name: ref}}}}]"), "spec.resources[0].storage.virtual.identityHash", "lower-case letters"},
		{with(binding2, "{group: '', resource: secrets, identityHash: '../x', verbs: [get], state: Accepted, selector: {matchAll: true}}"), "spec.permissionClaims[0].identityHash", "lower-case letters"},
		{with(export2, "permissionClaims: [{group: '', resource: secrets, verbs: []}]"), "spec.permissionClaims[0].verbs", "at least one"},
		{with(export2, "permissionClaims: [{group: '', resource: secrets, verbs: [get, get]}]"), "spec.permissionClaims[0].verbs[1]", "Duplicate"},
		{with(export2, "permissionClaims: [{group: '', resource: secrets, verbs: ['']}]"), "spec.permissionClaims[0].verbs[0]", "specify a verb"},
		{with(export2, "permissionClaims: [{group: '', resource: S, verbs: [get]}]"), "spec.permissionClaims[0].resource", "plural"},
		{with(export2, "permissionClaims: [{group: '', resource: secrets, verbs: [get], defaultSelector: {}}]"), "spec.permissionClaims[0].defaultSelector", "set one of"},
		{with(export2, "permissionClaims: [{group: '', resource: secrets, verbs: [get]}, {group: '', resource: secrets, verbs: [list], identityHash: a}]"), "spec.permissionClaims[1]", "Duplicate"},
		{with(export2, "identity: {secretRef: {namespace: there}}"), "spec.identity.secretRef.name", "omit secretRef"},
		{strings.Replace(with(export2, ""), "metadata: {", "metadata: {annotations: {extra.apis.kcp.io/a: "+strings.Repeat("a", 9<<10)+", extra.apis.kcp.io/b: "+strings.Repeat("b", 9<<10)+"}, ", 1), "metadata.annotations[extra.apis.kcp.io/*]", "16384"},
		{with(export2, "permissionClaims: [{group: '', resource: secrets, verbs: ["+strings.Repeat("v", 129<<10)+"]}]"), "spec.permissionClaims", "131072"},
		// Exports in v1alpha1, and invalid values in their annotations.
		{with(export1, "latestResourceSchemas: [v1.widgets]"), "spec.latestResourceSchemas[0]", "must be <prefix>"},
		{with(export1, "latestResourceSchemas: [v1.widgets.core, v2.widgets.core]"), "spec.latestResourceSchemas[1]", "Duplicate"},
		{annotated(with(export1, ""), "resource-schemas", "{"), "metadata.annotations", "fix the annotation"},
		{annotated(with(export1, "latestResourceSchemas: [v1.widgets.core]"), "resource-schemas", `[{"name":"widgets","group":"","schema":"v1.widgets.core","storage":{}}]`), "spec.resources[1]", "Duplicate"},
		{annotated(with(export1, ""), "permission-claims", "[{]"), "metadata.annotations[apis.v1alpha2.kcp.io/permission-claims]", "not the JSON"},
		{annotated(with(export1, ""), "permission-claims", `[{"resource":"secrets","verbs":["get"]}]`), "metadata.annotations[apis.v1alpha2.kcp.io/permission-claims]", "not in spec.permissionClaims"},
		{annotated(with(export1, "permissionClaims: [{resource: secrets, all: true}]"), "permission-claims", `[{"resource":"secrets","verbs":["",""]}]`), "spec.permissionClaims[0].verbs[0]", "specify a verb"},
		{annotated(with(export2, ""), "v1alpha1-permission-claims", "7"), "metadata.annotations", "fix the annotation"},
		// Bindings.
		{"{apiVersion: v1alpha2, kind: APIBinding, metadata: {name: b}, spec: {reference: {}}}", "spec.reference.export", "specify the APIExport"},
		{"{apiVersion: v1alpha2, kind: APIBinding, metadata: {name: b}, spec: {reference: {export: {name: ''}}}}", "spec.reference.export.name", "specify the APIExport"},
		{"{apiVersion: v1alpha2, kind: APIBinding, metadata: {name: b}, spec: {reference: {export: {name: A/b}}}}", "spec.reference.export.name", "RFC 1123"},
		{"{apiVersion: v1alpha2, kind: APIBinding, metadata: {name: b}, spec: {reference: {export: {name: e, path: 'root:'}}}}", "spec.reference.export.path", "root:org:provider"},
		{"{apiVersion: v1alpha2, kind: APIBinding, metadata: {name: b}, spec: {reference: {export: {name: e, path: '*'}}}}", "spec.reference.export.path", "must be"},
		{with(binding2, "{"+claim+", selector: {}}"), "spec.permissionClaims[0].selector", "set one of"},
		{with(binding2, "{"+claim+", selector: {matchAll: true, matchLabels: {a: b}}}"), "spec.permissionClaims[0].selector", "only one"},
		{with(binding2, "{"+claim+", selector: {matchLabels: {a: 'b/c'}}}"), "spec.permissionClaims[0].selector.matchLabels", "b/c"},
		{with(binding2, "{"+claim+", selector: {matchExpressions: [{key: a, operator: Is}]}}"), "spec.permissionClaims[0].selector.matchExpressions[0].operator", "Is"},
		{with(binding2, "{group: '', resource: secrets, verbs: [get], state: Perhaps, selector: {matchAll: true}}"), "spec.permissionClaims[0].state", "Accepted"},
		{with(binding2, "{"+claim+", selector: {matchAll: true}}, {"+claim+", selector: {matchAll: true}}"), "spec.permissionClaims[1]", "Duplicate"},
		{annotated(binding1, "acceptable-permission-claims", "true"), "metadata.annotations[apis.v1alpha2.kcp.io/acceptable-permission-claims]", "not the JSON"},
		{annotated(binding1, "acceptable-permission-claims", `[{"resource":"secrets","verbs":["*"]}]`), "metadata.annotations[apis.v1alpha2.kcp.io/acceptable-permission-claims]", "not in spec.permissionClaims"},
		{annotated(with(binding2, ""), "v1alpha1-status-applied-permission-claims", "{}"), "metadata.annotations", "fix the annotation"},
		// Slices.
		{"{apiVersion: v1alpha1, kind: APIExportEndpointSlice, metadata: {name: s}, spec: {export: {path: root}}}", "spec.export.name", "specify the APIExport"},
		// Conversions.
		{"{apiVersion: v1alpha1, kind: APIConversion, metadata: {name: other}, spec: {conversions: []}}", "metadata.name", "APIResourceSchema"},
		{with(strings.Replace(conversion, "to: v2", "to: v1", 1), "rules: []"), "spec.conversions[0].to", "a version other than"},
		{with(conversion, "rules: [{field: '.spec[0]', destination: .spec}]"), "spec.conversions[0].rules[0].field", ".spec.name.first"},
		{with(conversion, "rules: [{field: spec.a, destination: metadata.labels.a}]"), "spec.conversions[0].rules[0].destination", "metadata"},
		{with(conversion, "rules: [{field: .a, destination: .spec.b}, {field: .a, destination: spec}]"), "spec.conversions[0].rules[1].destination", ".spec.b"},
		{with(conversion, "rules: [{field: .a, destination: .spec}, {field: .a, destination: .spec.b.c}]"), "spec.conversions[0].rules[1].destination", ".spec"},
		{with(conversion, "rules: [], preserve: ['.metadata.finalizers']"), "spec.conversions[0].preserve[0]", "metadata"},
		{with(conversion, "rules: [{field: .a, destination: .b, transformation: '"+strings.Repeat("self+", 14000)+"self'}]"), "spec.conversions", "65536 bytes"},
		{with(conversion, "rules: [], preserve: [a"+strings.Repeat(",a", apis.MaxItems)+"]"), "spec.conversions", "1000"},
		{with(conversion, "rules: [{field: .spec, destination: '.spec['}]"), "spec.conversions[0].rules[0].destination", "JSONPath"},
		{with(conversion, "rules: [{field: .a, destination: .b, transformation: 'self +'}]"), "spec.conversions[0].rules[0].transformation", "CEL"},
		{with(conversion, "rules: [{field: .a, destination: .a"+strings.Repeat(".a", 512)+"}]"), "spec.conversions[0].rules[0].destination", "1024 bytes"},
		{with(conversion, "rules: [{field: .a"+strings.Repeat(".a", 512)+", destination: .a}]"), "spec.conversions[0].rules[0].field", "1024 bytes"},
		{with(conversion, "rules: [], preserve: ['.']"), "spec.conversions[0].preserve[0]", "JSONPath"},
		// Schemas.
		{schemaOf("widgets", "example.org", version), "metadata.name", "<prefix>.<plural>.<group>"},
		{schemaOf("v1.gadgets.example.org", "example.org", version), "metadata.name", `"v1.widgets.example.org"`},
		{schemaOf("v1.widgets.core", "core", version), "spec.group", "called \"\""},
		{schemaOf("v1.widgets.other", "other", version), "spec.group", "at least one dot"},
		{schemaOf("v1.widgets.x.k8s.io", "x.k8s.io", version), "metadata.annotations[api-approved.kubernetes.io]", "protected groups"},
		{schemaOf("v1.widgets.a.b", "a.b", "{name: v1, served: true, storage: true}"), "spec.versions[0].schema", "specify the OpenAPI schema"},
		{schemaOf("v1.widgets.a.b", "a.b", "{name: v1, served: true, storage: true, schema: {type: 7}}"), "spec.versions[0].schema", "OpenAPI v3 schema"},
		{schemaOf("v1.widgets.a.b", "a.b", "{name: v1, served: true, storage: true, schema: {type: object, properties: {spec: {}}}}"), "spec.versions[0].schema.properties[spec].type", "must not be empty"},
		{schemaOf("v1.widgets.a.b", "a.b", "{name: v1, served: true, storage: false, schema: {type: object}}"), "spec.versions", "exactly one version"},
		{schemaOf("v1.widgets.a.b", "a.b", version+","+strings.Replace(version, "name: v1", "name: v2", 1)), "spec.versions", "exactly one version"},
		{schemaOf("v1.widgets.a.b", "a.b", "{name: v1, served: true, storage: true, schema: {type: object, x-kubernetes-validations: [{rule: 'self.x'}]}}"), "spec.versions[0].schema.x-kubernetes-validations[0].rule", "undefined field"},
		{strings.Replace(schemaOf("v1.widgets.a.b", "a.b", version), "scope:", "conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {url: 'http://a'}}}, scope:", 1), "spec.conversion.webhook.clientConfig.url", "https"},
		{strings.Replace(schemaOf("v1.widgets.a.b", "a.b", version), "scope:", "conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1]}}, scope:", 1), "spec.conversion.webhook.clientConfig", "required"},
		{strings.Replace(schemaOf("v1.widgets.a.b", "a.b", version), "kind: Widget,", "kind: 'a b',", 1), "spec.names.kind", "DNS-1035"},
	} {
		errs := apis.Validate(t.Context(), parse(t, tc.text), nil)
		require.NotEmpty(t, errs, tc.text)
		found := false
		for _, e := range errs {
			found = found || e.Field == tc.field && strings.Contains(e.Error(), tc.message)
		}
		assert.True(t, found, "%s\nwant %s: …%s…\ngot %v", tc.text, tc.field, tc.message, errs)
	}
}

// Lists that are compared with each other are limited beforehand.
func TestLengths(t *testing.T) {
	many := func(n int, item string) string {
		var items []string
		for i := range n {
			items = append(items, strings.ReplaceAll(item, "#", "r"+strconv.Itoa(i)))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	claims := many(1001, "{group: '', resource: #, identityHash: a, verbs: [get], all: true, selector: {matchAll: true}, state: Accepted}")
	annotated := parse(t, with(export1, ""))
	annotated.SetAnnotations(map[string]string{"apis.v1alpha2.kcp.io/permission-claims": many(1001, `{"resource":"#"}`)})
	for path, object := range map[string]*unstructured.Unstructured{
		"spec.resources":                 parse(t, with(export2, "resources: "+many(1001, "{name: #, group: '', schema: v1.#.core, storage: {crd: {}}}"))),
		"spec.latestResourceSchemas":     parse(t, with(export1, "latestResourceSchemas: "+many(1001, "v1.#.core"))),
		"spec.permissionClaims":          parse(t, with(export1, "permissionClaims: "+claims)),
		"spec.permissionClaims[0].verbs": parse(t, with(binding2, "{group: '', resource: secrets, state: Accepted, selector: {matchAll: true}, verbs: "+many(101, "#")+"}")),
		"metadata.annotations[apis.v1alpha2.kcp.io/permission-claims]": annotated,
	} {
		errs := apis.Validate(t.Context(), object, nil)
		require.Len(t, errs, 1)
		require.Equal(t, path, errs[0].Field)
		require.ErrorContains(t, errs[0], "must have at most")
	}
	require.Empty(t, apis.Validate(t.Context(), parse(t, with(export1, "latestResourceSchemas: "+many(1000, "v1.#.core"))), nil))
}

// TestSelectors: selectors that are matched with events are limited, but larger existing ones can be kept.
func TestSelectors(t *testing.T) {
	selector := func(n int) string {
		return "{matchExpressions: [{key: a, operator: Exists}, {key: b, operator: In, values: [v" + strings.Repeat(", v", n-2) + "]}]}"
	}
	cached := func(n int) *cachev1alpha1.CachedResource {
		u := parse(t, "{kind: CachedResource, spec: {version: v1, labelSelector: "+selector(n)+"}}")
		typed := &cachev1alpha1.CachedResource{}
		require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, typed))
		return typed
	}
	validateObject := func(object func(n int) *unstructured.Unstructured) func(n, had int) field.ErrorList {
		return func(n, had int) field.ErrorList {
			if had == 0 {
				return apis.Validate(t.Context(), object(n), nil)
			}
			return apis.Validate(t.Context(), object(n), object(had))
		}
	}
	for path, validate := range map[string]func(n, had int) field.ErrorList{
		"spec.permissionClaims[0].selector": validateObject(func(n int) *unstructured.Unstructured {
			return parse(t, with(binding2, "{"+claim+", selector: "+selector(n)+"}"))
		}),
		"spec.permissionClaims[0].defaultSelector": validateObject(func(n int) *unstructured.Unstructured {
			claims := "[{group: '', resource: secrets, verbs: [get], defaultSelector: " + selector(n) + "}]"
			return parse(t, with(export2, "permissionClaims: "+claims))
		}),
		"spec.labelSelector": func(n, had int) field.ErrorList {
			if had == 0 {
				return apis.ValidateCachedResource(cached(n), nil)
			}
			return apis.ValidateCachedResource(cached(n), cached(had))
		},
	} {
		require.Empty(t, validate(128, 0), path)
		require.Empty(t, validate(128, 3), path)
		require.Empty(t, validate(200, 200), path)
		require.Empty(t, validate(190, 200), path)
		for _, errs := range []field.ErrorList{validate(129, 0), validate(129, 128), validate(201, 200)} {
			require.Len(t, errs, 1, path)
			require.Equal(t, path, errs[0].Field)
			require.ErrorContains(t, errs[0], "must have at most 128 items")
		}
	}
}

func TestUpdates(t *testing.T) {
	status := func(text, phase string) string {
		return strings.Replace(text, "spec:", "status: {phase: '"+phase+"'}, spec:", 1)
	}
	plain := with(binding2, "")
	one := schemaOf("v1.widgets.a.b", "a.b", version)
	labelled := "{" + claim + ", selector: {matchLabels: {a: b}}}"
	for _, tc := range []struct{ old, now, field string }{
		{old: plain, now: plain},
		{old: with(binding2, labelled), now: with(binding2, strings.Replace(labelled, "a: b", "c: d", 1))},
		{old: plain, now: strings.Replace(plain, "name: e", "name: f", 1), field: "spec.reference"},
		{old: plain, now: strings.Replace(plain, "root:org", "root", 1), field: "spec.reference"},
		{old: status(plain, ""), now: status(plain, "Binding")},
		{old: status(plain, "Binding"), now: status(plain, "Bound")},
		{old: status(plain, "Bound"), now: status(plain, ""), field: "status.phase"},
		{old: one, now: strings.Replace(one, "metadata: {", "metadata: {labels: {a: b}, ", 1)},
		{old: one, now: strings.Replace(one, "type: string", "type: integer", 1), field: "spec"},
		{
			old:   "{apiVersion: v1alpha1, kind: APIExportEndpointSlice, metadata: {name: s}, spec: {export: {name: e}}}",
			now:   "{apiVersion: v1alpha1, kind: APIExportEndpointSlice, metadata: {name: s}, spec: {export: {name: f}}}",
			field: "spec.export",
		},
	} {
		errs := apis.Validate(t.Context(), parse(t, tc.now), parse(t, tc.old))
		if tc.field == "" {
			require.Empty(t, errs, tc.now)
			continue
		}
		require.Len(t, errs, 1, tc.now)
		require.Equal(t, tc.field, errs[0].Field)
	}
}

// FuzzValidate checks objects that were not validated by a schema: there must be no panic.
func FuzzValidate(f *testing.F) {
	for _, text := range []string{
		with(export2, "resources: [{name: widgets, group: '', schema: v1.widgets.core, storage: {crd: {}}}]"), with(export1, "latestResourceSchemas: ['', a]"),
		with(binding2, "{"+claim+", selector: {matchAll: true}}"), schemaOf("v1.widgets.example.org", "example.org", version), schemaOf("v1.widgets.core", "''", version+", "+version),
		"{apiVersion: v1alpha1, kind: APIConversion, metadata: {name: v1.widgets.core}, spec: {conversions: [{from: v1, to: v2, rules: [{field: '.a[', destination: '.{range', transformation: '(('}], preserve: ['..']}]}}",
		"{apiVersion: v1alpha1, kind: APIExportEndpointSlice, metadata: {name: s}}", "{kind: APIExport}", "{apiVersion: v1alpha2, kind: APIBinding, spec: [], status: 7}",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		u := &unstructured.Unstructured{}
		if yaml.Unmarshal(text, &u.Object) != nil || u.Object == nil {
			return
		}
		u.SetAPIVersion("apis.kcp.io/" + u.GetAPIVersion())
		for _, e := range apis.Validate(t.Context(), u, nil) {
			require.NotEmpty(t, e.Error())
		}
		apis.Validate(t.Context(), u, u)
	})
}
