// Package arch holds the house's structure as rules with reasons and checks
// the source tree against them: who may import whom, which files of a package
// use which, what go.mod may ask for,
// that every package says what it is for, that controllers share their workers
// among logical clusters, that files stay small, and that
// links in the documentation lead somewhere.
//
//	Load(dir) ──► Tree ──► Rule.Check ──► Violations (the test's failures)
//
// The layers, top to bottom in layers.go, are the picture of the house that
// cannot go out of date: a package that is not in the table fails the test, and
// whoever adds it says there why it stands where it stands.
package arch
