package arch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Tree is the source code of a module.
type Tree struct {
	// Root is the directory with go.mod.
	Root string
	// Module is the module's path.
	Module string
	// Mods are the go.mod files by directory relative to Root, which is "." for the module itself.
	Mods map[string]GoMod
	// Packages are the packages by path relative to the module, without nested modules and testdata.
	Packages map[string]*Package
	// Docs are the Markdown files, relative to Root.
	Docs []string
}

// Package is a directory with Go files.
type Package struct {
	// Path is relative to the module, e.g. pkg/storage.
	Path  string
	Files []*File
}

// File is one Go file.
type File struct {
	// Name is relative to Root.
	Name string
	// Test is set for _test.go files.
	Test bool
	// Generated is set for files with the comment for generated code.
	Generated bool
	// Doc is the package comment, or empty.
	Doc   string
	Lines int
	// Constraint is the build constraint, or empty.
	Constraint string
	Imports    []string
	// Words are literals that must not be repeated; see checkWords.
	Words []string
	// Dialect are words that should be replaced by common ones; see checkDialect.
	Dialect []string
	// Waits are lines that only sleep; see checkWaits.
	Waits []int
	// Workers are configurations of controllers. ClusterKeys are types of keys that contain a logical cluster; see checkWorkers.
	Workers     []Workers
	ClusterKeys []string
	// Names are identifiers by which other files use it; see checkFiles.
	Names Names
}

// GoMod is the part of a go.mod file that rules use, in the format of `go mod edit -json`.
type GoMod struct {
	Module  struct{ Path string }
	Require []struct{ Path, Version string }
	Replace []struct{ Old struct{ Path string } }
	Exclude []struct{ Path string }
}

// Load reads the source code in root.
func Load(ctx context.Context, root string) (*Tree, error) {
	t := &Tree{Root: root, Mods: map[string]GoMod{}, Packages: map[string]*Package{}}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		return t.visit(ctx, filepath.ToSlash(rel), d)
	})
	if err != nil {
		return nil, fmt.Errorf("reading the source code in %s: %w", root, err)
	}
	mod, ok := t.Mods["."]
	if !ok {
		return nil, fmt.Errorf("no go.mod in %s: the directory must be the root of a module", root)
	}
	t.Module = mod.Module.Path
	t.dropNestedModules()
	return t, nil
}

// visit adds a file or directory.
func (t *Tree) visit(ctx context.Context, rel string, d fs.DirEntry) error {
	switch {
	case d.IsDir():
		if rel != "." && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"testdata", "bin", "vendor"}, d.Name())) {
			return fs.SkipDir
		}
		return nil
	case d.Name() == "go.mod":
		return t.addMod(ctx, path.Dir(rel))
	case strings.HasSuffix(rel, ".md"):
		t.Docs = append(t.Docs, rel)
		return nil
	case strings.HasSuffix(rel, ".go"):
		return t.addFile(rel)
	default:
		return nil
	}
}

func (t *Tree) addMod(ctx context.Context, dir string) error {
	cmd := exec.CommandContext(ctx, "go", "mod", "edit", "-json")
	cmd.Dir = filepath.Join(t.Root, dir)
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("reading %s/go.mod with go mod edit: %w", dir, err)
	}
	var mod GoMod
	if err := json.Unmarshal(out, &mod); err != nil {
		return fmt.Errorf("decoding the output of go mod edit for %s/go.mod: %w", dir, err)
	}
	t.Mods[dir] = mod
	return nil
}

func (t *Tree) addFile(rel string) error {
	content, err := os.ReadFile(filepath.Join(t.Root, rel))
	if err != nil {
		return err
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, rel, content, parser.ParseComments)
	if err != nil {
		return err
	}
	file := &File{
		Name:      rel,
		Test:      strings.HasSuffix(rel, "_test.go"),
		Generated: ast.IsGenerated(parsed),
		Doc:       strings.TrimSpace(parsed.Doc.Text()),
		Lines:     bytes.Count(content, []byte("\n")),
		Words:     wordsIn(parsed),
		Dialect:   dialectIn(parsed, strings.HasSuffix(rel, "_test.go") || testSupport(path.Dir(rel))),
		Waits:     waitsIn(parsed, set),
		Names:     namesIn(parsed),
	}
	file.Workers, file.ClusterKeys = workersIn(parsed)
	for _, group := range parsed.Comments {
		for _, comment := range group.List {
			if constraint.IsGoBuild(comment.Text) && comment.Pos() < parsed.Package {
				file.Constraint = comment.Text
			}
		}
	}
	for _, spec := range parsed.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return err
		}
		file.Imports = append(file.Imports, imported)
	}
	dir := path.Dir(rel)
	if t.Packages[dir] == nil {
		t.Packages[dir] = &Package{Path: dir}
	}
	t.Packages[dir].Files = append(t.Packages[dir].Files, file)
	return nil
}

// dropNestedModules removes packages of nested modules, because they have their own rules.
func (t *Tree) dropNestedModules() {
	for dir := range t.Mods {
		for pkg := range t.Packages {
			if dir != "." && within(pkg, dir) {
				delete(t.Packages, pkg)
			}
		}
	}
}

// local returns imported relative to the module, and whether the module contains it.
func (t *Tree) local(imported string) (string, bool) {
	if imported == t.Module {
		return ".", true
	}
	return strings.CutPrefix(imported, t.Module+"/")
}

// sortedPackages returns the packages sorted by path.
func (t *Tree) sortedPackages() []*Package {
	return slices.SortedFunc(maps.Values(t.Packages), func(a, b *Package) int { return strings.Compare(a.Path, b.Path) })
}

// files returns the files of all packages, sorted by package.
func (t *Tree) files() (all []*File) {
	for _, pkg := range t.sortedPackages() {
		all = append(all, pkg.Files...)
	}
	return all
}

// within reports whether pkg is dir or below it.
func within(pkg, dir string) bool {
	return pkg == dir || strings.HasPrefix(pkg, dir+"/")
}
