// Package conversions compiles the rules of APIConversions against the schema of their
// name, and converts objects by them.
//
//	APIResourceSchema ─┐
//	APIConversion     ─┴─► Compile ─► Rules ─► Convert: one object, within bounded cost
//
// It asks nobody and keeps nothing. docs/bindings.md explains the kinds.
package conversions
