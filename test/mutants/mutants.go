// Package mutants contains intentional bugs. Each breaks an important rule, and must be found by a test or suite that is built with it.
//
// A mutant is an exact patch of product files, which are replaced by `go build -overlay` and `go test -overlay`, so that the product
// contains no code for it:
//
//	mutant ── Before, After ──► patched copy of the file ──► overlay ──► binary, or tests of a package
//
// Test binaries of packages are built once with all mutants, and each run activates one. SuiteRobustness and SuiteIsolation run servers
// with several mutants at once. A mutant must be added to a table of this package with the rule, the replaced text, which must be in the
// file exactly once, and the test that finds it. `go test -short ./test/mutants` checks that patches can be applied, and `make mutants`
// that the tests find them.
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

// Mutant is a bug that breaks a rule of the product.
type Mutant struct {
	Name string
	// Rule is the broken rule.
	Rule  string
	Edits []Edit
	// CaughtBy is the package or suite that finds the mutant. Test is the name of the test, and must be empty for suites.
	CaughtBy, Test string
}

// Edit replaces text in a file.
type Edit struct {
	// File is relative to the root of the module.
	File string
	// Before must be in the file exactly once. It is replaced by After.
	Before, After string
}

// All returns the mutants by name.
func All() map[string]Mutant {
	all := map[string]Mutant{}
	for _, table := range [][]Mutant{listwatch, streams, tenancy, rights, definitions, replicas, bound, garbage, lifecycle, ring, informers, writes} {
		for _, m := range table {
			if _, taken := all[m.Name]; taken {
				panic("two mutants have the name " + m.Name)
			}
			all[m.Name] = m
		}
	}
	return all
}

// Of returns the sorted names of the mutants that a package or suite must find.
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

// Overlay writes the patched files of the module at root to dir, and returns the path of the file for -overlay. It returns an error if a
// patch cannot be applied.
func Overlay(dir, root string, names ...string) (string, error) {
	all, files := All(), map[string]string{}
	for _, name := range names {
		m, ok := all[name]
		if !ok {
			return "", fmt.Errorf("mutant %q does not exist, the mutants are %s", name, strings.Join(slices.Sorted(maps.Keys(all)), ", "))
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

// apply patches a file, which is read if files does not contain it yet.
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
		return fmt.Errorf("%s contains the text to be replaced %d times instead of once: update the mutant\n%s", e.File, n, e.Before)
	}
	files[e.File] = strings.Replace(text, e.Before, e.After, 1)
	return nil
}
