// Package bindings knows which API is bound where: an index of the APIBindings of a
// shard, by what their status says. It is a source of custom resources
// (definitions.Source), and what controllers and authorization ask.
//
//	APIBindings ─► Index: a record a binding, what equal ones have in common shared
//	                 │
//	                 ├─► what is served where: two look-ups by logical cluster and resource
//	                 ├─► wildcards by identity, and of metadata over all identities
//	                 └─► whose export, and so whose maximal permission policy
//	BoundSchemas ─► the schemas that are served, each read once: copies that the shard
//	                keeps, so that a bound API needs nobody else
//
// Nothing runs for a single binding or logical cluster, and no object is kept decoded.
// docs/bindings.md explains the kinds.
package bindings
