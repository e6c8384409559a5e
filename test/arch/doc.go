// Package arch checks the structure of the source code by rules with reasons: imports between packages, dependencies between the files of
// a package, requirements in go.mod, package comments, workers of controllers, file lengths, and links in the documentation.
//
//	Load(dir) ──► Tree ──► Rule.Check ──► violations (the failures of the test)
//
// layers.go contains a table of all packages, from top to bottom. If a package is not in the table, the test fails. It must be added with
// a reason for its position.
// The order of the files in a package is computed (files.go), because a declared order would change with most new files.
// Exported methods and names of fields are ignored, because types are not resolved.
package arch
