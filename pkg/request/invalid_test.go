package request

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestLimitErrors(t *testing.T) {
	t.Parallel()
	path := field.NewPath("spec", "l")
	list := func(n int, value any) (errs field.ErrorList) {
		for i := range n {
			errs = append(errs, field.Invalid(path.Index(i), value, "must be different"))
		}
		return errs
	}
	large := strings.Split(strings.Repeat("abcd,", 100_000), ",")
	for name, c := range map[string]struct {
		errs field.ErrorList
		n    int
		last string
	}{
		"none":            {nil, 0, ""},
		"few":             {list(MaxErrors, "x"), MaxErrors, "must be different"},
		"many":            {list(100_000, "x"), MaxErrors, "must be different (there are more errors)"},
		"a large one":     {list(1, large), 1, "must be different"},
		"large ones":      {list(100_000, large), 1, "must be different (there are more errors)"},
		"large texts":     {list(MaxErrors, strings.Repeat("x", 10<<10)), 25, "must be different (there are more errors)"},
		"a large path":    {field.ErrorList{field.Required(path.Key(strings.Repeat("x", 1<<20)), "")}, 1, ""},
		"without a value": {append(field.ErrorList{}, list(MaxErrors, nil)...), MaxErrors, "must be different"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := len(c.errs)
			limited := LimitErrors(c.errs)
			require.Len(t, limited, c.n)
			require.Len(t, c.errs, before)
			for _, err := range c.errs {
				require.NotContains(t, err.Detail, "more errors")
			}
			if c.n > 0 {
				require.Equal(t, c.last, limited[c.n-1].Detail)
			}
			status := NewInvalid(schema.GroupKind{Kind: "Thing"}, "x", c.errs).ErrStatus
			require.Len(t, status.Details.Causes, c.n)
			require.Less(t, len(status.Message), 2*maxErrorBytes)
		})
	}
}
