// Command openapi-prune removes definitions that no served API refers to from the output of openapi-gen. The packages
// of k8s.io/api declare many more types than are served, and each definition increases the source, the binary and the
// duration of the start.
//
//	openapi-prune FILE ROOTS
//
// FILE is the generated file, which is rewritten. ROOTS contains the name of a served model on each line, e.g.
// io.k8s.api.core.v1.Pod. The definitions that these refer to are kept, too.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: openapi-prune FILE ROOTS")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "openapi-prune:", err)
		os.Exit(1)
	}
}

func run(name, rootsName string) error {
	source, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	roots, err := os.ReadFile(rootsName)
	if err != nil {
		return err
	}
	pruned, err := prune(source, strings.Fields(string(roots)))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return os.WriteFile(name, pruned, 0o644)
}

// definition is the part of the generated file about a model.
type definition struct {
	entry ast.Expr      // in the map of all
	build *ast.FuncDecl // what the entry calls
	used  []string      // the models that it refers to
}

// prune returns the generated source without definitions that the roots do not refer to.
func prune(source []byte, roots []string) ([]byte, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "", source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	imports := map[string]string{} // path by name
	for _, spec := range file.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		imports[spec.Name.Name] = path
	}
	all, err := definitions(file, imports)
	if err != nil {
		return nil, err
	}
	kept, err := reach(all, roots)
	if err != nil {
		return nil, err
	}
	var cuts []ast.Node
	for model, d := range all {
		if !kept[model] {
			cuts = append(cuts, d.entry, d.build)
		}
	}
	return cut(files, source, cuts)
}

// definitions returns the models of the file by name.
func definitions(file *ast.File, imports map[string]string) (map[string]*definition, error) {
	functions := map[string]*ast.FuncDecl{}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			functions[f.Name.Name] = f
		}
	}
	all := map[string]*definition{}
	var failed error
	ast.Inspect(functions["GetOpenAPIDefinitions"], func(n ast.Node) bool {
		entry, ok := n.(*ast.KeyValueExpr)
		if !ok {
			return true
		}
		call, ok := entry.Value.(*ast.CallExpr)
		models := modelsIn(entry.Key, imports)
		if !ok || len(models) != 1 {
			failed = errors.New("an entry of GetOpenAPIDefinitions is not of the form that openapi-gen writes")
			return false
		}
		build := functions[call.Fun.(*ast.Ident).Name]
		all[models[0]] = &definition{entry: entry, build: build, used: modelsIn(build, imports)}
		return false
	})
	if len(all) == 0 {
		return nil, errors.New("no definitions are in it")
	}
	return all, failed
}

// modelsIn returns the names of the models that code refers to, e.g. by v1.Pod{}.OpenAPIModelName().
func modelsIn(code ast.Node, imports map[string]string) []string {
	var models []string
	ast.Inspect(code, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok || s.Sel.Name != "OpenAPIModelName" {
			return true
		}
		if literal, ok := s.X.(*ast.CompositeLit); ok {
			t := literal.Type.(*ast.SelectorExpr)
			models = append(models, modelName(imports[t.X.(*ast.Ident).Name], t.Sel.Name))
		}
		return true
	})
	return models
}

// modelName returns the name of a type in OpenAPI: the path of its package with the reversed host.
func modelName(path, name string) string {
	segments := strings.Split(path, "/")
	host := strings.Split(segments[0], ".")
	slices.Reverse(host)
	return strings.Join(append(append(host, segments[1:]...), name), ".")
}

func reach(all map[string]*definition, roots []string) (map[string]bool, error) {
	kept := map[string]bool{}
	var visit func(model string)
	visit = func(model string) {
		if d := all[model]; d != nil && !kept[model] {
			kept[model] = true
			for _, used := range d.used {
				visit(used)
			}
		}
	}
	for _, model := range roots {
		if all[model] == nil {
			return nil, fmt.Errorf("there is no definition of the root %s: generate for its package, too", model)
		}
		visit(model)
	}
	return kept, nil
}

// cut removes nodes with their lines, and imports that are no longer used.
func cut(files *token.FileSet, source []byte, nodes []ast.Node) ([]byte, error) {
	original := source
	source = slices.Clone(source)
	blank := func(from, to int) {
		for i := from; i < to; i++ {
			if source[i] != '\n' {
				source[i] = ' '
			}
		}
	}
	for _, n := range nodes {
		from, to := files.Position(n.Pos()).Offset, files.Position(n.End()).Offset
		if source[to] == ',' {
			to++
		}
		blank(from, to)
	}
	file, err := parser.ParseFile(files, "", source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok {
				used[x.Name] = true
			}
		}
		return true
	})
	for _, spec := range file.Imports {
		if !used[spec.Name.Name] {
			blank(files.Position(spec.Pos()).Offset, files.Position(spec.End()).Offset)
		}
	}
	// Remove lines that are blank now, and repeated blank lines.
	before := bytes.Split(original, []byte("\n"))
	var remaining [][]byte
	for i, line := range bytes.Split(source, []byte("\n")) {
		empty := len(bytes.TrimSpace(line)) == 0
		if empty && (len(bytes.TrimSpace(before[i])) > 0 || len(remaining) > 0 && len(remaining[len(remaining)-1]) == 0) {
			continue
		}
		remaining = append(remaining, bytes.TrimRight(line, " "))
	}
	return format.Source(append(bytes.TrimSpace(bytes.Join(remaining, []byte("\n"))), '\n'))
}
