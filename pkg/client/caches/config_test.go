package caches

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const kubeconfig = `
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://localhost:8012/services/cache"}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`

func write(t *testing.T, content string) string {
	t.Helper()
	dir := t.TempDir()
	of := func(host string) string { return strings.ReplaceAll(kubeconfig, "localhost", host) }
	for name, text := range map[string]string{"a": kubeconfig, "same": strings.ReplaceAll(kubeconfig, "services/cache", "services/cache/"), "b": of("b"), "c1": of("c"), "d": of("d"), "no": "kind: Pod\nspec: {}", "caches.yaml": content} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return filepath.Join(dir, "caches.yaml")
}

func namesOf(caches []Cache) []string {
	names := make([]string, 0, len(caches))
	for _, c := range caches {
		names = append(names, c.Name)
	}
	return names
}

func TestLoad(t *testing.T) {
	file := write(t, `
caches:
- {name: eu-b, kubeconfig: b, push: true, read: 2}
- {name: eu-a, kubeconfig: a, push: true, read: 1}
- {name: far, kubeconfig: c1, push: true}
- {name: near, kubeconfig: d, read: 7}
`)
	c, err := Load(file)
	require.NoError(t, err)
	require.Equal(t, []string{"eu-a", "eu-b", "near"}, namesOf(c.Readers()))
	require.Equal(t, []string{"eu-b", "eu-a", "far"}, namesOf(c.Pushed()))
	config, err := c.Readers()[0].Client()
	require.NoError(t, err, "relative to the file")
	require.Equal(t, "https://localhost:8012/services/cache", config.Host)
}

func TestSingle(t *testing.T) {
	require.Empty(t, Single("").Readers())
	c := Single("file")
	require.Equal(t, []string{"cache"}, namesOf(c.Readers()))
	require.Equal(t, []string{"cache"}, namesOf(c.Pushed()))
}

func TestLoadErrors(t *testing.T) {
	for name, test := range map[string]struct {
		content string
		errs    []string
	}{
		"empty":              {"", []string{"it names no cache"}},
		"not YAML":           {"caches: {", []string{"yaml"}},
		"an unknown field":   {"caches: [{name: a, kubeconfig: a, push: true, read: 1, reed: 2}]", []string{`unknown field "reed"`}},
		"a field twice":      {"caches: [{name: a, name: b, kubeconfig: a, push: true, read: 1}]", []string{`key "name" already set`}},
		"one name":           {"caches: [{name: a, kubeconfig: a, push: true, read: 1}, {name: a, kubeconfig: b, push: true, read: 2}]", []string{`caches[1] ("a"): name: caches[0] has it already`}},
		"no name":            {"caches: [{kubeconfig: a, push: true, read: 1}]", []string{`caches[0] (""): name: use up to`}},
		"no reader":          {"caches: [{name: a, kubeconfig: a, push: true}]", []string{"no cache is read: set read: 1"}},
		"nothing is pushed":  {"caches: [{name: a, kubeconfig: a, read: 1}]", []string{"no cache is pushed to: set push: true"}},
		"one server":         {"caches: [{name: a, kubeconfig: a, push: true, read: 1}, {name: b, kubeconfig: same, push: true, read: 2}]", []string{`caches[1] ("b"): kubeconfig: it leads to https://localhost:8012/services/cache, as that of "a" does`}},
		"no use":             {"caches: [{name: a, kubeconfig: a, push: true, read: 1}, {name: b, kubeconfig: b}]", []string{`("b"): it is neither pushed to nor read`}},
		"one number":         {"caches: [{name: a, kubeconfig: a, push: true, read: 1}, {name: b, kubeconfig: b, read: 1}]", []string{`("b"): read: "a" is number 1 already`}},
		"a negative number":  {"caches: [{name: a, kubeconfig: a, push: true, read: -1}]", []string{"read: -1 is negative", "no cache is read"}},
		"no kubeconfig":      {"caches: [{name: a, push: true, read: 1}]", []string{"kubeconfig: it is required"}},
		"a missing file":     {"caches: [{name: a, kubeconfig: c, push: true, read: 1}]", []string{`("a"): kubeconfig: `, "no such file"}},
		"no kubeconfig file": {"caches: [{name: a, kubeconfig: 'no', push: true, read: 1}]", []string{`("a"): kubeconfig: `, "no kind"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Load(write(t, test.content))
			for _, expected := range test.errs {
				require.ErrorContains(t, err, expected)
			}
		})
	}
	_, err := Load(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
