package arch

import (
	"fmt"
	"go/build/constraint"
	"maps"
	"path"
	"slices"
	"strings"
)

// MaxLines is a limit. Files must have fewer lines.
const MaxLines = 500

// Rule is a rule for the source code.
type Rule struct {
	Name string
	// Reason is printed with each violation.
	Reason string
	// Check returns the violations, with their positions.
	Check func(*Tree) []string
}

// Rules returns all rules for a module with these layers.
func Rules(layers []Layer) []Rule {
	return []Rule{
		{
			Name:   "layers",
			Reason: "a package must only import layers above, so that it can be understood, tested and replaced without its users",
			Check:  func(t *Tree) []string { return checkLayers(t, layers) },
		},
		{
			Name:   "files",
			Reason: "files of a package form layers like packages, so that each can be understood and tested without its users",
			Check:  func(t *Tree) []string { return checkFiles(t, upwardAllowed) },
		},
		{
			Name:   "test code",
			Reason: "the product must not depend on test libraries or test code",
			Check:  checkTestCode,
		},
		{
			Name:   "build constraints",
			Reason: "tests must run the code of the product. Intentional bugs are overlays of test/mutants",
			Check:  checkConstraints,
		},
		{
			Name:   "foreign imports",
			Reason: "k8s.io/kubernetes is not a library, and only the API types of the kcp SDK are stable",
			Check:  checkForeign,
		},
		{
			Name:   "go.mod",
			Reason: "without replace and exclude, the module builds in the same way as a dependency. Modules of Kubernetes must have one version, because they are released together",
			Check:  checkMods,
		},
		{
			Name:   "package comments",
			Reason: "the purpose of each package must be documented",
			Check:  checkComments,
		},
		{
			Name:   "subpackages",
			Reason: "package comments should list exactly the existing subpackages",
			Check:  checkChildren,
		},
		{
			Name:   "table of packages",
			Reason: "new developers should find each package on this page, in the order of the layers",
			Check:  func(t *Tree) []string { return checkArchitecture(t, layers) },
		},
		{
			Name:   "file length",
			Reason: "a file should have one subject",
			Check:  checkLengths,
		},
		{
			Name:   "words",
			Reason: "if a key is written twice, a change may only affect one of them",
			Check:  checkWords,
		},
		{
			Name:   "dialect",
			Reason: "use the terms of kube-apiserver: timeout, grace period, denied, and \"reports whether\"",
			Check:  checkDialect,
		},
		{
			Name:   "waits",
			Reason: "if a test sleeps, it fails on a slow machine and is slow on a fast one: wait for the state or an event, or use test/bubble",
			Check:  checkWaits,
		},
		{
			Name:   "workers",
			Reason: "workers of a controller are shared fairly by logical cluster. If keys do not contain it, one tenant can use all workers",
			Check:  checkWorkers,
		},
		{
			Name:   "links",
			Reason: "links in the documentation must work",
			Check:  checkLinks,
		},
	}
}

// Check returns the violations of all rules as lines.
func Check(t *Tree, rules []Rule) []string {
	var all []string
	for _, rule := range rules {
		for _, violation := range rule.Check(t) {
			all = append(all, fmt.Sprintf("%s: %s (%s)", rule.Name, violation, rule.Reason))
		}
	}
	return all
}

func checkLayers(t *Tree, layers []Layer) []string {
	var bad []string
	for _, pkg := range t.sortedPackages() {
		from, ok := positionOf(layers, pkg.Path)
		if !ok {
			bad = append(bad, fmt.Sprintf("%s has no layer: add it to test/arch/layers.go with a reason", pkg.Path))
			continue
		}
		if from.layer.Only == nil {
			bad = append(bad, fmt.Sprintf("the layer of %s must have a list of imports: set Only", pkg.Path))
		}
		for _, file := range pkg.Files {
			for _, imported := range file.Imports {
				if reason := forbidden(t, layers, from, file, imported); reason != "" {
					bad = append(bad, fmt.Sprintf("%s imports %s: %s", file.Name, imported, reason))
				}
			}
		}
	}
	return bad
}

// forbidden returns the reason why a file must not import a package, or "".
func forbidden(t *Tree, layers []Layer, from position, file *File, imported string) string {
	local, ok := t.local(imported)
	if !ok {
		return ""
	}
	to, ok := positionOf(layers, local)
	switch {
	case !ok:
		return "it has no layer"
	case to.unit == from.unit:
		return ""
	case file.Test && to.layer.ForTests:
		return ""
	case to.layer.Leaf:
		return to.unit + " must not be imported: " + to.layer.Reason
	case to.index == from.index:
		return to.unit + " and " + from.unit + " are in the same layer: " + from.layer.Reason
	case to.index > from.index:
		return to.unit + " is below " + from.unit + ": " + from.layer.Reason
	case (!file.Test || within(from.unit, "test")) && !from.layer.mayImport(to.unit):
		return from.unit + " must not import it: " + from.layer.Reason
	default:
		return ""
	}
}

