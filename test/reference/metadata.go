package reference

import (
	"fmt"
	"go/ast"
	"iter"
	"regexp"
	"strings"
	"testing"
)

// Metadata is the key of an annotation, label or finalizer.
type Metadata struct {
	Key string
	// Kind is annotation, label or finalizer.
	Kind            string
	On, By, Meaning string
}

var (
	metadataName = regexp.MustCompile(`^\w*(Annotation|Label|Finalizer)(Key|KeyPrefix|Prefix|Name|KeyLegacy)?$|^Annotation\w+Key$|^MirroredPrefix$`)
	metadataKind = regexp.MustCompile(`Annotation|Label|Finalizer`)
	kcpModules   = regexp.MustCompile(`^github\.com/kcp-dev/(sdk|logicalcluster)/`)
)

// AllMetadata returns the keys that the product declares. The comment of each constant contains the directive
//
//	//reference:metadata [<kind> ]<objects> | <set by>
//
// or //reference:none. It also returns the names of the constants of kcp that the product uses, with the names of their imports.
func AllMetadata(t testing.TB, source Source) (all []Metadata, used map[string]bool) {
	t.Helper()
	used = map[string]bool{}
	for dir, pkg := range source {
		for _, file := range pkg.Files {
			for spec, doc := range specs(file) {
				declared, err := pkg.metadata(file, spec, doc)
				if err != nil {
					t.Errorf("%s: %v", dir, err)
				}
				all = append(all, declared...)
			}
			for _, name := range kcpKeys(file) {
				used[name] = true
			}
		}
	}
	return all, used
}

// metadata returns the keys that a specification declares.
func (p *Package) metadata(file *ast.File, spec *ast.ValueSpec, doc *ast.CommentGroup) (all []Metadata, err error) {
	for i, name := range spec.Names {
		if !metadataName.MatchString(name.Name) || i >= len(spec.Values) || spec.Type != nil {
			continue
		}
		key, ok := p.text(file, spec.Values[i])
		if !ok { // an alias of a constant of kcp
			continue
		}
		verb, text := firstDirective(doc)
		switch verb {
		case "none":
		case "metadata":
			on, by, _ := strings.Cut(text, " | ")
			m := Metadata{Key: key, Kind: strings.ToLower(metadataKind.FindString(name.Name)), On: on, By: by, Meaning: description(paragraph(doc))}
			for _, kind := range []string{"annotation", "label"} {
				if rest, ok := strings.CutPrefix(on, kind+" "); ok {
					m.Kind, m.On = kind, rest
				}
			}
			all = append(all, m)
		default:
			return nil, fmt.Errorf("%s must have a comment with //reference:metadata, for docs/reference/annotations.md", name.Name)
		}
	}
	return all, nil
}

// kcpKeys returns the constants of kcp with keys that a file uses, with the name of the import.
func kcpKeys(file *ast.File) (names []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok || !metadataName.MatchString(s.Sel.Name) || strings.HasSuffix(s.Sel.Name, "ToLabel") {
			return true
		}
		if pkg, ok := s.X.(*ast.Ident); ok && kcpModules.MatchString(importPath(file, pkg.Name)) {
			names = append(names, pkg.Name+"."+s.Sel.Name)
		}
		return true
	})
	return names
}

// directives yields the verbs and the texts of lines //reference:<verb> <text>.
func directives(doc *ast.CommentGroup) iter.Seq2[string, string] {
	return func(yield func(verb, text string) bool) {
		if doc == nil {
			return
		}
		for _, line := range doc.List {
			if rest, ok := strings.CutPrefix(line.Text, "//reference:"); ok {
				if verb, text, _ := strings.Cut(rest, " "); !yield(verb, text) {
					return
				}
			}
		}
	}
}

func firstDirective(doc *ast.CommentGroup) (verb, text string) {
	for verb, text = range directives(doc) {
		break
	}
	return verb, text
}

// paragraph returns the first paragraph of a comment, in one line.
func paragraph(doc *ast.CommentGroup) string {
	first, _, _ := strings.Cut(doc.Text(), "\n\n")
	return strings.Join(strings.Fields(first), " ")
}
