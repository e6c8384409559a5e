package conversions

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/checker"
	apisv1alpha1 "github.com/kcp-dev/sdk/apis/apis/v1alpha1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/version"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/library"

	"github.com/shardplane/shardplane/pkg/apis"
)

// costLimit is the CEL cost limit for the conversion of one object. It is a quarter of Kubernetes' limit for one
// expression, because a write converts several times.
//
//reference:limit request | APIConversion of an object: CEL cost | 422 for writes, otherwise 500
const costLimit = celconfig.PerCallLimit / 4

// Rules convert objects of one schema between its versions. They are immutable and may be used concurrently.
type Rules struct {
	// Hash identifies the rules. Equal rules have the same hash.
	Hash string

	between   map[pair]*conversion
	preserved map[string]map[string][]string // the fields that other versions preserve, by version and path
}

type pair struct{ from, to string }

type conversion struct {
	rules    []rule
	preserve [][]string
}

// rule sets one field.
type rule struct {
	source, destination []string
	schema              *structuralschema.Structural // of source, may be nil
	program             cel.Program                  // computes the value; if nil, the value is copied
	at                  string                       // the path of the rule, for errors
}

// Compile compiles an APIConversion for the definition of its schema, as returned by apis.Definition. use must be
// NewExpressions for new APIConversions, which may only use features that the previous server version supports, too.
func Compile(crd *apiextensionsv1.CustomResourceDefinitionSpec, spec *apisv1alpha1.APIConversionSpec, use environment.Type) (*Rules, field.ErrorList) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, field.ErrorList{field.InternalError(field.NewPath("spec"), err)}
	}
	hash := sha256.Sum256(text)
	c := compiler{crd: crd, use: use, schemas: map[string]*structuralschema.Structural{}, envs: map[string]*typedEnv{}}
	rules := &Rules{Hash: hex.EncodeToString(hash[:]), between: map[pair]*conversion{}, preserved: map[string]map[string][]string{}}
	var errs field.ErrorList
	for i := range spec.Conversions {
		between := &spec.Conversions[i]
		compiled, more := c.conversion(between, field.NewPath("spec", "conversions").Index(i))
		errs = append(errs, more...)
		rules.between[pair{between.From, between.To}] = compiled
		for _, names := range compiled.preserve {
			if rules.preserved[between.From] == nil {
				rules.preserved[between.From] = map[string][]string{}
			}
			rules.preserved[between.From][strings.Join(names, ".")] = names
		}
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return rules, nil
}

type compiler struct {
	crd     *apiextensionsv1.CustomResourceDefinitionSpec
	use     environment.Type
	schemas map[string]*structuralschema.Structural
	envs    map[string]*typedEnv // by version and field
}

// typedEnv compiles expressions over values of one schema.
type typedEnv struct {
	*cel.Env
	costs *library.CostEstimator
}

func (c *compiler) conversion(between *apisv1alpha1.APIVersionConversion, path *field.Path) (*conversion, field.ErrorList) {
	compiled := &conversion{}
	from, err := c.version(between.From)
	if err != nil {
		return compiled, field.ErrorList{field.Invalid(path.Child("from"), between.From, err.Error())}
	}
	to, err := c.version(between.To)
	if err != nil {
		return compiled, field.ErrorList{field.Invalid(path.Child("to"), between.To, err.Error())}
	}
	var errs field.ErrorList
	for i := range between.Rules {
		spec, path := &between.Rules[i], path.Child("rules").Index(i)
		r := rule{source: apis.FieldPath(spec.Field), destination: apis.FieldPath(spec.Destination), at: path.String()}
		if r.schema, err = find(from, r.source); err != nil {
			errs = append(errs, field.Invalid(path.Child("field"), spec.Field, fmt.Sprintf("version %s %v", between.From, err)))
			continue
		}
		if _, err := find(to, r.destination); err != nil {
			errs = append(errs, field.Invalid(path.Child("destination"), spec.Destination, fmt.Sprintf("version %s %v", between.To, err)))
			continue
		}
		if spec.Transformation != "" {
			if r.program, err = c.program(&r, between.From, spec.Transformation); err != nil {
				errs = append(errs, field.Invalid(path.Child("transformation"), spec.Transformation, err.Error()))
				continue
			}
		}
		compiled.rules = append(compiled.rules, r)
	}
	for i, preserved := range between.Preserve {
		names := apis.FieldPath(preserved)
		if _, err := find(from, names); err != nil {
			errs = append(errs, field.Invalid(path.Child("preserve").Index(i), preserved, fmt.Sprintf("version %s %v", between.From, err)))
			continue
		}
		compiled.preserve = append(compiled.preserve, names)
	}
	return compiled, errs
}

func (c *compiler) version(name string) (*structuralschema.Structural, error) {
	if s := c.schemas[name]; s != nil {
		return s, nil
	}
	for i := range c.crd.Versions {
		v := &c.crd.Versions[i]
		if v.Name != name || v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			continue
		}
		internal := &apiextensions.JSONSchemaProps{}
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v.Schema.OpenAPIV3Schema, internal, nil); err != nil {
			return nil, err
		}
		structural, err := structuralschema.NewStructural(internal)
		if err != nil {
			return nil, err
		}
		structural = model.WithTypeAndObjectMeta(structural)
		c.schemas[name] = structural
		return structural, nil
	}
	return nil, errors.New("must be a version of the APIResourceSchema")
}

