package library

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardplane/shardplane/test/harness"
)

const module = "github.com/shardplane/shardplane/"

// public contains the versioned packages. pkg/request/hashrange is public because pkg/client has aliases of its types.
var public = []string{
	"pkg/client", "pkg/client/clienttest", "pkg/client/documents", "pkg/client/kinds", "pkg/client/ring", "pkg/client/shards",
	"pkg/reconcile", "pkg/reconcile/events", "pkg/request/hashrange",
}

var update = flag.Bool("update", false, "write exported declarations to testdata/api, and removed ones to its incompatible.txt")

// TestAPI checks that the exported declarations of the public packages have not changed. If a change is intended, the files in testdata/api
// must be updated as described in README.md.
func TestAPI(t *testing.T) {
	load := loader(t)
	var lost []string
	for _, path := range public {
		golden := filepath.Join("testdata", "api", strings.ReplaceAll(strings.TrimPrefix(path, "pkg/"), "/", "_")+".txt")
		before, err := os.ReadFile(golden)
		if err != nil {
			require.ErrorIs(t, err, os.ErrNotExist)
		}
		pkg, err := load.Import(module + path)
		require.NoError(t, err)
		old, now := strings.FieldsFunc(string(before), isNewline), exported(pkg)
		if *update {
			require.NoError(t, os.WriteFile(golden, []byte(strings.Join(now, "\n")+"\n"), 0o600))
		}
		lost = append(lost, broken(pkg.Name(), old, now)...)
		if !*update {
			require.Equal(t, old, now, "the exported declarations of %s have changed: run `go test ./test/library -run TestAPI -update`. Removed and changed declarations break users, and must be described in docs/support.md", path)
		}
	}
	if *update && len(lost) > 0 {
		file, err := os.OpenFile(incompatible, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		require.NoError(t, err)
		_, err = file.WriteString(strings.Join(lost, "\n") + "\n")
		require.NoError(t, err)
		require.NoError(t, file.Close())
	}
}

// broken returns the declarations that break users of a package: removed and changed ones, and new methods of interfaces.
func broken(pkg string, old, now []string) []string {
	var lines []string
	for _, line := range old {
		if !slices.Contains(now, line) {
			lines = append(lines, pkg+": "+line)
		}
	}
	for _, line := range now {
		of, _, _ := strings.Cut(nameOf(line), ".")
		isInterface := func(line string) bool {
			return strings.HasPrefix(line, "type ") && nameOf(line) == of && strings.HasSuffix(line, " interface")
		}
		if !slices.Contains(old, line) && strings.HasPrefix(line, "method ") && slices.ContainsFunc(old, isInterface) {
			lines = append(lines, pkg+": "+line)
		}
	}
	return lines
}

var incompatible = filepath.Join("testdata", "api", "incompatible.txt")

// TestIncompatibleChangesAreDocumented checks that docs/support.md describes all removed and changed declarations.
func TestIncompatibleChangesAreDocumented(t *testing.T) {
	text := harness.ReadFile(t, "../../docs/support.md")
	lines := harness.ReadFile(t, incompatible)
	for _, line := range strings.FieldsFunc(string(lines), isNewline) {
		pkg, what, _ := strings.Cut(line, ": ")
		require.Contains(t, string(text), "`"+pkg+"."+nameOf(what)+"`", "%s was removed or changed: describe the migration in docs/support.md", line)
	}
}

// nameOf returns the name in a line of a golden file, e.g. Informer.Run.
func nameOf(line string) string {
	_, rest, _ := strings.Cut(line, " ")
	return rest[:strings.IndexAny(rest+" ", " ([")]
}

func isNewline(r rune) bool { return r == '\n' }

// loader imports packages from export data.
func loader(t *testing.T) types.Importer {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}
	for _, path := range public {
		args = append(args, module+path)
	}
	out, err := exec.CommandContext(t.Context(), "go", args...).Output()
	require.NoError(t, err)
	files := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		path, file, _ := strings.Cut(lines.Text(), " ")
		files[path] = file
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(files[path]) })
}

// exported returns the exported declarations of a package, one per line.
func exported(pkg *types.Package) []string {
	lines := map[string]bool{}
	add := func(format string, args ...any) { lines[fmt.Sprintf(format, args...)] = true }
	name := func(other *types.Package) string {
		if other == pkg {
			return ""
		}
		return other.Name()
	}
	text := func(t types.Type) string { return types.TypeString(t, name) }
	for _, n := range pkg.Scope().Names() {
		obj := pkg.Scope().Lookup(n)
		if !obj.Exported() {
			continue
		}
		switch obj := obj.(type) {
		case *types.Func:
			add("func %s%s", n, strings.TrimPrefix(text(obj.Type()), "func"))
		case *types.Const:
			add("const %s %s = %s", n, text(obj.Type()), obj.Val())
		case *types.Var:
			add("var %s %s", n, text(obj.Type()))
		case *types.TypeName:
			if obj.IsAlias() {
				add("type %s = %s", n, text(types.Unalias(obj.Type())))
				continue
			}
			exportedOf(n, obj, add, text)
		}
	}
	return slices.Sorted(maps.Keys(lines))
}

// exportedOf adds the exported fields and methods of a type, including those of embedded types.
func exportedOf(n string, obj *types.TypeName, add func(string, ...any), text func(types.Type) string) {
	named, ok := obj.Type().(*types.Named)
	if !ok {
		return
	}
	parameters := ""
	if named.TypeParams().Len() > 0 {
		parameters = strings.TrimPrefix(text(named), obj.Name())
	}
	switch under := named.Underlying().(type) {
	case *types.Struct:
		add("type %s%s struct", n, parameters)
		for field := range under.Fields() {
			if field.Exported() {
				add("field %s.%s %s", n, field.Name(), text(field.Type()))
			}
		}
	case *types.Interface:
		add("type %s%s interface", n, parameters)
	default:
		add("type %s%s %s", n, parameters, text(under))
	}
	methods := types.NewMethodSet(types.NewPointer(named))
	if types.IsInterface(named) {
		methods = types.NewMethodSet(named)
	}
	for method := range methods.Methods() {
		if method.Obj().Exported() {
			add("method %s.%s%s", n, method.Obj().Name(), strings.TrimPrefix(text(method.Type()), "func"))
		}
	}
}
