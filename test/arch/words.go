package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// word matches identifiers in requests and in etcd: API groups, keys of annotations, labels, finalizers and extra attributes, names with
// the prefix system:, headers, prefixes of these, parts of URLs before logical clusters and virtual workspaces, and prefixes of etcd keys.
var word = regexp.MustCompile(`^([a-z0-9-]+\.)*(kcp|shardplane)\.io(/[A-Za-z0-9._/-]*)?$|^([a-z0-9-]+\.)*(kubernetes|k8s)\.io/[A-Za-z0-9._/-]+$|^system:|^(?i:x-(kcp|remote|shardplane)-[a-z-]*)$|^/(clusters|services|shards)/[a-z/]*$|^/(registry|shardplane)[a-z-]*$`)

// wordsIn returns the matching literals of a file in their order, without import paths.
func wordsIn(file *ast.File) []string {
	var found []string
	ast.Inspect(file, func(n ast.Node) bool {
		if _, imported := n.(*ast.ImportSpec); imported {
			return false
		}
		literal, ok := n.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		if text, err := strconv.Unquote(literal.Value); err == nil && word.MatchString(text) {
			if header := http.CanonicalHeaderKey(text); strings.HasPrefix(header, "X-") {
				text = header
			}
			found = append(found, text)
		}
		return true
	})
	return found
}

// checkWords checks that product code contains each word once. contrib is excluded, because users copy it.
func checkWords(t *Tree) []string {
	files := map[string][]string{}
	for _, file := range t.files() {
		if file.Test || file.Generated || testSupport(path.Dir(file.Name)) || within(file.Name, "contrib") {
			continue
		}
		for _, text := range file.Words {
			files[text] = append(files[text], file.Name)
		}
	}
	var bad []string
	for _, text := range slices.Sorted(maps.Keys(files)) {
		if in := files[text]; len(in) > 1 {
			bad = append(bad, fmt.Sprintf("%q is written %d times, in %s: use a constant", text, len(in), strings.Join(slices.Compact(in), ", ")))
		}
	}
	return bad
}

// dialect matches identifiers that were used for timeouts, grace periods and users without access, or for several different things.
var dialect = regexp.MustCompile(`(?i)patience|farewell|stranger|settl(e|ing)|^worlds?$|^grace$|^hides$|^encodings$`)

// testDialect is dialect for tests, which may use some of the words.
var testDialect = regexp.MustCompile(`(?i)patience|farewell|settl(e|ing)|^hides$`)

// phrases matches other expressions for "reports whether" in comments and pages.
var phrases = regexp.MustCompile(`(?i)\b(says|tells) (whether|if)\b`)

// dialectIn returns the identifiers of a file that match dialect or testDialect, and the phrases in its comments, each once.
func dialectIn(file *ast.File, test bool) []string {
	words := dialect
	if test {
		words = testDialect
	}
	var found []string
	ast.Inspect(file, func(n ast.Node) bool {
		if name, ok := n.(*ast.Ident); ok && words.MatchString(name.Name) && !slices.Contains(found, name.Name) {
			found = append(found, name.Name)
		}
		return true
	})
	for _, group := range file.Comments {
		for _, phrase := range phrasesIn(group.Text()) {
			if !slices.Contains(found, phrase) {
				found = append(found, phrase)
			}
		}
	}
	return found
}

// phrasesIn returns the phrases in a text, also if they contain line breaks.
func phrasesIn(text string) []string {
	found := phrases.FindAllString(strings.Join(strings.Fields(text), " "), -1)
	for i, phrase := range found {
		found[i] = strconv.Quote(strings.ToLower(phrase))
	}
	return found
}

func checkDialect(t *Tree) []string {
	var bad []string
	for _, file := range t.files() {
		for _, name := range file.Dialect {
			if !file.Generated {
				bad = append(bad, fmt.Sprintf("%s contains %s", file.Name, name))
			}
		}
	}
	for _, doc := range t.Docs {
		content, err := os.ReadFile(filepath.Join(t.Root, doc))
		if err != nil {
			bad = append(bad, fmt.Sprintf("%s: %v", doc, err))
		}
		for _, phrase := range phrasesIn(string(content)) {
			bad = append(bad, fmt.Sprintf("%s contains %s", doc, phrase))
		}
	}
	return bad
}
