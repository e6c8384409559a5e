package mutants

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// ActiveEnv is an environment variable. It must be set to the name of the active mutant of a program with the overlay of Switchable. If it
// is not set, no mutant is active.
const ActiveEnv = "SHARDPLANE_MUTANT"

// Switchable is Overlay for mutants of which at most one is active at runtime, so that all need only one build. If mutants change a
// function, it contains all bodies:
//
//	if activeMutant == "name" { changed body } else { original body }
//
// A mutant must only change bodies of functions and remove imports.
func Switchable(dir, root string, names ...string) (string, error) {
	all, original := All(), map[string]string{}
	bodies := map[string]map[body]string{}
	for _, name := range names {
		changed := map[string]string{}
		for _, edit := range all[name].Edits {
			if err := edit.apply(root, changed); err != nil {
				return "", fmt.Errorf("mutant %s: %w", name, err)
			}
		}
		for file, text := range changed {
			raw, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				return "", err
			}
			original[file] = string(raw)
			found, err := changedBodies(string(raw), text)
			if err != nil {
				return "", fmt.Errorf("mutant %s: %s: %w", name, file, err)
			}
			if bodies[file] == nil {
				bodies[file] = map[body]string{}
			}
			for at, changed := range found {
				bodies[file][at] += fmt.Sprintf("if activeMutant == %q %s else ", name, changed)
			}
		}
	}
	files := map[string]string{}
	for file, text := range original {
		last := slices.SortedFunc(maps.Keys(bodies[file]), func(a, b body) int { return b.start - a.start })
		for _, at := range last {
			text = text[:at.start] + "{" + bodies[file][at] + text[at.start:at.end] + "}" + text[at.end:]
		}
		files[file] = text
		f, err := parser.ParseFile(token.NewFileSet(), file, text, parser.PackageClauseOnly)
		if err != nil {
			return "", err
		}
		files[filepath.Join(filepath.Dir(file), "active_mutant.go")] = fmt.Sprintf("package %s\n\nimport \"os\"\n\nvar activeMutant = os.Getenv(%q)\n", f.Name.Name, ActiveEnv)
	}
	return writeOverlay(dir, root, files)
}

// body is the position of the body of a function, including its braces.
type body struct{ start, end int }

// changedBodies returns the bodies in changed that differ from the original file.
func changedBodies(original, changed string) (map[body]string, error) {
	before, err := declarations(original)
	if err != nil {
		return nil, err
	}
	after, err := declarations(changed)
	if err != nil {
		return nil, err
	}
	if len(before) != len(after) {
		return nil, fmt.Errorf("has %d declarations, but %d with the mutant", len(before), len(after))
	}
	bodies := map[body]string{}
	for i, d := range before {
		switch {
		case d.head != after[i].head:
			return nil, fmt.Errorf("the mutant changes more than the body of a function: %s", after[i].head)
		case d.text != after[i].text:
			bodies[d.body] = after[i].text
		}
	}
	return bodies, nil
}

// declaration is a declaration in a file. If it is a function, text is its body, and head the rest.
type declaration struct {
	head, text string
	body       body
}

// declarations returns all declarations in a file, except imports.
func declarations(text string) ([]declaration, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", text, 0)
	if err != nil {
		return nil, err
	}
	at := func(p token.Pos) int { return files.Position(p).Offset }
	var found []declaration
	for _, d := range file.Decls {
		if general, ok := d.(*ast.GenDecl); ok && general.Tok == token.IMPORT {
			continue
		}
		function, ok := d.(*ast.FuncDecl)
		if !ok || function.Body == nil {
			found = append(found, declaration{head: text[at(d.Pos()):at(d.End())]})
			continue
		}
		b := body{at(function.Body.Pos()), at(function.Body.End())}
		found = append(found, declaration{text[at(d.Pos()):b.start], text[b.start:b.end], b})
	}
	return found, nil
}
