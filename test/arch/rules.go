package arch

import (
	"fmt"
	"go/build/constraint"
	"maps"
	"slices"
	"strings"
)

// MaxLines is the number of lines that a file stays below.
const MaxLines = 500

// Rule is one rule of the house.
type Rule struct {
	Name string
	// Reason is printed with each violation: a rule that nobody can explain is
	// one that nobody should keep.
	Reason string
	// Check returns what breaks the rule, each with its place.
	Check func(*Tree) []string
}

// Rules are the rules of this house, given its layers.
func Rules(layers []Layer) []Rule {
	return []Rule{
		{
			Name:   "layers",
			Reason: "imports point to the layers above, so that a part can be understood, tested and replaced without what uses it",
			Check:  func(t *Tree) []string { return checkLayers(t, layers) },
		},
		{
			Name:   "files",
			Reason: "the files of a package form layers as packages do, so that each can be read, tested and replaced without those above it",
			Check:  func(t *Tree) []string { return checkFiles(t, upwardAllowed) },
		},
		{
			Name:   "tests stay outside",
			Reason: "what ships must not depend on test libraries or test code",
			Check:  checkTestCode,
		},
		{
			Name:   "build constraints",
			Reason: "what is tested is what ships: bugs on purpose are overlays of test/mutants, not builds of the product",
			Check:  checkConstraints,
		},
		{
			Name:   "foreign imports",
			Reason: "k8s.io/kubernetes is no library, and of the kcp SDK only the API types are contract",
			Check:  checkForeign,
		},
		{
			Name:   "go.mod",
			Reason: "no replace and no exclude, so that the module builds as a dependency as it builds here; one version of Kubernetes' modules, which are released together",
			Check:  checkMods,
		},
		{
			Name:   "package comments",
			Reason: "the architecture is told beside the code: a package that cannot say its one purpose has none",
			Check:  checkComments,
		},
		{
			Name:   "subpackages",
			Reason: "a comment that leaves out what stands below the package, or names what does not, misleads those who look there first",
			Check:  checkChildren,
		},
		{
			Name:   "table of packages",
			Reason: "the page is the map: newcomers find each package on it, in the order of the layers",
			Check:  func(t *Tree) []string { return checkArchitecture(t, layers) },
		},
		{
			Name:   "file length",
			Reason: "a file is one subject, read in one sitting",
			Check:  checkLengths,
		},
		{
			Name:   "words",
			Reason: "a key that is written in two places is changed in one of them",
			Check:  checkWords,
		},
		{
			Name:   "dialect",
			Reason: "who knows kube-apiserver learns no other words for what has one: timeouts and grace periods, who is denied, and \"reports whether\"",
			Check:  checkDialect,
		},
		{
			Name:   "waits",
			Reason: "a test that waits for time fails on a busy machine, and wastes it on an idle one: wait for the state, or for a later event, or use test/bubble",
			Check:  checkWaits,
		},
		{
			Name:   "workers",
			Reason: "a controller shares its workers among logical clusters by their names: without them one tenant can have all",
			Check:  checkWorkers,
		},
		{
			Name:   "links",
			Reason: "documentation that points nowhere is worse than none",
			Check:  checkLinks,
		},
	}
}

// Check runs the rules and returns every violation as a line to print.
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
		from, ok := placeOf(layers, pkg.Path)
		if !ok {
			bad = append(bad, fmt.Sprintf("%s has no layer: give it one in test/arch/layers.go, with the reason", pkg.Path))
			continue
		}
		if from.layer.Only == nil {
			bad = append(bad, fmt.Sprintf("%s may import whatever stands above it: give its layer an Only", pkg.Path))
		}
		for _, file := range pkg.Files {
			for _, imported := range file.Imports {
				if why := forbidden(t, layers, from, file, imported); why != "" {
					bad = append(bad, fmt.Sprintf("%s imports %s: %s", file.Name, imported, why))
				}
			}
		}
	}
	return bad
}

// forbidden says why a file at from must not import what it imports, or "".
func forbidden(t *Tree, layers []Layer, from place, file *File, imported string) string {
	local, ok := t.local(imported)
	if !ok {
		return ""
	}
	to, ok := placeOf(layers, local)
	switch {
	case !ok:
		return "it has no layer"
	case to.unit == from.unit:
		return ""
	case file.Test && to.layer.ForTests:
		return ""
	case to.layer.Leaf:
		return "nothing imports " + to.unit + ": " + to.layer.Reason
	case to.index == from.index:
		return to.unit + " and " + from.unit + " are siblings: " + from.layer.Reason
	case to.index > from.index:
		return to.unit + " stands below " + from.unit + ": " + from.layer.Reason
	case (!file.Test || onlyTests(from.unit)) && !from.layer.mayImport(to.unit):
		return "not among what " + from.unit + " may import: " + from.layer.Reason
	default:
		return ""
	}
}

