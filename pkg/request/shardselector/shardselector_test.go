package shardselector_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/sharding"

	"github.com/shardplane/shardplane/pkg/request/shardselector"
)

const (
	lower = "shardRange(object.metadata.cluster, '0x0000000000000000', '0x8000000000000000')"
	upper = "shardRange(object.metadata.cluster, '0x8000000000000000', '0x10000000000000000')"
)

func TestParse(t *testing.T) {
	for expression, want := range map[string]string{
		lower:                                       lower,
		" " + lower + "||" + upper:                  lower + " || " + upper,
		"(" + lower + ")":                           lower,
		strings.ReplaceAll(upper, ".", " ."):        upper,
		strings.ReplaceAll(upper, "'", `"`):         upper,
		strings.ReplaceAll(upper, "cluster", "uid"): strings.ReplaceAll(upper, "cluster", "uid"),
	} {
		selector, err := shardselector.Parse(expression)
		require.NoError(t, err, expression)
		require.Equal(t, want, selector.String())
		again, err := shardselector.Parse(selector.String())
		require.NoError(t, err)
		require.Equal(t, selector, again)
	}
	for expression, message := range map[string]string{
		lower + "||" + strings.ReplaceAll(upper, "cluster", "uid"):       `same field, got "object.metadata.cluster" and "object.metadata.uid"`,
		lower + "||" + strings.ReplaceAll(upper, "cluster", "namespace"): "same field",
		strings.ReplaceAll(lower, "cluster", "clusters"):                 "supported: object.metadata.uid, object.metadata.namespace, object.metadata.cluster",
		lower + "&&" + upper:                                                  "unsupported function",
		"object.metadata.cluster":                                             "unexpected expression kind",
		strings.ReplaceAll(lower, "0x8000000000000000", ""):                   "prefix",
		strings.ReplaceAll(lower, "0x8000000000000000", "0x0000000000000000"): "must be less than",
	} {
		_, err := shardselector.Parse(expression)
		require.ErrorContains(t, err, message, expression)
	}
}

// FuzzParse compares the parser with upstream's. Selectors by logical cluster have the grammar of
// those by UID, and selectors can be formatted and parsed again.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{lower, lower + " || " + upper, strings.ReplaceAll(lower, "cluster", "uid"), "object.metadata.cluster", lower + "//" + upper, "((" + lower + "))", "shardRange('object.metadata.cluster')"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, expression string) {
		selector, err := shardselector.Parse(expression)
		theirs, theirErr := sharding.Parse(expression)
		if theirErr == nil && !strings.Contains(expression, "cluster") {
			require.NoError(t, err)
			require.Equal(t, theirs, selector)
		}
		if err != nil {
			return
		}
		again, err := shardselector.Parse(selector.String())
		require.NoError(t, err)
		require.Equal(t, selector, again)
		byUID, err := sharding.Parse(strings.ReplaceAll(selector.String(), "cluster", "uid"))
		require.NoError(t, err)
		require.Len(t, selector.Requirements(), len(byUID.Requirements()))
	})
}
