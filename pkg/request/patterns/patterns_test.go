package patterns

import (
	"regexp/syntax"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSize verifies that the size is about that of the program which is compiled.
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
	require.Zero(t, Size("("), "it is never compiled")
	require.Greater(t, Size(strings.Repeat(`\pL`, 100)), 10_000, "ranges of characters need memory, too")
}

// TestParsing verifies that patterns which take long to parse are not even parsed.
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
		require.NoError(t, Check(pattern), pattern)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	require.NoError(t, Check("^.{0,1000}$"))
	require.ErrorContains(t, Check(strings.Repeat(".{1000}", 300)), "at most 2500 allowed")
	require.ErrorContains(t, Check(strings.Repeat("a{0,1000}", 100)), "at most 2500 allowed")
	var total Total
	for range MaxTotal / 2000 {
		require.NoError(t, total.Add("a{0,1000}"))
	}
	require.ErrorContains(t, total.Add("a{0,1000}"), "at most 50000 allowed")
	require.NoError(t, total.Add("a{0,1000}"), "it is reported once")
	total = 0
	require.NoError(t, total.Add(strings.Repeat("x", 2*MaxSize/3)))
	require.Zero(t, total, "its characters are limited otherwise")
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
	require.NoError(t, CheckExpression(`self.x.matches(`), "its own validation reports it")
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
