// Package apis contains the rules of the API group apis.kcp.io, with which logical clusters export and bind APIs.
// It converts between versions without loss, validates objects, and computes names, labels and identities.
//
//	conversions  compiled rules of APIConversions, between the versions of a schema
//
// It is pure: it does not access other components. docs/bindings.md explains the kinds.
package apis
