package conversions

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/cel-go/cel"
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

// costLimit is what the conversion of one object may cost, in the units of CEL: a quarter
// of what Kubernetes gives to one expression, since a write converts several times.
const costLimit = celconfig.PerCallLimit / 4

// Rules convert objects of one schema between its versions. They never change, and may
// be used at the same time.
type Rules struct {
	// Hash tells rules apart: equal rules have the same.
	Hash string

	between map[pair]*conversion
	// preserved are the fields of a version that other versions keep for it.
	preserved map[string]map[string][]string
}

// pair is from which version to which.
type pair struct{ from, to string }

// conversion is how objects become another version.
type conversion struct {
	rules    []rule
	preserve [][]string
}

// rule sets one field.
type rule struct {
	source, destination []string
	// schema is that of source, or nil where there is none.
	schema *structuralschema.Structural
	// program computes the value; nil copies it.
	program cel.Program
	// at says in errors which rule it is.
	at string
}

// Compile compiles the rules of an APIConversion for the definition of the schema of its
// name, which is what apis.Definition returns. The errors name fields of the
// APIConversion. New are the expressions of one that is being written: they may use only
// what the previous version of the server knows, too.
func Compile(crd *apiextensionsv1.CustomResourceDefinitionSpec, spec *apisv1alpha1.APIConversionSpec, use environment.Type) (*Rules, field.ErrorList) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, field.ErrorList{field.InternalError(field.NewPath("spec"), err)}
	}
	hash := sha256.Sum256(text)
	c := compiler{crd: crd, use: use, schemas: map[string]*structuralschema.Structural{}, envs: map[string]*typed{}}
	made := &Rules{Hash: hex.EncodeToString(hash[:]), between: map[pair]*conversion{}, preserved: map[string]map[string][]string{}}
	var errs field.ErrorList
	for i := range spec.Conversions {
		between := &spec.Conversions[i]
		compiled, more := c.conversion(between, field.NewPath("spec", "conversions").Index(i))
		errs = append(errs, more...)
		made.between[pair{between.From, between.To}] = compiled
		for _, names := range compiled.preserve {
			if made.preserved[between.From] == nil {
				made.preserved[between.From] = map[string][]string{}
			}
			made.preserved[between.From][strings.Join(names, ".")] = names
		}
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return made, nil
}

// compiler compiles the rules of one schema.
type compiler struct {
	crd     *apiextensionsv1.CustomResourceDefinitionSpec
	use     environment.Type
	schemas map[string]*structuralschema.Structural
	envs    map[string]*typed // by version and field
}

// typed is where expressions over values of one schema are compiled.
type typed struct {
	*cel.Env
	costs *library.CostEstimator
}

func (c *compiler) conversion(between *apisv1alpha1.APIVersionConversion, path *field.Path) (*conversion, field.ErrorList) {
	made := &conversion{}
	from, err := c.version(between.From)
	if err != nil {
		return made, field.ErrorList{field.Invalid(path.Child("from"), between.From, err.Error())}
	}
	to, err := c.version(between.To)
	if err != nil {
		return made, field.ErrorList{field.Invalid(path.Child("to"), between.To, err.Error())}
	}
	var errs field.ErrorList
	for i := range between.Rules {
		said, path := &between.Rules[i], path.Child("rules").Index(i)
		r := rule{source: apis.FieldPath(said.Field), destination: apis.FieldPath(said.Destination), at: path.String()}
		if r.schema, err = find(from, r.source); err != nil {
			errs = append(errs, field.Invalid(path.Child("field"), said.Field, fmt.Sprintf("version %s %v", between.From, err)))
			continue
		}
		if _, err := find(to, r.destination); err != nil {
			errs = append(errs, field.Invalid(path.Child("destination"), said.Destination, fmt.Sprintf("version %s %v", between.To, err)))
			continue
		}
		if said.Transformation != "" {
			if r.program, err = c.program(&r, between.From, said.Transformation); err != nil {
				errs = append(errs, field.Invalid(path.Child("transformation"), said.Transformation, err.Error()))
				continue
			}
		}
		made.rules = append(made.rules, r)
	}
	for i, preserved := range between.Preserve {
		names := apis.FieldPath(preserved)
		if _, err := find(from, names); err != nil {
			errs = append(errs, field.Invalid(path.Child("preserve").Index(i), preserved, fmt.Sprintf("version %s %v", between.From, err)))
			continue
		}
		made.preserve = append(made.preserve, names)
	}
	return made, errs
}

// version returns the schema of a version.
func (c *compiler) version(name string) (*structuralschema.Structural, error) {
	if known := c.schemas[name]; known != nil {
		return known, nil
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

// find returns the schema of a field, which is nil where nothing is said of the field
// but that it may be there.
func find(in *structuralschema.Structural, names []string) (*structuralschema.Structural, error) {
	if names == nil {
		return nil, errors.New("has no such field: a path is of names and dots only")
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
			return nil, nil //nolint:nilnil // anything may be there
		}
		return nil, fmt.Errorf("has no field .%s", strings.Join(names[:i+1], "."))
	}
	return in, nil
}

// program compiles an expression over the source of a rule.
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
		return nil, fmt.Errorf("its cost cannot be told: %w", err)
	}
	if cost.Min > costLimit {
		return nil, fmt.Errorf("it costs %d or more, and the conversion of an object may cost %d: make it simpler", cost.Min, costLimit)
	}
	return env.Program(ast, cel.CostLimit(costLimit), cel.CostTracking(env.costs), cel.InterruptCheckFrequency(celconfig.CheckFrequency))
}

// env returns where expressions over the source of a rule are compiled.
func (c *compiler) env(r *rule, from string) (*typed, error) {
	declared := apiservercel.DynType
	if r.schema != nil {
		if known := model.SchemaDeclType(r.schema, r.schema.XEmbeddedResource); known != nil {
			declared = known.MaybeAssignTypeName(self)
		} else {
			r.schema = nil // it says too little
		}
	}
	key := from + " " + strings.Join(r.source, ".")
	if known := c.envs[key]; known != nil {
		return known, nil
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
	made := &typed{Env: env, costs: &library.CostEstimator{SizeEstimator: sizes{declared}}}
	c.envs[key] = made
	return made, nil
}
