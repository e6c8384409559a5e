// Package whole has two files that need each other, and one that only uses them.
package whole