// onlyTests reports whether a unit is there for tests, so that these are what its
// layer is about.
func onlyTests(unit string) bool { return within(unit, "test") }

func checkTestCode(t *Tree) []string {
	libraries := []string{"testing", "github.com/stretchr/testify", "go.uber.org/goleak"}
	var bad []string
	for _, pkg := range t.sortedPackages() {
		if testSupport(pkg.Path) {
			continue
		}
		for _, file := range pkg.Files {
			for _, imported := range file.Imports {
				local, isLocal := t.local(imported)
				if !file.Test && (slices.ContainsFunc(libraries, func(lib string) bool { return within(imported, lib) }) ||
					isLocal && testSupport(local)) {
					bad = append(bad, fmt.Sprintf("%s imports %s", file.Name, imported))
				}
			}
		}
	}
	return bad
}

// checkConstraints finds build constraints other than those of systems and
// architectures.
func checkConstraints(t *Tree) []string {
	known := func(tag string) bool {
		return slices.Contains([]string{"linux", "unix", "darwin", "windows", "amd64", "arm64"}, tag)
	}
	var bad []string
	for _, pkg := range t.sortedPackages() {
		for _, file := range pkg.Files {
			if file.Constraint == "" || file.Generated {
				continue
			}
			expression, err := constraint.Parse(file.Constraint)
			own := err != nil
			if err == nil {
				expression.Eval(func(tag string) bool {
					own = own || !known(tag)
					return known(tag)
				})
			}
			if own {
				bad = append(bad, file.Name+" is built under a condition of its own: "+file.Constraint)
			}
		}
	}
	return bad
}

// testSupport reports whether a package is for tests only: what is below test, and
// packages of helpers, which are named for the package that they help to test,
// such as clienttest.
func testSupport(pkg string) bool {
	return within(pkg, "test") || strings.HasPrefix(pkg, "pkg/") && strings.HasSuffix(pkg, "test")
}

func checkForeign(t *Tree) []string {
	var bad []string
	for _, pkg := range t.sortedPackages() {
		for _, file := range pkg.Files {
			for _, imported := range file.Imports {
				sdk := within(imported, "github.com/kcp-dev/sdk") && !within(imported, "github.com/kcp-dev/sdk/apis")
				if sdk || within(imported, "k8s.io/kubernetes") || within(imported, "github.com/kcp-dev/kcp") {
					bad = append(bad, fmt.Sprintf("%s imports %s", file.Name, imported))
				}
			}
		}
	}
	return bad
}

// released are Kubernetes' modules that carry the release in their version;
// others of k8s.io have versions of their own.
var released = []string{
	"k8s.io/api", "k8s.io/apiextensions-apiserver", "k8s.io/apimachinery", "k8s.io/apiserver", "k8s.io/cli-runtime",
	"k8s.io/client-go", "k8s.io/code-generator", "k8s.io/component-base", "k8s.io/component-helpers", "k8s.io/kms",
	"k8s.io/kubectl", "k8s.io/metrics",
}

// compat is the module of kcp's clients, with the release of Kubernetes that they are made for.
const compat = "test/compat"

func checkMods(t *Tree) []string {
	var bad []string
	dirs := slices.Sorted(maps.Keys(t.Mods))
	release, openapi := "", ""
	for _, dir := range dirs { // "." is the first
		mod := t.Mods[dir]
		name := strings.TrimPrefix(dir+"/go.mod", "./")
		for _, r := range mod.Replace {
			if dir != compat { // nobody requires it, and what it requires has modules that are not published
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

// differs reports a version that is not the first one seen.
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
			bad = append(bad, pkg.Path+" has no package comment: say in doc.go what it is for")
		}
	}
	return bad
}

func checkLengths(t *Tree) []string {
	var bad []string
	for _, pkg := range t.sortedPackages() {
		for _, file := range pkg.Files {
			if !file.Generated && file.Lines >= MaxLines {
				bad = append(bad, fmt.Sprintf("%s has %d lines, %d is the limit", file.Name, file.Lines, MaxLines))
			}
		}
	}
	return bad
}
