package arch

import (
	"fmt"
	"go/ast"
	"maps"
	"path"
	"slices"
	"strings"
)

// Names are the names in a file by which dependencies on other files of the package are found. As types are not resolved, a method is
// ignored if it is exported, is declared in two files, or has the name of a field.
type Names struct {
	// Declared are the constants, variables, types and functions of the file.
	Declared []string
	// Methods are the methods of the file. Members are the fields of its types, and the methods of its interfaces.
	Methods, Members []string
	// Used are identifiers that are not declared in the file. Selected are those after a dot.
	Used, Selected []string
}

// namesIn returns the names in a file, which must be parsed with object resolution.
func namesIn(file *ast.File) Names {
	var n Names
	imported := map[string]bool{}
	for _, spec := range file.Imports {
		name := path.Base(strings.Trim(spec.Path.Value, `"`))
		if spec.Name != nil {
			name = spec.Name.Name
		}
		imported[name] = true
	}
	for _, decl := range file.Decls {
		n.declare(decl)
	}
	keys := map[*ast.Ident]bool{} // of fields, because the parser does not resolve them
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.CompositeLit:
			if _, ok := node.Type.(*ast.MapType); !ok {
				for _, element := range node.Elts {
					if pair, ok := element.(*ast.KeyValueExpr); ok {
						if key, ok := pair.Key.(*ast.Ident); ok {
							keys[key] = true
						}
					}
				}
			}
		case *ast.StructType:
			n.Members = append(n.Members, fieldNames(node.Fields)...)
		case *ast.InterfaceType:
			n.Members = append(n.Members, fieldNames(node.Methods)...)
		case *ast.SelectorExpr:
			if of, ok := node.X.(*ast.Ident); !ok || !imported[of.Name] {
				n.Selected = append(n.Selected, node.Sel.Name)
			}
		default:
		}
		return true
	})
	for _, used := range file.Unresolved {
		if !imported[used.Name] && !keys[used] {
			n.Used = append(n.Used, used.Name)
		}
	}
	return n
}

func (n *Names) declare(decl ast.Decl) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		if decl.Recv != nil {
			n.Methods = append(n.Methods, decl.Name.Name)
		} else {
			n.Declared = append(n.Declared, decl.Name.Name)
		}
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				n.Declared = append(n.Declared, spec.Name.Name)
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					n.Declared = append(n.Declared, name.Name)
				}
			default:
			}
		}
	default:
	}
}

func fieldNames(fields *ast.FieldList) (names []string) {
	for _, field := range fields.List {
		for _, name := range field.Names {
			names = append(names, name.Name)
		}
	}
	return names
}

// dependency is a pair of files in a package: from uses declarations in to.
type dependency struct{ from, to string }

// dependencies returns the dependencies between the files of a package, and the used names.
func dependencies(pkg *Package) map[dependency][]string {
	declared, methods, members := map[string]string{}, map[string][]string{}, map[string]bool{}
	for _, file := range pkg.Files {
		if file.Test || file.Generated {
			continue
		}
		for _, name := range file.Names.Declared {
			declared[name] = file.Name
		}
		for _, name := range slices.Compact(slices.Sorted(slices.Values(file.Names.Methods))) {
			methods[name] = append(methods[name], file.Name)
		}
		for _, name := range file.Names.Members {
			members[name] = true
		}
	}
	delete(declared, "_")
	all := map[dependency][]string{}
	add := func(from, to, name string) {
		d := dependency{from, to}
		if from != to && to != "" && !slices.Contains(all[d], name) {
			all[d] = append(all[d], name)
		}
	}
	for _, file := range pkg.Files {
		if file.Test || file.Generated {
			continue
		}
		for _, name := range file.Names.Used {
			add(file.Name, declared[name], name)
		}
		for _, name := range file.Names.Selected {
			if in := methods[name]; len(in) == 1 && !members[name] && !ast.IsExported(name) {
				add(file.Name, in[0], name)
			}
		}
	}
	return all
}

// upward returns the dependencies on later files in the best order of the files that is found by moving one file at a time.
func upward(all map[dependency][]string) []dependency {
	files := map[string]bool{}
	for d := range all {
		files[d.from], files[d.to] = true, true
	}
	order := firstOrder(files, all)
	up := against(order, all)
	for improved := len(up) > 0; improved; {
		improved = false
		for i := range order {
			for j := range order {
				moved := slices.Delete(slices.Clone(order), i, i+1)
				moved = slices.Insert(moved, j, order[i])
				if fewer := against(moved, all); len(fewer) < len(up) {
					order, up, improved = moved, fewer, true
				}
			}
		}
	}
	return up
}

// firstOrder returns an order with files first if they use no others, and last if no others use them. If there is a cycle, the next file
// is the one with the greatest difference between its users and the files that it uses.
func firstOrder(files map[string]bool, all map[dependency][]string) []string {
	var first, last []string
	left := maps.Clone(files)
	for len(left) > 0 {
		var next string
		var end bool
		most := 0
		for _, file := range slices.Sorted(maps.Keys(left)) {
			uses, used := 0, 0
			for d := range all {
				if left[d.from] && left[d.to] {
					if d.from == file {
						uses++
					}
					if d.to == file {
						used++
					}
				}
			}
			if uses == 0 || used == 0 {
				next, end = file, uses != 0
				break
			}
			if next == "" || used-uses > most {
				next, most = file, used-uses
			}
		}
		delete(left, next)
		if end {
			last = append(last, next)
		} else {
			first = append(first, next)
		}
	}
	slices.Reverse(last)
	return append(first, last...)
}

// against returns the dependencies on later files in an order.
func against(order []string, all map[dependency][]string) (up []dependency) {
	at := make(map[string]int, len(order))
	for i, file := range order {
		at[file] = i
	}
	for d := range all {
		if at[d.to] > at[d.from] {
			up = append(up, d)
		}
	}
	return up
}

// checkFiles checks that the files of a package have an order in which each uses only earlier ones.
func checkFiles(t *Tree, allowed map[string]int) (bad []string) {
	for _, pkg := range t.sortedPackages() {
		if !within(pkg.Path, "pkg") && !within(pkg.Path, "cmd") {
			continue
		}
		all := dependencies(pkg)
		up, most := upward(all), allowed[pkg.Path]
		switch {
		case len(up) > most:
			var lines []string
			for _, d := range up {
				lines = append(lines, fmt.Sprintf("%s uses %s of %s", path.Base(d.from), strings.Join(all[d], ", "), path.Base(d.to)))
			}
			slices.Sort(lines)
			bad = append(bad, fmt.Sprintf("%s has %d upward dependencies between its files, but %d are allowed: %s", pkg.Path, len(up), most, strings.Join(lines, "; ")))
		case len(up) < most:
			bad = append(bad, fmt.Sprintf("%s has %d upward dependencies between its files: reduce the number in test/arch/layers.go from %d", pkg.Path, len(up), most))
		}
	}
	return bad
}
