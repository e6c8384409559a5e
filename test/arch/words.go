package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// word matches what stands for one thing on the wire or in etcd: names of API
// groups, keys of annotations, labels, finalizers and extra attributes, groups of
// the system, what any of these start with, and prefixes of keys in etcd.
var word = regexp.MustCompile(`^([a-z0-9-]+\.)*(kcp|shardplane)\.io(/[A-Za-z0-9._/-]*)?$|^system:kcp:|^/(registry|shardplane)[a-z-]*$`)

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
			found = append(found, text)
		}
		return true
	})
	return found
}

// checkWords finds words that product code writes as a literal more than once.
func checkWords(t *Tree) []string {
	places := map[string][]string{}
	for _, pkg := range t.sortedPackages() {
		if testSupport(pkg.Path) {
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
