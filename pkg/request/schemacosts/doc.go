// Package schemacosts computes what the schema of a custom resource makes of an object: how much defaults add
// to it, how often a value is validated, and how many entries its keyed lists have. The API server multiplies
// these with the number of items of an object, ignores the deadline of the request meanwhile, and keeps the
// result in memory. A definition, or an object, above the limits is rejected before.
//
//	definition ── CheckSpec ──► errors that name the field
//	           └─ New ──► Schema ── Body ──► what a request contains, before it is decoded
//	                             ├─ Object, Errors ──► an object, before it is validated
//	                             └─ Stored ──► an object, before it is read
package schemacosts
