// Package conversions compiles the rules of an APIConversion against the APIResourceSchema with the same
// name, and converts objects with them.
//
//	APIResourceSchema ─┐
//	APIConversion     ─┴─► Compile ─► Rules ─► Convert: one object, with bounded cost
//
// It is pure and stateless. docs/bindings.md explains the kinds.
package conversions
