package patterns

import (
	"regexp/syntax"
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

// TestSize checks that the size is about that of the compiled program.
func TestSize(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{
		"", "abc", "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", "a{0,1000}", "a{1000}", "a{7,}", "(a|b|c){3,5}", "(?i)january|february|march",
		".{1000}.{1000}", "((a{10}){10}){10}", "a*b+c??", `^((\d+)\.){2}(\d+)$`,
	} {
		parsed, err := syntax.Parse(pattern, syntax.Perl)
		require.NoError(t, err)
		compiled, err := syntax.Compile(parsed.Simplify())
		require.NoError(t, err)
		program := len(compiled.Inst)
		require.GreaterOrEqual(t, Size(pattern)+3, program/2, pattern)
		require.LessOrEqual(t, Size(pattern), 2*program, pattern)
	}
	require.Zero(t, Size("("), "invalid patterns are never compiled")
	require.Greater(t, Size(strings.Repeat(`\pL`, 100)), 10_000, "ranges of characters must be counted")
}

func TestParsing(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{
		"[" + strings.Repeat(`\pL`, 300_000) + "]",
		"(?i)[" + strings.Repeat("B-\U0001E900", 200_000) + "]",
		"(?si)[" + strings.Repeat(`B-\x{1E900}`, 100_000) + "]",
	} {
		require.Greater(t, parsing(pattern), MaxSize, pattern[:10])
	}
	for _, pattern := range []string{`^[\p{L}\p{N}][-\p{L}\p{N}_.]*$`, "(?i)^[a-z0-9-à-öø-ÿ]+$", "[A-Z_a-z\u00C0-\u00D6\u0370-\u037D\u037F-\u1FFF\u200C-\u200D\uFDF0-\U000EFFFF]"} {
		require.NoError(t, new(Total).Add(pattern), pattern)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	require.NoError(t, new(Total).Add("^.{0,1000}$"))
	require.ErrorContains(t, new(Total).Add(strings.Repeat(".{1000}", 300)), "at most 2500 allowed")
	require.ErrorContains(t, new(Total).Add(strings.Repeat("a{0,1000}", 100)), "at most 2500 allowed")
	var total Total
	for range MaxTotal / 2000 {
		require.NoError(t, total.Add("a{0,1000}"))
	}
	require.ErrorContains(t, total.Add("a{0,1000}"), "at most 50000 allowed")
	require.NoError(t, total.Add("a{0,1000}"), "the error must be returned once")
	total = 0
	require.NoError(t, total.Add(strings.Repeat("x", 2*MaxSize/3)))
	require.Zero(t, total, "characters without repetitions must not be counted")
}

func TestExpressions(t *testing.T) {
	t.Parallel()
	large := `'a{0,1000}a{0,1000}'`
	for _, expression := range []string{
		`self.x.matches(` + large + `)`,
		`self.x.find(` + large + `) == ''`,
		`self.l.all(x, x.matches(` + large + `))`,
		`self.x.matches('a{0,1000}' + 'a{0,1000}')`,
		`cel.bind(p, ` + large + `, self.x.matches(p))`,
		`self.x.matches(string(b` + large + `))`,
		`self.?x.orValue(` + large + `) == ''`,
	} {
		require.ErrorContains(t, CheckExpression(expression), "at most 2500 allowed", expression)
	}
	require.NoError(t, CheckExpression(`self.x.matches('^[a-z]{1,63}$') && self.y.size() < 1000`))
	require.NoError(t, CheckExpression(`self.x.matches(`), "invalid expressions are rejected by another validation")
}

func TestExcess(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]Total{
		`self.x.matches('a{0,1000}')`:             1991,
		`self.x.matches('a\x7b0,1000}')`:          1991,
		`self.x.matches('a{2}') || self.x == 'b'`: 0,
		`self.x.matches('^[a-z]+(-[a-z]+)*$')`:    0,
		`Object{spec: {'a': 'b'}}`:                0,
	} {
		require.Equal(t, want, Excess(expression), expression)
	}
}

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

// TestEvaluation checks that patterns are limited at evaluation, wherever they come from.
func TestEvaluation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		expression string
		length     int // of self
		message    string
	}{
		{"self.matches('^a+$')", 1_000_000, ""},
		{"self.matches('a{0,1000}')", 100, ""},
		{"self.matches('a{0,1000}')", 100_000, costExceeded},
		{"self.find('a{0,1000}') == ''", 100_000, costExceeded},
		{"matches(self, 'a{0,1000}')", 100_000, costExceeded},
		{"self.matches('a{0,1000}a{0,1000}')", 100, ""}, // of an expression that is older than the limits
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
		{"!isQuantity('1e1000') && isQuantity('1e3') && quantity('1e3').isGreaterThan(quantity('1Ki')) == false", 1, ""},
		{"sign(quantity('1e-1000')) == 1", 1, "more than 100 digits, or an exponent of more than 999"},
	} {
		program, err := programOf(t, c.expression)
		if err == nil {
			_, _, err = program.Eval(map[string]any{"self": strings.Repeat("a", c.length)})
		}
		if c.message == "" {
			require.NoError(t, err, c.expression)
			continue
		}
		require.ErrorContains(t, err, c.message, c.expression)
	}
}

// TestEvaluationCost checks that patterns without counted repetitions cost as much as in upstream's environment.
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

// TestCompilers checks that patterns are limited in the compilers that servers use.
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
