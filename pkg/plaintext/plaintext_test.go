package plaintext_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/pkg/plaintext"
)

func TestEscape(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"plain: ├── ünïcode 東京 \u00a0":   "plain: ├── ünïcode 東京 \u00a0",
		"\x1b[2J\x1b]0;title\a":          `\x1b[2J\x1b]0;title\a`,
		"a\nb\rc\td\x7f\x00":             `a\nb\rc\td\x7f\x00`,
		"\u009b31m":                      `\u009b31m`,
		"admin\u202ednammoc\u2066\ufeff": `admin\u202ednammoc\u2066\ufeff`,
		"\xff\xfe":                       "\ufffd\ufffd",
	} {
		require.Equal(t, want, plaintext.Escape(text))
	}
}

type named string

func TestFprintf(t *testing.T) {
	var out bytes.Buffer
	_, err := plaintext.Fprintf(&out, "%s\t%d %v %s\n", named("a\x1b"), 7, true, errors.New("b\nc"))
	require.NoError(t, err)
	require.Equal(t, "a\\x1b\t7 true b\\nc\n", out.String())
}
