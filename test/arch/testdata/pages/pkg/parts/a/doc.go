// Package a is part of a fixture.
//
//	deeper   what is below it
//	removed  what was below it once
package a
