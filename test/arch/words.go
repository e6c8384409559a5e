package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// word matches what stands for one thing on the wire or in etcd: names of API
// groups, keys of annotations, labels, finalizers and extra attributes, what is named
// system: (groups, users, roles, logical clusters), headers, what any of these start with, where logical clusters and views
// begin in URLs, and prefixes of keys in etcd.
var word = regexp.MustCompile(`^([a-z0-9-]+\.)*(kcp|shardplane)\.io(/[A-Za-z0-9._/-]*)?$|^([a-z0-9-]+\.)*(kubernetes|k8s)\.io/[A-Za-z0-9._/-]+$|^system:|^(?i:x-(kcp|remote|shardplane)-[a-z-]*)$|^/(clusters|services|shards)/[a-z/]*$|^/(registry|shardplane)[a-z-]*$`)

// wordsIn returns the words among a file's literals, in their order. Import
// paths are none.
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

// checkWords finds words that product code writes as a literal more than once. What is
// below contrib is for others to copy, who have only what is public.
func checkWords(t *Tree) []string {
	places := map[string][]string{}
	for _, pkg := range t.sortedPackages() {
		if testSupport(pkg.Path) || within(pkg.Path, "contrib") {
			continue
		}
		for _, file := range pkg.Files {
			if file.Test || file.Generated {
				continue
			}
			for _, text := range file.Words {
				places[text] = append(places[text], file.Name)
			}
		}
	}
	var bad []string
	for _, text := range slices.Sorted(maps.Keys(places)) {
		if in := places[text]; len(in) > 1 {
			bad = append(bad, fmt.Sprintf("%q is written %d times, in %s: give it one constant", text, len(in), strings.Join(slices.Compact(in), ", ")))
		}
	}
	return bad
}

// dialect matches identifiers by which we once called a timeout, a grace period, somebody
// who is denied, whatever a package looks at, or, in one word, several things for which
// there are better ones.
var dialect = regexp.MustCompile(`(?i)patience|farewell|stranger|settl(e|ing)|^worlds?$|^grace$|^hides$|^encodings$`)

// testDialect is what of it tests do without, too: their worlds and strangers are parts in
// a play.
var testDialect = regexp.MustCompile(`(?i)patience|farewell|settl(e|ing)|^hides$`)

// phrases match in comments and on pages what is said in another way of what returns a boolean.
var phrases = regexp.MustCompile(`(?i)\b(says|tells) (whether|if)\b`)

// dialectIn returns the identifiers of a file that match dialect, or testDialect if it is a
// test, and the phrases of its comments, each once.
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

// phrasesIn returns the phrases of a text, wherever its lines end.
func phrasesIn(text string) []string {
	found := phrases.FindAllString(strings.Join(strings.Fields(text), " "), -1)
	for i, phrase := range found {
		found[i] = strconv.Quote(strings.ToLower(phrase))
	}
	return found
}

// checkDialect finds such words.
func checkDialect(t *Tree) []string {
	var bad []string
	for _, pkg := range t.sortedPackages() {
		for _, file := range pkg.Files {
			if file.Generated {
				continue
			}
			for _, name := range file.Dialect {
				bad = append(bad, fmt.Sprintf("%s has %s", file.Name, name))
			}
		}
	}
	for _, doc := range t.Docs {
		content, err := os.ReadFile(filepath.Join(t.Root, doc))
		if err != nil {
			bad = append(bad, fmt.Sprintf("%s: %v", doc, err))
		}
		for _, phrase := range phrasesIn(string(content)) {
			bad = append(bad, fmt.Sprintf("%s has %s", doc, phrase))
		}
	}
	return bad
}
