// Package mutants holds bugs that are made on purpose, each of which breaks a
// rule that matters, and builds the product with them: a suite that lets one
// pass does not hold its rule.
//
// A mutant is an exact-match patch of product files. `go build -overlay` and
// `go test -overlay` take the patched files for the original ones, so that the
// product itself has no line for it:
//
//	mutant ── Before, After ──► patched copy of the file ──► overlay ──► binary, or tests of a package
//
// One build has all mutants that tests of packages catch, of which each run activates one.
// To add one, put it into the table of a file of this package: the rule that it
// breaks, the text that it replaces, which must be in the file exactly once, and
// which test catches it. `go test -short ./test/mutants` checks that each still
// fits; `make mutants` that all of them are caught. Those of
// SuiteRobustness and SuiteIsolation are caught there, in runs against servers
// that have several of them at once.
package mutants

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The suites that run servers with mutants, in TestCatchesMutants.
const (
	SuiteRobustness = "./test/robustness"
	SuiteIsolation  = "./test/isolation"
)

// Mutant breaks one rule of the product.
type Mutant struct {
	Name string
	// Rule is what no longer holds.
	Rule  string
	Edits []Edit
	// CaughtBy is the package whose tests find the mutant, and Test the name of
	// the one that does. For the suites Test stays empty.
	CaughtBy, Test string
}

// Edit replaces text in a file.
type Edit struct {
	// File is relative to the root of the module.
	File string
	// Before is in the file exactly once. After takes its place.
	Before, After string
}

// All are the mutants, by name.
func All() map[string]Mutant {
	all := map[string]Mutant{}
	for _, table := range [][]Mutant{listwatch, streams, tenancy, rights, definitions, replicas, bound, garbage, lives, ring, informers, writes} {
		for _, m := range table {
			if _, taken := all[m.Name]; taken {
				panic("two mutants are called " + m.Name)
			}
			all[m.Name] = m
		}
	}
	return all
}

// Of returns the names of the mutants that a package's tests are to find, in
// order.
func Of(caughtBy string) []string {
	var names []string
	for name, m := range All() {
		if m.CaughtBy == caughtBy {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Overlay writes the files of the module at root, as the mutants have them, to
// dir, and returns the path of the file for -overlay. It fails where a mutant
// no longer fits the product.
func Overlay(dir, root string, names ...string) (string, error) {
	all, files := All(), map[string]string{}
	for _, name := range names {
		m, ok := all[name]
		if !ok {
			return "", fmt.Errorf("no mutant is called %q: there are %s", name, strings.Join(slices.Sorted(maps.Keys(all)), ", "))
		}
		for _, edit := range m.Edits {
			if err := edit.apply(root, files); err != nil {
				return "", fmt.Errorf("mutant %s: %w", name, err)
			}
		}
	}
	return writeOverlay(dir, root, files)
}

// writeOverlay writes the files to dir, and returns the path of the file for -overlay.
func writeOverlay(dir, root string, files map[string]string) (string, error) {
	replace := map[string]string{}
	for file, text := range files {
		path := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, file)] = path
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, text, 0o600)
}

// apply edits one of files, which are read when they are first needed.
func (e Edit) apply(root string, files map[string]string) error {
	text, ok := files[e.File]
	if !ok {
		raw, err := os.ReadFile(filepath.Join(root, e.File))
		if err != nil {
			return err
		}
		text = string(raw)
	}
	if n := strings.Count(text, e.Before); n != 1 || e.Before == e.After {
		return fmt.Errorf("%s has the text to be replaced %d times, not once: have the mutant follow the change of the product\n%s", e.File, n, e.Before)
	}
	files[e.File] = strings.Replace(text, e.Before, e.After, 1)
	return nil
}
