package conformance

import (
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

func jsonOf(text string) *apiextensionsv1.JSON { return &apiextensionsv1.JSON{Raw: []byte(text)} }

var validationRules = []rule{
	{"types, bounds, patterns, enumerations and formats are validated", func(u *user) {
		u.define(widgets("color: {type: string, enum: [red, blue]}", "code: {type: string, pattern: '^[a-z]+$', maxLength: 3}",
			"count: {type: integer, minimum: 1, maximum: 5}", "many: {type: array, maxItems: 1, items: {type: string}}",
			"port: {x-kubernetes-int-or-string: true}", "mail: {type: string, format: email}"))
		for spec, why := range map[string]string{
			`{color: green}`:   `spec.color: Unsupported value: "green"`,
			`{code: A1}`:       "spec.code in body should match '^[a-z]+$'",
			`{code: abcd}`:     "spec.code: Too long",
			`{count: 6}`:       "spec.count in body should be less than or equal to 5",
			`{count: x}`:       "spec.count in body must be of type integer",
			`{many: [a, b]}`:   "spec.many: Too many",
			`{port: [1]}`:      "spec.port in body must be of type integer,string",
			`{mail: nonsense}`: "spec.mail",
		} {
			_, err := u.tryWidget("bad", spec)
			u.requireInvalid(err, why)
		}
		u.widget("good", `{color: red, code: abc, count: 5, many: [a], port: 80, mail: a@example.com}`)
		u.widget("too", `{port: http}`)
	}},
	{"CEL rules validate several fields", func(u *user) {
		u.define(widgets("min: {type: integer}", "max: {type: integer}") +
			"          x-kubernetes-validations: [{rule: '!has(self.min) || !has(self.max) || self.min <= self.max', message: min is above max, fieldPath: .min, reason: FieldValueForbidden}]\n")
		_, err := u.tryWidget("bad", `{min: 5, max: 4}`)
		u.requireInvalid(err, "spec.min: Forbidden", "min is above max")
		u.widget("good", `{min: 4, max: 5}`)
		_, err = u.patch("good", `{"spec":{"max":3}}`)
		u.requireInvalid(err, "min is above max")
	}},
	{"a definition with a rule that does not compile, or costs too much, is rejected", func(u *user) {
		u.rejectDefinition(u.parse(widgets(`a: {type: string, x-kubernetes-validations: [{rule: 'self.nonsense()'}]}`)), "undeclared reference")
		u.rejectDefinition(u.parse(widgets(`a: {type: array, items: {type: array, items: {type: string}}, x-kubernetes-validations: [{rule: 'self.all(x, x.all(y, self.all(z, z.all(w, w == y))))'}]}`)),
			"estimated rule cost exceeds budget")
	}},
	{"rules can handle missing old values, and compute messages", func(u *user) {
		u.define(widgets("level: {type: integer, x-kubernetes-validations: [{rule: 'oldSelf.hasValue() ? self >= oldSelf.value() : self == 1', optionalOldSelf: true, messageExpression: 'self > 3 ? \"too high\" : \"too low\"'}]}"))
		_, err := u.tryWidget("a", `{level: 3}`)
		u.requireInvalid(err, "spec.level", "too low")
		u.widget("a", `{level: 1}`)
		_, err = u.patch("a", `{"spec":{"level":5}}`)
		require.NoError(u.t, err)
		_, err = u.patch("a", `{"spec":{"level":4}}`)
		u.requireInvalid(err, "too high")
	}},
	{"an update may keep a value that a stricter schema does not allow any more", func(u *user) {
		u.define(widgets("color: {type: string}"))
		u.widget("a", `{size: 1, color: chartreuse}`)
		stricter := props{Type: "string", MaxLength: new(int64(5)), XValidations: apiextensionsv1.ValidationRules{{Rule: "self != 'pink'"}}}
		u.redefine("widgets", setProperty("color", stricter))
		_, err := u.patch("a", `{"spec":{"size":2}}`)
		require.NoError(u.t, err, "the invalid value is unchanged")
		_, err = u.patch("a", `{"spec":{"color":"aquamarine"}}`)
		u.requireInvalid(err, "spec.color")
		_, err = u.tryWidget("b", `{color: chartreuse}`)
		u.requireInvalid(err, "spec.color")
		_, err = u.tryWidget("b", `{color: pink}`)
		u.requireInvalid(err, "spec.color")
	}},
	{"lists with the type set or map have no duplicates", func(u *user) {
		u.define(widgets("tags: {type: array, x-kubernetes-list-type: set, items: {type: string}}",
			"ports: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [name], items: {type: object, required: [name], properties: {name: {type: string}, port: {type: integer}}}}"))
		_, err := u.tryWidget("bad", `{tags: [a, a]}`)
		u.requireInvalid(err, "Duplicate value")
		_, err = u.tryWidget("bad", `{ports: [{name: a}, {name: a}]}`)
		u.requireInvalid(err, "Duplicate value")
	}},
	{"the error of an object contains all violations", func(u *user) {
		u.define(widgets("a: {type: string}", "b: {type: boolean}", "c: {type: array, items: {type: integer}}"))
		_, err := u.tryWidget("bad", `{a: 1, b: x, c: [1, y]}`)
		u.requireInvalid(err, "spec.a", "spec.b", "spec.c[1]")
	}},
}
