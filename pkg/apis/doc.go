// Package apis holds the rules of the kinds of apis.kcp.io, by which one logical
// cluster exports APIs and others bind them: how their versions are converted
// into each other without loss, what is valid, and how names, labels and the
// identity of an export are computed.
//
//	conversions  compiled rules of APIConversions, between the versions of a schema
//
// It is pure: it reads and returns values, and asks nobody. docs/bindings.md
// explains the kinds.
package apis
