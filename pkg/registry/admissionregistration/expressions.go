package admissionregistration

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/shardplane/shardplane/pkg/registry/validate"
	"github.com/shardplane/shardplane/pkg/request/patterns"
)

const maxMatchConditions = 64

var identifier = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// compilerFor is the shared compiler of webhooks' match conditions. Creating it takes milliseconds.
var compilerFor = sync.OnceValue(func() plugincel.Compiler {
	return plugincel.NewCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
})

// expressions compiles the expressions of one object, including variables.
type expressions struct {
	compiler plugincel.Compiler
	composed *plugincel.CompositedCompiler
	options  plugincel.OptionalVariableDeclarations
	patterns patterns.Total
}

func newExpressions(hasParams bool) *expressions {
	return &expressions{
		compiler: compilerFor(),
		options:  plugincel.OptionalVariableDeclarations{HasParams: hasParams, HasAuthorizer: true},
	}
}

func newPolicyExpressions(hasParams bool) (*expressions, error) {
	composed, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		return nil, fmt.Errorf("creating the compiler of expressions: %w", err)
	}
	e := newExpressions(hasParams)
	e.compiler, e.composed = composed, composed
	return e, nil
}

func (e *expressions) check(accessor plugincel.ExpressionAccessor, options plugincel.OptionalVariableDeclarations, path *field.Path) field.ErrorList {
	return e.compile(accessor.GetExpression(), "", path, func() plugincel.CompilationResult {
		return e.compiler.CompileCELExpression(accessor, options, environment.NewExpressions)
	})
}

// compile rejects too large regular expressions before it calls compile, which compiles them. missing is the message
// for an empty expression.
func (e *expressions) compile(
	text, missing string, path *field.Path, compile func() plugincel.CompilationResult,
) field.ErrorList {
	if strings.TrimSpace(text) == "" {
		return field.ErrorList{field.Required(path, missing)}
	}
	if err := e.patterns.AddExpression(text); err != nil {
		return field.ErrorList{patterns.Invalid(path, text, err)}
	}
	if err := compile().Error; err != nil {
		return field.ErrorList{field.Invalid(path, text, err.Error())}
	}
	return nil
}

// variables compiles variables. Each of them may use the previous ones.
func (e *expressions) variables(variables []admissionregistrationv1.Variable, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := validate.Seen[string]{}
	for i := range variables {
		v, path := &variables[i], path.Index(i)
		switch {
		case v.Name == "":
			errs = append(errs, field.Required(path.Child("name"), "name is required"))
		case !identifier.MatchString(v.Name):
			errs = append(errs, field.Invalid(path.Child("name"), v.Name, "name is not a valid CEL identifier"))
		default:
			errs = append(errs, names.Add(v.Name, path.Child("name"))...)
		}
		named := &validating.Variable{Name: v.Name, Expression: v.Expression}
		compile := func() plugincel.CompilationResult {
			return e.composed.CompileAndStoreVariable(named, e.options, environment.NewExpressions)
		}
		errs = append(errs, e.compile(v.Expression, "expression is required", path.Child("expression"), compile)...)
	}
	return errs
}

func validateMatchConditions(e *expressions, conditions []admissionregistrationv1.MatchCondition, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(conditions) > maxMatchConditions {
		errs = append(errs, field.TooMany(path, len(conditions), maxMatchConditions))
	}
	names := validate.Seen[string]{}
	for i := range conditions {
		c, path := &conditions[i], path.Index(i)
		errs = append(errs, e.check((*matchconditions.MatchCondition)(c), e.options, path.Child("expression"))...)
		if c.Name == "" {
			errs = append(errs, field.Required(path.Child("name"), ""))
			continue
		}
		errs = append(errs, validate.Messages(path.Child("name"), c.Name, validation.IsQualifiedName(c.Name))...)
		errs = append(errs, names.Add(c.Name, path.Child("name"))...)
	}
	return errs
}