// find returns the schema of a field, which is nil if the field may have any value.
func find(in *structuralschema.Structural, names []string) (*structuralschema.Structural, error) {
	if names == nil {
		return nil, errors.New("has no such field: a path must consist of names separated by dots")
	}
	for i, name := range names {
		if next, ok := in.Properties[name]; ok {
			in = &next
			continue
		}
		if in.AdditionalProperties != nil && in.AdditionalProperties.Structural != nil {
			in = in.AdditionalProperties.Structural
			continue
		}
		if in.XPreserveUnknownFields || in.AdditionalProperties != nil && in.AdditionalProperties.Bool {
			return nil, nil //nolint:nilnil // any value is allowed
		}
		return nil, fmt.Errorf("has no field .%s", strings.Join(names[:i+1], "."))
	}
	return in, nil
}

func (c *compiler) program(r *rule, from, expression string) (cel.Program, error) {
	env, err := c.env(r, from)
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(expression)
	if issues != nil {
		return nil, errors.New(issues.String())
	}
	cost, err := env.EstimateCost(ast, env.costs)
	if err != nil {
		return nil, fmt.Errorf("its cost cannot be estimated: %w", err)
	}
	if cost.Min > costLimit {
		return nil, fmt.Errorf("it costs at least %d, at most %d allowed for the conversion of an object: simplify it", cost.Min, costLimit)
	}
	return env.Program(ast, cel.CostLimit(costLimit), cel.CostTracking(env.costs), cel.InterruptCheckFrequency(celconfig.CheckFrequency))
}

// env returns the environment for expressions over the source of a rule.
func (c *compiler) env(r *rule, from string) (*typedEnv, error) {
	declared := apiservercel.DynType
	if r.schema != nil {
		if t := model.SchemaDeclType(r.schema, r.schema.XEmbeddedResource); t != nil {
			declared = t.MaybeAssignTypeName(self)
		} else {
			r.schema = nil // it does not specify a type
		}
	}
	key := from + " " + strings.Join(r.source, ".")
	if env := c.envs[key]; env != nil {
		return env, nil
	}
	set, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0), // in all versions
		EnvOptions:        []cel.EnvOption{cel.Variable(self, declared.CelType())},
		DeclTypes:         []*apiservercel.DeclType{declared},
	})
	if err != nil {
		return nil, err
	}
	env, err := set.Env(c.use)
	if err != nil {
		return nil, err
	}
	c.envs[key] = &typedEnv{Env: env, costs: &library.CostEstimator{SizeEstimator: sizes{declared}}}
	return c.envs[key], nil
}

const self = "self"

// sizes estimates the sizes of parts of a value according to its schema.
type sizes struct{ root *apiservercel.DeclType }

// EstimateSize implements checker.CostEstimator.
func (s sizes) EstimateSize(element checker.AstNode) *checker.SizeEstimate {
	path := element.Path()
	if len(path) == 0 || path[0] != self {
		return nil
	}
	at := s.root
	for _, name := range path[1:] {
		switch name {
		case "@items", "@values":
			at = at.ElemType
		case "@keys":
			at = at.KeyType
		default:
			f := at.Fields[name]
			if f == nil {
				return nil
			}
			at = f.Type
		}
		if at == nil {
			return nil
		}
	}
	return &checker.SizeEstimate{Max: uint64(max(0, at.MaxElements))} //nolint:gosec // it is not negative
}

// EstimateCallCost implements checker.CostEstimator.
func (sizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}

// ValidateSelectable rejects rules and preserved fields that affect selectable fields. Field selectors are compared
// with stored objects in any version, because converting them would run expressions of tenants for every event.
func ValidateSelectable(crd *apiextensionsv1.CustomResourceDefinitionSpec, spec *apisv1alpha1.APIConversionSpec) field.ErrorList {
	selectable := map[string][][]string{}
	for i := range crd.Versions {
		for _, f := range crd.Versions[i].SelectableFields {
			selectable[crd.Versions[i].Name] = append(selectable[crd.Versions[i].Name], apis.FieldPath(f.JSONPath))
		}
	}
	var errs field.ErrorList
	check := func(version, value string, path *field.Path) {
		names := apis.FieldPath(value)
		for _, f := range selectable[version] {
			if n := min(len(f), len(names)); slices.Equal(f[:n], names[:n]) {
				errs = append(errs, field.Invalid(path, value, fmt.Sprintf("must not be, contain or be in a selectable field of version %s, because field selectors are compared with stored objects", version)))
				return
			}
		}
	}
	for i := range spec.Conversions {
		between, path := &spec.Conversions[i], field.NewPath("spec", "conversions").Index(i)
		for j := range between.Rules {
			check(between.To, between.Rules[j].Destination, path.Child("rules").Index(j).Child("destination"))
		}
		for j, preserved := range between.Preserve {
			check(between.From, preserved, path.Child("preserve").Index(j))
		}
	}
	return errs
}