func checkTestCode(t *Tree) []string {
	libraries := []string{"testing", "github.com/stretchr/testify", "go.uber.org/goleak"}
	var bad []string
	for _, file := range t.files() {
		if file.Test || testSupport(path.Dir(file.Name)) {
			continue
		}
		for _, imported := range file.Imports {
			local, isLocal := t.local(imported)
			if isLocal && testSupport(local) || slices.ContainsFunc(libraries, func(lib string) bool { return within(imported, lib) }) {
				bad = append(bad, fmt.Sprintf("%s imports %s", file.Name, imported))
			}
		}
	}
	return bad
}

// checkConstraints returns build constraints with other tags than operating systems and architectures.
func checkConstraints(t *Tree) []string {
	permitted := func(tag string) bool {
		return slices.Contains([]string{"linux", "unix", "darwin", "windows", "amd64", "arm64"}, tag)
	}
	var bad []string
	for _, file := range t.files() {
		if file.Constraint == "" || file.Generated {
			continue
		}
		expression, err := constraint.Parse(file.Constraint)
		other := err != nil
		if err == nil {
			expression.Eval(func(tag string) bool {
				other = other || !permitted(tag)
				return permitted(tag)
			})
		}
		if other {
			bad = append(bad, file.Name+" has a build constraint: "+file.Constraint)
		}
	}
	return bad
}

// testSupport reports whether a package is for tests only: in test, or a package of helpers with a name like clienttest.
func testSupport(pkg string) bool {
	return within(pkg, "test") || strings.HasPrefix(pkg, "pkg/") && strings.HasSuffix(pkg, "test")
}

func checkForeign(t *Tree) []string {
	var bad []string
	for _, file := range t.files() {
		for _, imported := range file.Imports {
			sdk := within(imported, "github.com/kcp-dev/sdk") && !within(imported, "github.com/kcp-dev/sdk/apis")
			if sdk || within(imported, "k8s.io/kubernetes") || within(imported, "github.com/kcp-dev/kcp") {
				bad = append(bad, fmt.Sprintf("%s imports %s", file.Name, imported))
			}
		}
	}
	return bad
}

// released are modules with versions of Kubernetes releases. Other modules of k8s.io have different versions.
var released = []string{
	"k8s.io/api", "k8s.io/apiextensions-apiserver", "k8s.io/apimachinery", "k8s.io/apiserver", "k8s.io/cli-runtime",
	"k8s.io/client-go", "k8s.io/code-generator", "k8s.io/component-base", "k8s.io/component-helpers", "k8s.io/kms",
	"k8s.io/kubectl", "k8s.io/metrics",
}

// compat is a module with the clients of kcp, which require another release of Kubernetes.
const compat = "test/compat"

func checkMods(t *Tree) []string {
	var bad []string
	dirs := slices.Sorted(maps.Keys(t.Mods))
	release, openapi := "", ""
	for _, dir := range dirs { // "." is the first
		mod := t.Mods[dir]
		name := strings.TrimPrefix(dir+"/go.mod", "./")
		for _, r := range mod.Replace {
			if dir != compat { // no module requires it, and its dependencies require modules that are not published
				bad = append(bad, fmt.Sprintf("%s replaces %s", name, r.Old.Path))
			}
		}
		for _, e := range mod.Exclude {
			bad = append(bad, fmt.Sprintf("%s excludes %s", name, e.Path))
		}
		for _, req := range mod.Require {
			switch {
			case req.Path == "k8s.io/kubernetes" || req.Path == "github.com/kcp-dev/kcp":
				bad = append(bad, fmt.Sprintf("%s requires %s", name, req.Path))
			case dir == compat:
			case req.Path == "k8s.io/kube-openapi":
				bad = append(bad, differs(name, req.Path, req.Version, &openapi)...)
			case slices.Contains(released, req.Path):
				bad = append(bad, differs(name, req.Path, req.Version, &release)...)
			}
		}
	}
	return bad
}

// differs returns a violation if the version is not the first one.
func differs(name, module, version string, first *string) []string {
	if *first == "" {
		*first = version
	}
	if version == *first {
		return nil
	}
	return []string{fmt.Sprintf("%s requires %s %s, but %s is used elsewhere", name, module, version, *first)}
}

func checkComments(t *Tree) []string {
	var bad []string
	for _, pkg := range t.sortedPackages() {
		if !slices.ContainsFunc(pkg.Files, func(f *File) bool { return f.Doc != "" }) {
			bad = append(bad, pkg.Path+" has no package comment: describe its purpose in doc.go")
		}
	}
	return bad
}

func checkLengths(t *Tree) []string {
	var bad []string
	for _, file := range t.files() {
		if !file.Generated && file.Lines >= MaxLines {
			bad = append(bad, fmt.Sprintf("%s has %d lines, but the limit is %d", file.Name, file.Lines, MaxLines))
		}
	}
	return bad
}
