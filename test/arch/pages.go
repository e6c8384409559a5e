package arch

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// checkChildren checks that package comments name all subpackages, and that their lists of subpackages contain nothing else.
func checkChildren(t *Tree) []string {
	var bad []string
	for _, pkg := range t.sortedPackages() {
		children := t.children(pkg.Path)
		var docs []string
		for _, file := range pkg.Files {
			docs = append(docs, file.Doc)
		}
		comment := strings.Join(docs, "")
		if comment == "" || len(children) == 0 {
			continue
		}
		words := strings.FieldsFunc(comment, func(r rune) bool { return !isName(r) })
		for _, child := range children {
			if !slices.Contains(words, child) {
				bad = append(bad, fmt.Sprintf("the comment of %s does not name its subpackage %s", pkg.Path, child))
			}
		}
		for _, entry := range listed(comment, children) {
			if !slices.Contains(children, entry) && entry != path.Base(pkg.Path) {
				bad = append(bad, fmt.Sprintf("the comment of %s lists %s, which is not a subpackage", pkg.Path, entry))
			}
		}
	}
	return bad
}

// children returns the names of the directories in dir that contain packages at any depth.
func (t *Tree) children(dir string) []string {
	var names []string
	for _, pkg := range t.sortedPackages() {
		if rest, ok := strings.CutPrefix(pkg.Path, dir+"/"); ok {
			name, _, _ := strings.Cut(rest, "/")
			names = append(names, name)
		}
	}
	return slices.Compact(names)
}

func isName(r rune) bool {
	return r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
}

// listed returns the entries of lists of children in a comment. A list is a block of indented lines of which at least half begin with the
// name of a child. Lines with further indentation belong to the line above.
func listed(comment string, children []string) []string {
	var all []string
	for block := range strings.SplitSeq(comment, "\n\n") {
		var entries []string
		known := 0
		for line := range strings.SplitSeq(block, "\n") {
			rest, indented := strings.CutPrefix(line, "\t")
			entry := strings.TrimLeft(rest, "│├└─ ")
			if !indented || entry == "" || strings.HasPrefix(rest, " ") {
				continue
			}
			name := entry[:len(entry)-len(strings.TrimLeftFunc(entry, isName))]
			if slices.Contains(children, name) {
				known++
			}
			entries = append(entries, name)
		}
		if known > 0 && 2*known >= len(entries) {
			all = append(all, entries...)
		}
	}
	return all
}

// architecturePage contains the table of packages.
const architecturePage = "docs/architecture.md"

var (
	packageRow = regexp.MustCompile("(?m)^\\| (`[^|]*`) \\|")
	codeName   = regexp.MustCompile("`([^`]+)`")
)

// checkArchitecture checks that the table of packages in docs/architecture.md contains each unit in the order of the layers, and that all
// its names exist.
func checkArchitecture(t *Tree, layers []Layer) []string {
	content, err := os.ReadFile(filepath.Join(t.Root, architecturePage))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return []string{err.Error()}
	}
	var bad, names []string
	last, lastName := 0, ""
	for _, row := range packageRow.FindAllStringSubmatch(string(content), -1) {
		for _, match := range codeName.FindAllStringSubmatch(row[1], -1) {
			name := strings.TrimSuffix(match[1], "/…")
			names = append(names, name)
			if len(t.children(name)) == 0 && t.Packages[name] == nil {
				bad = append(bad, fmt.Sprintf("%s lists %s, which does not exist", architecturePage, name))
				continue
			}
			index := lastLayer(t, layers, name)
			if index < last {
				bad = append(bad, fmt.Sprintf("%s lists %s after %s, which is below it", architecturePage, name, lastName))
			}
			if index >= last {
				last, lastName = index, name
			}
		}
	}
	for _, pkg := range t.sortedPackages() {
		if !slices.ContainsFunc(names, func(name string) bool { return within(pkg.Path, name) }) {
			bad = append(bad, fmt.Sprintf("%s does not list %s", architecturePage, pkg.Path))
		}
	}
	return bad
}

// lastLayer returns the index of the lowest layer with packages in dir.
func lastLayer(t *Tree, layers []Layer, dir string) int {
	last := 0
	for _, pkg := range t.sortedPackages() {
		if within(pkg.Path, dir) {
			at, _ := positionOf(layers, pkg.Path)
			last = max(last, at.index)
		}
	}
	return last
}
