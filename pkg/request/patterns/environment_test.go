package patterns

import (
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	schemacel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

const (
	costExceeded = "actual cost limit exceeded"
	largeProgram = "at most 2500 allowed"
)

func programOf(t *testing.T, expression string) (cel.Program, error) {
	t.Helper()
	env, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).StoredExpressionsEnv().Extend(cel.Variable("self", cel.StringType))
	require.NoError(t, err)
	ast, issues := env.Compile(expression)
	require.NoError(t, issues.Err())
	return env.Program(ast)
}

// TestEvaluation verifies that patterns are limited when expressions are evaluated, wherever they come from.
func TestEvaluation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		expression string
		length     int // of self
		says       string
	}{
		{"self.matches('^a+$')", 1_000_000, ""},
		{"self.matches('a{0,1000}')", 100, ""},
		{"self.matches('a{0,1000}')", 100_000, costExceeded},
		{"self.find('a{0,1000}') == ''", 100_000, costExceeded},
		{"matches(self, 'a{0,1000}')", 100_000, costExceeded},
		{"self.matches('a{0,1000}a{0,1000}')", 100, ""}, // of an expression from before the limits
		{"self.matches('a{0,1000}a{0,1000}')", 10_000, costExceeded},
		{"self.matches('" + strings.Repeat("a{0,1000}", 100) + "')", 1, "at most 50000 allowed"},
		{"self.matches('x'.replace('x', '^a{0,1000}$'))", 1000, ""},
		{"self.matches('x'.replace('x', 'a{0,1000}'))", 100_000, costExceeded},
		{"self.matches('xx'.replace('x', 'a{0,1000}'))", 1, largeProgram},
		{"matches(self, ['a{0,1000}', 'a{0,1000}'].join())", 1, largeProgram},
		{"self.find(['a{0,1000}', 'a{0,1000}'].join()) == ''", 1, largeProgram},
		{"self.findAll(['a{0,1000}', 'a{0,1000}'].join()) == []", 1, largeProgram},
		{"self.findAll(['a{0,1000}', 'a{0,1000}'].join(), 1) == []", 1, largeProgram},
		{"['', 'a'].map(x, x + x + 'b{0,1000}' + x + 'b{0,1000}').exists(p, self.matches(p))", 1, largeProgram},
		{"self.findAll('a').size() > 1", 1000, ""},
		{"self.findAll('x'.replace('x', 'a')).size() > 1", 1000, ""},
		{"self.findAll('a.*b|a').size() > 1", 100_000, costExceeded},
		{"self.findAll('a.*b|a', 2).size() > 1", 100_000, ""},
		{"self.findAll('a.*b|a', 100000).size() > 1", 100_000, costExceeded},
		{"self.findAll('a.*b|a') == [] || true", 100_000, costExceeded},
		{"lists.range(10000).all(i, 'a'.matches('x'.replace('x', 'a{0,1000}')))", 1, costExceeded},
		{"self.matches('('.substring(0, 1))", 1, "missing closing"},
	} {
		program, err := programOf(t, c.expression)
		if err == nil {
			_, _, err = program.Eval(map[string]any{"self": strings.Repeat("a", c.length)})
		}
		if c.says == "" {
			require.NoError(t, err, c.expression)
			continue
		}
		require.ErrorContains(t, err, c.says, c.expression)
	}
}

// TestEvaluationCost verifies that patterns without counted repetitions cost as much as in upstream's environment.
func TestEvaluationCost(t *testing.T) {
	t.Parallel()
	for expression, upstream := range map[string]uint64{
		"self.matches('^[a-z]+$')":    23,
		"self.find('^[a-z]+$') == ''": 23,
	} {
		program, err := programOf(t, expression)
		require.NoError(t, err)
		_, details, err := program.Eval(map[string]any{"self": strings.Repeat("a", 100)})
		require.NoError(t, err)
		require.Equal(t, upstream, *details.ActualCost(), expression)
	}
}

// TestCompilers verifies that patterns are limited in the compilers that servers use.
func TestCompilers(t *testing.T) {
	t.Parallel()
	const expression = "matches('xx'.replace('x', 'a{0,1000}'))"
	base := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())

	policies, err := plugincel.NewCompositedCompiler(base)
	require.NoError(t, err)
	rule := policies.CompileCELExpression(&validating.ValidationCondition{Expression: "request.name." + expression}, plugincel.OptionalVariableDeclarations{}, environment.StoredExpressions)
	require.Nil(t, rule.Error)
	_, _, err = rule.Program.Eval(map[string]any{"request": map[string]any{"name": "a"}})
	require.ErrorContains(t, err, largeProgram, "policies and match conditions")

	mapping, err := authenticationcel.NewDefaultCompiler().CompileClaimsExpression(&authenticationcel.ClaimValidationCondition{Expression: "claims.sub." + expression})
	require.NoError(t, err)
	_, _, err = mapping.Program.Eval(map[string]any{"claims": map[string]any{"sub": "a"}})
	require.ErrorContains(t, err, largeProgram, "issuers")

	validator := schemacel.NewValidator(&structuralschema.Structural{
		Generic:              structuralschema.Generic{Type: "string"},
		ValidationExtensions: structuralschema.ValidationExtensions{XValidations: apiextensionsv1.ValidationRules{{Rule: "self." + expression}}},
	}, false, celconfig.PerCallLimit)
	errs, _ := validator.Validate(t.Context(), nil, &structuralschema.Structural{Generic: structuralschema.Generic{Type: "string"}}, "a", nil, celconfig.RuntimeCELCostBudget)
	require.ErrorContains(t, errs.ToAggregate(), largeProgram, "validation rules of custom resources")
}
