// Package measure records how long operations take and prints the results as a
// table for people and as JSON for programs.
package measure
